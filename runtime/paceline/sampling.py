"""Settings of the target's sampler."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from paceline.bundle import GENERATION_CONFIG, Bundle
from paceline.errors import InputError
from paceline.reading import read_json

MOST = 2**64 - 1  # that 64 bits hold


@dataclass(frozen=True)
class Sampling:
    """How the target's next token is chosen; the defaults are greedy decoding.

    Attributes:
        temperature: 0 is greedy.
        top_k, top_p, min_p: filters, see `paceline.sampler.Sampler.distribution`; None is off.
        repetition_penalty: over tokens of prompt and output; 1 is off.
        presence_penalty, frequency_penalty: over tokens of the output; 0 is off.
        seed: of `paceline.sampler.uniform`, 64 bits; None asks the caller to take a random one.
        logit_bias: token -> what is added to its logit; a read-only copy is kept.
        banned: tokens that are never emitted.

    Raises:
        InputError: a field has another type, or is out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)  # a mapping proxy has no hash
    banned: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name, found, kind, low, high, off in (
            ("temperature", self.temperature, float, 0.0001, 10000, 0),
            ("top_k", self.top_k, int, 1, MOST, None),
            ("top_p", self.top_p, float, 0, 1, None),
            ("min_p", self.min_p, float, 0, 1, None),
            ("repetition_penalty", self.repetition_penalty, float, 0.001, 1000, 1),
            ("presence_penalty", self.presence_penalty, float, -100, 100, 0),
            ("frequency_penalty", self.frequency_penalty, float, -100, 100, 0),
            ("seed", self.seed, int, 0, MOST, None),
        ):
            if found != off or isinstance(found, bool):
                require(name, found, kind, low, high, f", or {off} for off")
        if not isinstance(self.logit_bias, Mapping) or not isinstance(self.banned, Collection):
            found = (self.logit_bias, self.banned)
            raise InputError(
                f"(logit_bias, banned) is {found}; allowed are a mapping of token ids to numbers and a set of ids."
            )
        for token, bias in self.logit_bias.items():
            require("a token of logit_bias", token, int, 0, MOST)
            require(f"logit_bias of token {token}", bias, float, -1000, 1000)
        for token in self.banned:
            require("a banned token", token, int, 0, MOST)
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))
        object.__setattr__(self, "banned", frozenset(self.banned))

    @classmethod
    def from_generation_config(cls, raw: Mapping[str, Any]) -> Sampling:
        """What a Hugging Face generation_config.json asks for.

        Without `do_sample` the temperature is 0, and filters are kept for whoever replaces it. Fields that are absent or null
        are off (transformers itself takes top_k 50 then), and so is top_k 0. Unknown fields are ignored.

        Raises:
            InputError: a known field has another type, or is out of range.
        """
        given = {name: value for name, value in raw.items() if value is not None}
        sampled, top_k = given.get("do_sample", False), given.get("top_k")
        if not isinstance(sampled, bool):
            raise InputError(f"generation_config.json: do_sample is {sampled!r}; allowed is true or false.")
        try:
            settings = cls(
                temperature=given.get("temperature", 1.0),
                top_k=None if top_k == 0 and not isinstance(top_k, bool) else top_k,
                top_p=given.get("top_p"),
                min_p=given.get("min_p"),
                repetition_penalty=given.get("repetition_penalty", 1.0),
                banned=given.get("suppress_tokens", frozenset()),
            )
        except InputError as error:
            raise InputError(f"generation_config.json: {error}") from error
        return settings if sampled else replace(settings, temperature=0.0)


GREEDY = Sampling()


def checkpoint_sampling(bundle: Bundle) -> Sampling:
    """What the checkpoint's generation_config.json asks for.

    Raises:
        InputError: it cannot be read, or asks for what is out of range.
    """
    file = bundle.folder / GENERATION_CONFIG
    if GENERATION_CONFIG not in bundle.manifest.files:
        return GREEDY
    try:
        raw = read_json(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as JSON ({error}); export the bundle again.") from None
    if not isinstance(raw, dict):
        raise InputError(f"{file} is a {type(raw).__name__}; a JSON object is needed; export the bundle again.")
    return Sampling.from_generation_config(raw)


def require(name: str, found: Any, kind: type, low: float, high: float, other: str = "") -> None:
    """Refuses what is not of a kind and in a range; a whole number is a float too, but true is no number."""
    number = isinstance(found, int | kind) and not isinstance(found, bool)
    if not number or not low <= found <= high:
        words = "a whole number" if kind is int else "a number"
        raise InputError(f"{name} is {found!r}; allowed is {words} from {low} to {high}{other}.")
