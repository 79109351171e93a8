"""The pair's TFLite graphs as Google's LiteRT-LM calls them: another profile of the same definition.

LiteRT-LM gives a call its positions and one mask over a cache of fixed size, and no more. So the window of local layers and
the slots that a call writes are computed in the graph, local caches are as long as full ones, a KV tensor has all heads, and
the drafter says the logit of every token. In LiteRT-LM a draft step stands one position before the pending token's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from paceline import signatures
from paceline.signatures import CacheKind, CacheSpec
from paceline_export.checkpoint import Target
from paceline_export.config import Decoder
from paceline_export.lower.caches import cache_specs, drafter_caches
from paceline_export.lower.flatbuffer import Builtin, Tensor
from paceline_export.lower.litertlm_signatures import MTP_DRAFTER, LiteRtLmProfile, litertlm_drafter, litertlm_target
from paceline_export.lower.tflite import DRAFTER, TARGET, Entry, ModelFile, token_tables
from paceline_export.lower.tflite_ops import Rows, TfliteOps
from paceline_export.model.drafter import draft_choice, draft_layers
from paceline_export.model.ops import DraftChoice
from paceline_export.stored import StoredPair
from paceline_export.weights import Progress

OUTSIDE = -1e30  # added to a mask, and to masked scores without an overflow
UNSCORED = -1e9  # the logit of a token that the drafter does not score


@dataclass
class LiteRtLmOps(TfliteOps):
    """`TfliteOps` on KV tensors of all heads.

    Attributes:
        start: int32 [4], where this call's rows go.
        written: layer -> keys and values [1, K, S, H] after the write.
    """

    start: Tensor = field(init=False)
    written: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def read(self, spec: CacheSpec, keys: Tensor, values: Tensor) -> None:
        """Takes a layer's KV tensors [1, K, S, H]."""
        self.written[spec.layer] = keys, values
        self.rows[spec.layer] = Rows(
            spec.kind, *([self.slice(x, 1, head, 1) for head in range(spec.kv_heads)] for x in (keys, values))
        )

    def cache_update(self, layer: int, k: Tensor, v: Tensor) -> Rows:
        past = self.rows[layer]
        keys, values = (self._write(old, new) for old, new in zip(self.written[layer], (k, v), strict=True))
        self.read(CacheSpec(layer, past.kind, k.shape[2], k.shape[3]), keys, values)
        return self.rows[layer]

    def _write(self, cached: Tensor, new: Tensor) -> Tensor:
        _, count, heads, size = new.shape
        if heads == 1:
            turned = self.reshape(new, 1, 1, count, size)
        else:
            order = self.constant([0, 2, 1, 3], np.int32)
            turned = self.node(Builtin.TRANSPOSE, [new, order], (1, heads, count, size), schema.TransposeOptionsT())
        inputs = [cached, turned, self.start]
        return self.node(Builtin.DYNAMIC_UPDATE_SLICE, inputs, cached.shape, schema.DynamicUpdateSliceOptionsT())

    def start_at(self, positions: Tensor) -> None:
        """This call's rows begin at the slot that is its first position. positions: int32 [T]."""
        zero = self.constant([0], np.int32)
        options = schema.SliceOptionsT()
        first = self.node(Builtin.SLICE, [positions, zero, self.constant([1], np.int32)], (1,), options, "int32")
        joined = schema.ConcatenationOptionsT()
        self.start = self.node(Builtin.CONCATENATION, [zero, zero, first, zero], (4,), joined, "int32")

    def see(self, mask: Tensor, positions: Tensor, window: int) -> None:
        """Makes both kinds of masks of [1, 1, T, S] and int32 [T]: a local layer sees the `window` newest slots of it."""
        _, _, count, slots = mask.shape
        full = self.reshape(mask, 1, count, 1, slots)
        row = self.reshape(self.node(Builtin.CAST, [positions], (count,), schema.CastOptionsT()), 1, count, 1, 1)
        oldest = self.add(row, self.constant([1.0 - window]))
        slot = self.constant(np.arange(slots, dtype=np.float32)[None, None, None])
        ahead = self.node(Builtin.SUB, [slot, oldest], (1, count, 1, slots), schema.SubOptionsT())
        outside = self._bounded(ahead)  # -1 outside the window and 0 inside
        self.masks = {CacheKind.FULL: full, CacheKind.LOCAL: self.add(full, self.scale(outside, -OUTSIDE))}

    def _bounded(self, x: Tensor) -> Tensor:
        options = schema.MaximumMinimumOptionsT
        lower = self.node(Builtin.MINIMUM, [x, self.constant([0.0])], x.shape, options())
        return self.node(Builtin.MAXIMUM, [lower, self.constant([-1.0])], x.shape, options())

    def all_logits(self, choice: DraftChoice, vocab_size: int) -> Tensor:
        """Logits of the whole vocabulary [1, 1, V], UNSCORED where the head has none."""
        if choice.scored is None:
            return self.reshape(choice.logits, 1, 1, vocab_size)
        count = choice.scored.shape[0]
        where = self.reshape(choice.scored, count, 1, dtype="int32")

        def spread(values: Tensor) -> Tensor:
            inputs = [where, values, self.constant([vocab_size], np.int32)]
            return self.node(Builtin.SCATTER_ND, inputs, (vocab_size,), schema.ScatterNdOptionsT())

        # What is not scored becomes UNSCORED, and what is keeps its logit in every bit.
        scored = self.scale(self.add(spread(self.constant(np.ones(count))), self.constant([-1.0])), -UNSCORED)
        return self.reshape(self.add(spread(choice.logits), scored), 1, 1, vocab_size)


