"""The description of a bundle, manifest.json, as BUNDLE.md specifies it; what its numbers and names must be is refused here."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from paceline.draft_length import MOST_DRAFTS, NO_LIMITS, AdaptiveLimits
from paceline.errors import InputError
from paceline.reading import WHOLE, is_plain_name, parse_json
from paceline.signatures import CacheKind, CacheSpec

FORMAT, VERSION = "paceline-bundle", 3
MOST = (1 << 31) - 1  # of a size or a token: graphs count in 32 bits
OFFSETS = (0, -1)  # of a draft step's position
SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredFile:
    """Size and hash of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class GraphFiles:
    """The graphs of one backend.

    Attributes:
        parts: target, drafter, .. -> file name.
        signatures: file name -> signature name -> inputs and outputs.
    """

    parts: dict[str, str]
    signatures: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ChatTurns:
    """How a conversation is written, for readers without a template engine: what stands in front of a turn and behind it.

    Attributes:
        start: in front of the first turn, <bos> left out.
        answer: behind the last turn, in front of what the model is to write.
    """

    start: str
    user: tuple[str, str]
    model: tuple[str, str]
    answer: str


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json; see BUNDLE.md for every field."""

    made_by: str
    recipe: str
    vocab_size: int
    hidden_size: int
    layers: int
    per_layer_size: int
    window: int
    max_positions: int
    bos_id: int | None
    stop_ids: tuple[int, ...]
    draft_position_offset: int
    caches: tuple[CacheSpec, ...]
    drafter_layers: tuple[int, ...]
    scored_tokens: int  # that a draft step has a logit of
    vocabulary_sha256: str
    graphs: dict[str, GraphFiles]
    files: dict[str, StoredFile]
    chat_turns: ChatTurns | None = None
    adaptive: AdaptiveLimits = NO_LIMITS

    @property
    def drafter_caches(self) -> tuple[CacheSpec, ...]:
        """The caches that the drafter reads."""
        return tuple(spec for spec in self.caches if spec.layer in self.drafter_layers)

    def to_json(self) -> str:
        """The file's text: sorted keys, so that the same export gives the same bytes."""
        raw: dict[str, Any] = {
            "format": FORMAT,
            "format_version": VERSION,
            "made_by": self.made_by,
            "recipe": self.recipe,
            "model": {
                "vocab_size": self.vocab_size,
                "hidden_size": self.hidden_size,
                "layers": self.layers,
                "per_layer_size": self.per_layer_size,
                "window": self.window,
                "max_positions": self.max_positions,
                "bos_id": self.bos_id,
                "stop_ids": list(self.stop_ids),
                "vocabulary_sha256": self.vocabulary_sha256,
            },
            "draft_position_offset": self.draft_position_offset,
            "kv_cache": [
                {"layer": c.layer, "kind": c.kind.value, "kv_heads": c.kv_heads, "head_dim": c.head_dim} for c in self.caches
            ],
            "drafter_reads_layers": list(self.drafter_layers),
            "drafter_scores_tokens": self.scored_tokens,
            "graphs": {backend: {"parts": g.parts, "signatures": g.signatures} for backend, g in self.graphs.items()},
            "files": {name: {"bytes": f.size, "sha256": f.sha256} for name, f in self.files.items()},
        }
        # Younger than the format's version, and so only there where they say something.
        if self.chat_turns:
            raw["chat_turns"] = asdict(self.chat_turns)
        if self.adaptive != NO_LIMITS:
            raw["adaptive"] = asdict(self.adaptive)
        return json.dumps(raw, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Parses manifest.json.

        Raises:
            InputError: it is not a manifest of this version, or says what cannot be; `where` names it.
        """
        try:
            raw = parse_json(text)
            found = (raw["format"], raw["format_version"])
            if found != (FORMAT, VERSION):
                raise InputError(
                    f"{where}: the format is {found[0]} version {found[1]}; this paceline reads {FORMAT} version {VERSION}; "
                    "export the bundle again, or install the paceline that made it."
                )
            model = raw["model"]
            manifest = cls(
                made_by=_text(raw, "made_by"),
                recipe=_text(raw, "recipe"),
                vocab_size=_whole(model, "vocab_size", 1),
                hidden_size=_whole(model, "hidden_size", 1),
                layers=_whole(model, "layers", 1),
                per_layer_size=_whole(model, "per_layer_size"),
                window=_whole(model, "window", 1),
                max_positions=_whole(model, "max_positions", 1),
                bos_id=None if model["bos_id"] is None else _whole(model, "bos_id"),
                stop_ids=_wholes(model, "stop_ids"),
                draft_position_offset=_whole(raw, "draft_position_offset", min(OFFSETS), max(OFFSETS)),
                caches=tuple(
                    CacheSpec(_whole(c, "layer"), CacheKind(c["kind"]), _whole(c, "kv_heads", 1), _whole(c, "head_dim", 1))
                    for c in raw["kv_cache"]
                ),
                drafter_layers=_wholes(raw, "drafter_reads_layers"),
                scored_tokens=_whole(raw, "drafter_scores_tokens", 1),
                vocabulary_sha256=_hash(model, "vocabulary_sha256"),
                graphs={backend: _graphs(g, where) for backend, g in raw["graphs"].items()},
                files={
                    _plain(name, where): StoredFile(_whole(f, "bytes", most=WHOLE), _hash(f, "sha256"))
                    for name, f in raw["files"].items()
                },
                chat_turns=_chat_turns(raw.get("chat_turns")),
                adaptive=_adaptive(raw.get("adaptive")),
            )
            manifest._require_sense()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{where} is not a valid manifest ({error!r}); export the bundle again.") from None
        return manifest

    def _require_sense(self) -> None:
        """Raises ValueError where the fields contradict each other."""
        layers = [spec.layer for spec in self.caches]
        if not layers:
            raise ValueError("kv_cache has no layer")
        for name, numbers, allowed in (
            ("kv_cache", layers, range(self.layers)),
            ("drafter_reads_layers", self.drafter_layers, frozenset(layers)),
            ("drafter_scores_tokens", (self.scored_tokens,), range(self.vocab_size + 1)),
        ):
            if len(set(numbers)) < len(numbers) or any(number not in allowed for number in numbers):
                raise ValueError(f"{name} is {list(numbers)[:8]}, which does not fit the model's other numbers")
        for backend, graphs in self.graphs.items():
            if not {"target", "drafter"} <= {part.partition(".")[0] for part in graphs.parts}:
                raise ValueError(f"graphs for {backend} lack a target or a drafter")
        unlisted = {name for g in self.graphs.values() for name in g.parts.values()} - set(self.files)
        if unlisted:
            raise ValueError(f"graphs {sorted(unlisted)} are not among its files")


def _graphs(raw: dict[str, Any], where: str) -> GraphFiles:
    parts = {part: _plain(file, where) for part, file in raw["parts"].items()}
    for file, signatures in raw["signatures"].items():
        if not signatures:
            raise ValueError(f"{file} has no signatures")
        for signature in signatures.values():
            for direction in ("inputs", "outputs"):
                for name, (dtype, shape) in signature[direction].items():
                    if not isinstance(dtype, str) or not all(isinstance(size, int | str) for size in shape):
                        raise ValueError(f"{name} is {dtype} {shape}, and not a dtype and a shape")
    return GraphFiles(parts, raw["signatures"])


def _chat_turns(raw: dict[str, Any] | None) -> ChatTurns | None:
    if raw is None:
        return None
    before, behind = (_text({"chat_turns": text}, "chat_turns") for text in raw["user"])
    answers, ends = (_text({"chat_turns": text}, "chat_turns") for text in raw["model"])
    return ChatTurns(_text(raw, "start"), (before, behind), (answers, ends), _text(raw, "answer"))


def _adaptive(raw: dict[str, Any] | None) -> AdaptiveLimits:
    if raw is None:
        return NO_LIMITS
    if not isinstance(raw["lookup"], bool):
        raise ValueError(f"lookup is {raw['lookup']!r}, and not true or false")
    return AdaptiveLimits(_whole(raw, "most_drafts", most=MOST_DRAFTS), raw["lookup"])


def _plain(name: object, where: str) -> str:
    """A file name that stays inside the bundle."""
    if not is_plain_name(name):
        raise InputError(f"{where} names the file {name!r}; only plain names inside the bundle are allowed.")
    return str(name)


def _whole(raw: dict[str, Any], name: str, least: int = 0, most: int = MOST) -> int:
    found = raw[name]
    if type(found) is not int or not least <= found <= most:  # true is an int, too
        raise ValueError(f"{name} is {found!r}, and not a whole number from {least} to {most}")
    return found


def _wholes(raw: dict[str, Any], name: str) -> tuple[int, ...]:
    return tuple(_whole({name: found}, name) for found in raw[name])


def _text(raw: dict[str, Any], name: str) -> str:
    found = raw[name]
    if not isinstance(found, str):
        raise ValueError(f"{name} is {found!r}, and not a text")
    return found


def _hash(raw: dict[str, Any], name: str) -> str:
    found = _text(raw, name)
    if not SHA256.fullmatch(found):
        raise ValueError(f"{name} is {found!r}, and not the 64 hexadecimal digits of a hash")
    return found
