"""npu.json and nnapi.json: what graphs of fixed sizes are, beside what the manifest says of the pair. See BUNDLE.md."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.manifest import Manifest
from paceline.npu.scales import Scale
from paceline.npu.signatures import (
    ROWS,
    cache_slice,
    draft_name,
    kinds_of,
    npu_drafter,
    npu_target,
    signature_name,
)
from paceline.reading import parse_json, read_text
from paceline.signatures import CacheKind, Signature

VERSION = 1
MOST_CONTEXT, MOST_STEPS = 1 << 20, 16
DTYPES = ("int16", "int8", "float32")
MOST_SIZES = 16  # of the caches, and numbers of steps
PARTS = ("target", "drafter")


@dataclass(frozen=True)
class Rotation:
    """The rotary embedding of one kind of layers: frequencies theta^(-2i / head_dim) of the first pairs, 0 of the others."""

    head_dim: int
    theta: float
    rotated: float  # fraction of the head

    def tables(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines [T, H] at positions [T]. The sines of a head's low half have the sign of rotate-half.

        Computed in float64, so that every language rounds them to the same float32.
        """
        frequencies = np.zeros(self.head_dim // 2)
        pairs = int(self.rotated * self.head_dim // 2)
        frequencies[:pairs] = self.theta ** -(np.arange(0, 2 * pairs, 2) / self.head_dim)
        angles = positions[:, None] * np.concatenate([frequencies, frequencies])
        signs = np.repeat([-1.0, 1.0], self.head_dim // 2)
        return np.cos(angles).astype(np.float32), (np.sin(angles) * signs).astype(np.float32)


@dataclass(frozen=True)
class NpuProfile:
    """The content of npu.json, or of nnapi.json.

    Attributes:
        recipe: how the numbers were chosen, e.g. a16w8.
        dtype: of inputs, outputs and KV rows; of DTYPES.
        contexts: slots of the full caches, of each size that there is, rising.
        rows: T of the target's signatures.
        draft_steps: steps of the drafter's signatures.
        top_clusters: that the drafter's head chooses; 0 where it scores the whole vocabulary.
        scales: part -> port -> its scale.
    """

    recipe: str
    dtype: str
    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    draft_steps: tuple[int, ...]
    top_clusters: int
    rotations: dict[CacheKind, Rotation]
    scales: dict[str, dict[str, Scale]]

    def scale(self, part: str, port: str) -> Scale | None:
        """Of a port; the outputs of later drafter steps have that of the first. None for float32 and whole numbers."""
        scales = self.scales.get(part, {})
        return scales.get(port) or scales.get(port.rpartition("_")[0])

    def signatures(self, manifest: Manifest, part: str) -> dict[str, Signature]:
        """All signatures of a part, by name."""
        m, contexts = manifest, self.contexts
        if part == "drafter":
            sizes = m.window, m.hidden_size, m.scored_tokens, self.top_clusters
            return {
                draft_name(steps, context, contexts): npu_drafter(m.drafter_caches, *sizes, context, steps, self.dtype)
                for context in contexts
                for steps in self.draft_steps
            }
        per_layer = (m.layers, m.per_layer_size) if m.per_layer_size else None
        return {
            signature_name(rows, context, contexts): npu_target(
                m.caches, m.window, m.hidden_size, m.vocab_size, per_layer, rows, context, self.dtype
            )
            for context in contexts
            for rows in self.rows
        }

    def to_json(self) -> str:
        """The file's text: sorted keys, so that the same export gives the same bytes."""
        raw = {
            "format_version": VERSION,
            "recipe": self.recipe,
            "dtype": self.dtype,
            "contexts": list(self.contexts),
            "rows": list(self.rows),
            "draft_steps": list(self.draft_steps),
            "top_clusters": self.top_clusters,
            "rotations": {
                kind.value: {"head_dim": r.head_dim, "theta": r.theta, "rotated": r.rotated}
                for kind, r in self.rotations.items()
            },
            "scales": {
                part: {port: [scale.scale, scale.zero_point] for port, scale in scales.items()}
                for part, scales in self.scales.items()
            },
        }
        return json.dumps(raw, indent=2, sort_keys=True) + "\n"

    def _require_fit(self, manifest: Manifest) -> None:
        """Raises ValueError where a tensor of the model has no scale, or another one than who shares its rows."""
        for kind, size in kinds_of(manifest.caches).items():
            if kind not in self.rotations or self.rotations[kind].head_dim != size:
                raise ValueError(f"rotations lack the {kind.value} layers' heads of {size}")
        if self.dtype == "float32":
            return
        for part in PARTS:
            for signature in self.signatures(manifest, part).values():
                for port in (*signature.inputs, *signature.outputs):
                    if port.dtype == self.dtype and self.scale(part, port.name) is None:
                        raise ValueError(f"{port.name} of the {part} has no scale")
        for spec in manifest.caches:
            for name in (spec.key, spec.value):
                readers = [("target", cache_slice(name)), *([("drafter", name)] if spec in manifest.drafter_caches else [])]
                if any(self.scale(part, reader) != self.scale("target", name) for part, reader in readers):
                    raise ValueError(f"{name} has several scales")

    @classmethod
    def read(cls, file: Path, manifest: Manifest) -> NpuProfile:
        """Reads the file of a bundle with this manifest. Raises InputError as `from_json`, or where it cannot be read."""
        try:
            text = read_text(file)
        except (OSError, ValueError) as error:
            raise InputError(f"{file} cannot be read ({error}); export the bundle again.") from None
        return cls.from_json(text, str(file), manifest)

    @classmethod
    def from_json(cls, text: str, where: str, manifest: Manifest) -> NpuProfile:
        """Parses the file, of a bundle with this manifest.

        Raises:
            InputError: it is not such a file, or says what cannot be; `where` names it.
        """
        try:
            return cls._parsed(text, manifest)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InputError(f"{where} does not describe this pair's graphs ({error!r}); export the bundle again.") from None

    @classmethod
    def _parsed(cls, text: str, manifest: Manifest) -> NpuProfile:
        raw = parse_json(text)
        if raw["format_version"] != VERSION:
            raise ValueError(f"format_version is {raw['format_version']!r}, and this paceline reads {VERSION}")
        if raw["dtype"] not in DTYPES:
            raise ValueError(f"dtype is {raw['dtype']!r}, and not one of {', '.join(DTYPES)}")
        rows, steps = _rising(raw, "rows", max(ROWS)), _rising(raw, "draft_steps", MOST_STEPS)
        if rows != ROWS:
            raise ValueError(f"rows are {list(rows)}, and not {list(ROWS)}")
        if steps[0] != 1 or len(steps) > MOST_SIZES:
            raise ValueError(f"draft_steps are {list(steps)}, and not 1 and at most {MOST_SIZES - 1} more")
        contexts = _rising(raw, "contexts", MOST_CONTEXT)
        if len(contexts) > MOST_SIZES or contexts[0] < max(ROWS):
            raise ValueError(f"contexts are {list(contexts)[:8]}, and not at most {MOST_SIZES} of {max(ROWS)} and more")
        parsed = cls(
            recipe=str(raw["recipe"]),
            dtype=raw["dtype"],
            contexts=contexts,
            rows=rows,
            draft_steps=steps,
            top_clusters=_whole(raw["top_clusters"], "top_clusters", 0, MOST_CONTEXT),
            rotations={CacheKind(kind): _rotation(each) for kind, each in raw["rotations"].items()},
            scales={
                part: {port: _scale(port, *each) for port, each in scales.items()} for part, scales in raw["scales"].items()
            },
        )
        parsed._require_fit(manifest)
        return parsed


def profile_file(name: str) -> str:
    """The file of a bundle that describes its graphs of a profile, NPU or NNAPI."""
    return f"{name}.json"


def _rising(raw: dict[str, Any], name: str, most: int) -> tuple[int, ...]:
    found = tuple(_whole(each, name, 1, most) for each in raw[name])
    if not found or list(found) != sorted(set(found)):
        raise ValueError(f"{name} are {list(found)}, and not rising numbers")
    return found


def _whole(found: object, name: str, least: int, most: int) -> int:
    if type(found) is not int or not least <= found <= most:
        raise ValueError(f"{name} is {found!r}, and not a whole number from {least} to {most}")
    return found


def _rotation(raw: dict[str, Any]) -> Rotation:
    theta, rotated = float(raw["theta"]), float(raw["rotated"])
    if not (1 <= theta < np.inf and 0 < rotated <= 1):
        raise ValueError(f"a rotation has theta {theta} and rotates {rotated} of a head")
    return Rotation(_whole(raw["head_dim"], "head_dim", 2, MOST_CONTEXT), theta, rotated)


def _scale(port: str, scale: object, zero_point: object) -> Scale:
    if type(scale) is not float or not 0 < np.float32(scale) < np.inf:
        raise ValueError(f"the scale of {port} is {scale!r}")
    return Scale(scale, _whole(zero_point, port, -128, 127))