@dataclass
class LiteRtLmEntry(Entry):
    """One signature under construction."""

    ops: ClassVar[type[TfliteOps]] = LiteRtLmOps
    op: LiteRtLmOps = field(init=False)

    def prepare(self, specs: Sequence[CacheSpec], config: Decoder, step: int = 0) -> None:
        """Gives the op set the KV rows, what is seen of them, and the rotation, of positions that `step` is added to."""
        for spec in specs:
            self.op.read(spec, self.inputs[spec.key], self.inputs[spec.value])
        positions = self.inputs[signatures.INPUT_POS]
        self.op.see(self.inputs[signatures.MASK[CacheKind.FULL]], positions, config.window)
        self.op.prepare_rotation(positions, list(config.ropes.values()), step)


def write_graphs(
    folder: Path, pair: StoredPair, profile: LiteRtLmProfile, draft_position_offset: int, progress: Progress
) -> list[str]:
    """Writes the target, the drafter and the token tables into `folder`, with the weights of a bundle's graphs.

    Returns:
        names of the files.
    """
    tables = token_tables(pair.target, pair.target_rounding, {1: signatures.VERIFY[1]}, pair.tensors)
    files = {
        TARGET: _target(pair.target, ModelFile(pair.target_rounding, pair.tensors[TARGET]), profile),
        DRAFTER: _drafter(pair, ModelFile(pair.drafter_rounding, pair.tensors[DRAFTER]), profile, draft_position_offset),
        **{name: entries[0].file for name, entries in tables.items()},
    }
    for name, file in files.items():
        file.tflite.save(folder / name, progress)
    return list(files)


def _target(target: Target, file: ModelFile, profile: LiteRtLmProfile) -> ModelFile:
    config = target.config
    specs = cache_specs(config)
    per_layer = (len(config.layers), config.per_layer_size) if config.per_layer_size else None
    for rows, name in profile.signatures.items():
        signature = litertlm_target(
            specs, profile.slots, config.hidden_size, config.vocab_size, per_layer, rows, rows in profile.emitting
        )
        entry = LiteRtLmEntry(file, name, signature)
        entry.prepare(specs, config)
        entry.op.start_at(entry.inputs[signatures.INPUT_POS])
        outputs = entry.target_outputs(target, rows in profile.emitting)
        for spec in specs:
            outputs[spec.key], outputs[spec.value] = entry.op.written[spec.layer]
        entry.finish(outputs)
    return file


def _drafter(pair: StoredPair, file: ModelFile, profile: LiteRtLmProfile, draft_position_offset: int) -> ModelFile:
    drafter, config = pair.drafter, pair.drafter.config
    specs = drafter_caches(pair.target.config, config)
    signature = litertlm_drafter(specs, profile.slots, config.target_hidden_size, config.vocab_size)
    entry = LiteRtLmEntry(file, MTP_DRAFTER, signature)
    entry.prepare(specs, config, step=1 + draft_position_offset)
    state, projected = draft_layers(entry.op, config, drafter.weights, entry.inputs[signatures.ACTIVATIONS])
    choice = draft_choice(entry.op, config, drafter.weights, state)
    logits = entry.op.all_logits(choice, config.vocab_size)
    entry.finish({signatures.LOGITS: logits, signatures.PROJECTED_ACTIVATIONS: projected})
    return file
