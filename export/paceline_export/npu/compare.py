"""The loop on an emulated chip beside the same integer graphs on the CPU: how far the outputs are apart, and the tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kv_cache import aligned_zeros
from paceline.model import Model
from paceline.npu.profile import NpuProfile
from paceline.npu.runners import Runner
from paceline.signatures import DRAFT_SCORED, LOGITS, Signature

ALIKE = {"int16": 0.999, "int8": 0.98}  # cosine of logits, at least; 8-bit activations are rounded more differently


@dataclass
class ComparingRunner:
    """Runs every call on both, on the same inputs, and gives the loop what `first` says. Implements `Runner`.

    Attributes:
        signatures: part -> name -> signature.
        cosines: of the logits of each call, by part.
        difference: the largest between two logits of the target.
    """

    first: Runner
    second: Runner
    profile: NpuProfile
    signatures: Mapping[str, Mapping[str, Signature]]
    cosines: dict[str, list[float]] = field(default_factory=dict)
    difference: float = 0.0

    def bind(self, part: str, signature: str, arrays: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        """See `Runner`."""
        outputs = {port.name: aligned_zeros(port.sizes, port.dtype) for port in self.signatures[part][signature].outputs}
        run, run_other = self.first.bind(part, signature, arrays), self.second.bind(part, signature, {**arrays, **outputs})

        def both() -> None:
            run()
            run_other()
            if LOGITS in outputs:
                self._note(part, *(self._logits(part, each) for each in (arrays, {**arrays, **outputs})))

        return both

    def describe(self) -> str:
        """See `Runner`."""
        return f"{self.first.describe()}, compared with {self.second.describe()}"

    def _note(self, part: str, one: dict[int, float], other: dict[int, float]) -> None:
        both = sorted(set(one) & set(other))  # where two clusters score alike, each may have chosen another one
        first, second = (np.array([logits[token] for token in both]) for logits in (one, other))
        norms = np.linalg.norm(first) * np.linalg.norm(second)
        self.cosines.setdefault(part, []).append(float(first @ second / norms) if len(both) > len(one) / 2 else 0.0)
        if part == "target":
            self.difference = max(self.difference, float(np.abs(first - second).max()))

    def _logits(self, part: str, arrays: Mapping[str, NDArray[Any]]) -> dict[int, float]:
        """By place, or by token where only some have one."""
        scale = self.profile.scale(part, LOGITS)
        logits = (arrays[LOGITS] if scale is None else scale.numbers(arrays[LOGITS])).reshape(-1).tolist()
        scored = arrays.get(DRAFT_SCORED)
        return dict(zip(range(len(logits)) if scored is None else scored.tolist(), logits, strict=True))


@dataclass(frozen=True)
class Compared:
    """One prompt's texts.

    Attributes:
        differs_at: the first token that differs; None where none does.
        margin: there, how far the CPU's two likeliest tokens are apart.
    """

    prompt: str
    text: str
    tokens: int
    differs_at: int | None
    margin: float

    def explained(self, difference: float) -> bool:
        """Whether rounding alone can have turned the choice: each of two logits may be off by `difference`."""
        return self.differs_at is None or self.margin <= 2 * difference


def compared(emulated: Model, on_cpu: Model, prompts: Sequence[str], new_tokens: int, drafts: int) -> Iterator[Compared]:
    """Writes each prompt's text on both, drafted."""
    for prompt in prompts:
        options = {"max_new_tokens": new_tokens, "draft_length": drafts}
        pieces, others = (list(model.generate(prompt, **options)) for model in (emulated, on_cpu))  # type: ignore[arg-type]
        pairs = zip(pieces, others, strict=False)
        at = next((index for index, (one, other) in enumerate(pairs) if one.token != other.token), None)
        margin = 0.0 if at is None else _margin(on_cpu, prompt, [piece.token for piece in others[:at]])
        yield Compared(prompt, "".join(piece.text for piece in pieces), len(pieces), at, margin)


def _margin(model: Model, prompt: str, written: Sequence[int]) -> float:
    """How far the two largest logits are apart behind a prompt and what was written."""
    tokens = [*model.prompt_tokens(prompt), *written]
    with model.sequence() as (target, _):
        target.prefill(tokens[:-1])
        second, first = np.sort(target.verify(tokens[-1:]).logits[0])[-2:]
    return float(first - second)
