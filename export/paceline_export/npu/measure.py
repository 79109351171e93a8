"""The range of every tensor of the pair's graphs, measured while their float32 forms read and write real text.

Ranges are true minima and maxima over all calls: a number beyond its range would be cut off. The graphs have one row, and run
on LiteRT's plain kernels, which read weights where they lie in the file, so that memory is not a multiple of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline import signatures
from paceline.drafter import Drafter as DraftLoop
from paceline.kv_cache import KVCache
from paceline.npu.calls import NpuDrafter, NpuTarget
from paceline.npu.graphs import NpuGraphs
from paceline.npu.profile import NpuProfile, Rotation
from paceline.npu.rows import NpuRows
from paceline.npu.signatures import MASK
from paceline.signatures import GROWTH_SLOTS
from paceline.target import Target as TargetLoop
from paceline_export.checkpoint import Drafter, Target
from paceline_export.lower.caches import KINDS, cache_specs
from paceline_export.model.target import PER_LAYER_TABLE, TABLE
from paceline_export.npu.graphs import NpuModel, drafter_graphs, target_graphs
from paceline_export.npu.numbers import Floats, Ranges
from paceline_export.npu.observer import ObservingRunner
from paceline_export.rounding import Rounding
from paceline_export.weights import Progress

READ, WRITTEN = 48, 48  # tokens of each text: of the prompt, and what the target goes on with
DRAFT_EVERY, DRAFTED = 4, 3  # rounds begin at some rows, and have so many steps
# What a mask takes from a score must bury it below the smallest that is seen: e^-16 is a tenth of a millionth.
BURIED = 16.0


@dataclass(frozen=True)
class Measured:
    """What was found.

    Attributes:
        parts: target and drafter -> the ranges of their tensors.
    """

    parts: dict[str, Ranges]


def measure(
    folder: Path,
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    progress: Progress,
    wait: Callable[[str], None],
) -> Measured:
    """Writes float32 graphs into `folder`, and lets them continue `prompts`, greedily.

    Args:
        prompts: the tokens of each.
        progress: called after every piece of a tensor that is written.
        wait: called with the number of each prompt.
    """
    models = {
        "target": target_graphs(NpuModel.of(Floats(), Rounding({})), target, (GROWTH_SLOTS,), (1,)),
        "drafter": drafter_graphs(NpuModel.of(Floats(), Rounding({})), target, drafter, (GROWTH_SLOTS,), (1,)),
    }
    files = {part: folder / f"{part}.measured.tflite" for part in models}
    for part, model in models.items():
        model.tflite.save(files[part], progress)
    observer = ObservingRunner(files)
    loop, drafts = _loop(target, models, observer)
    for index, prompt in enumerate(prompts, 1):
        wait(f"text {index} of {len(prompts)}")
        _read_and_write(loop, drafts, prompt)
    for file in files.values():
        file.unlink()
    ranges = {part: settled(observer.ranges[part], model.masked) for part, model in models.items()}
    shared = {name: ranges["target"][name] for name in ranges["drafter"] if name.startswith("kv_cache")}
    return Measured({"target": ranges["target"], "drafter": {**ranges["drafter"], **shared}})


def _loop(target: Target, models: Mapping[str, NpuModel], runner: ObservingRunner) -> tuple[TargetLoop, DraftLoop]:
    config, specs, tables = target.config, cache_specs(target.config), CheckpointTables(target)
    profile = NpuProfile("f32", "float32", (GROWTH_SLOTS,), (1,), (1,), 0, rotations(target), {})
    cache = KVCache(specs, config.window, GROWTH_SLOTS)
    rows = NpuRows(cache, profile, "target", specs)
    listed = {part: model.signatures for part, model in models.items()}
    graphs = NpuGraphs(
        rows,
        NpuTarget(runner, profile, listed["target"], rows, tables),
        NpuDrafter(runner, profile, listed["drafter"], rows, tables, 0),
        None,
    )
    return TargetLoop(graphs, cache), DraftLoop(graphs)


def _read_and_write(target: TargetLoop, drafter: DraftLoop, prompt: Sequence[int]) -> None:
    target.cache.reset()
    tokens = list(prompt[:READ])
    pending = tokens[0]
    for row in range(len(tokens) + WRITTEN - 1):
        verified = target.verify([pending])
        target.commit(1)
        pending = tokens[row + 1] if row + 1 < len(tokens) else int(verified.logits[0].argmax())
        if row % DRAFT_EVERY == 0:
            drafter.chain(pending, verified.activations[0].copy(), DRAFTED)


def rotations(target: Target) -> dict[signatures.CacheKind, Rotation]:
    """The rotary embeddings of both kinds of layers."""
    return {KINDS[kind]: Rotation(rope.head_dim, rope.theta, rope.rotated) for kind, rope in target.config.ropes.items()}


def settled(ranges: Ranges, masked: Mapping[str, str]) -> Ranges:
    """Ranges of one part as its integer graphs need them.

    Args:
        masked: see `NpuOps`. What a mask hides was measured with an endless one; here it gets a bottom, low enough.
    """
    found = dict(ranges)
    bottom = 2 * max((max(-low, high) for low, high in (ranges[name] for name in masked.values())), default=0.0) + BURIED
    for behind, before in masked.items():
        low, high = ranges[before]
        found[behind] = low - bottom, high
    for name in MASK.values():
        if name in found:
            found[name] = -bottom, 0.0
    for name in ranges:
        if name.startswith("kv_slice"):
            cache = name.replace("slice", "cache", 1)
            found[cache] = min(found[cache][0], ranges[name][0]), max(found[cache][1], ranges[name][1])
    return found


@dataclass(frozen=True)
class CheckpointTables:
    """Rows of the token tables, from the checkpoint."""

    target: Target

    def look_up(self, tokens: NDArray[np.int64], rows: int) -> dict[str, NDArray[np.float32]]:
        """See `paceline.npu.runners.TokenTables`."""
        config, found = self.target.config, {}
        found[signatures.EMBEDDINGS] = self._rows(TABLE, tokens, rows)[None] * np.float32(config.hidden_size**0.5)
        if config.per_layer_size:
            packed = self._rows(PER_LAYER_TABLE, tokens, rows)
            scaled = packed.reshape(1, rows, len(config.layers), config.per_layer_size) * np.float32(config.per_layer_size**0.5)
            found[signatures.PER_LAYER_EMBEDDINGS] = scaled
        return found

    def _rows(self, name: str, tokens: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
        weight = self.target.weights[name]
        padded = np.zeros(rows, np.int64)
        padded[: len(tokens)] = tokens
        if weight.read_rows is None:
            return weight.read()[padded].astype(np.float32)
        return np.concatenate([weight.read_rows(int(token), int(token) + 1) for token in padded]).astype(np.float32)
