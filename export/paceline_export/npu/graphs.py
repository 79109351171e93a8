"""The pair's graphs for a neural processor: every signature for every size of the full caches, one copy of the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline import signatures
from paceline.npu.signatures import (
    COSINES,
    MASK,
    ROWS,
    SINES,
    TOKEN,
    TOP_CLUSTERS,
    cache_slice,
    draft_name,
    npu_drafter,
    npu_target,
    of_step,
    signature_name,
)
from paceline.signatures import CacheSpec, Signature
from paceline_export.checkpoint import Drafter, Target
from paceline_export.config import Decoder
from paceline_export.lower.caches import KINDS, cache_specs, drafter_caches
from paceline_export.lower.flatbuffer import Subgraph, Tensor, TfliteFile
from paceline_export.lower.tflite_weights import IntegerWeight
from paceline_export.model.drafter import draft_choice, draft_layers
from paceline_export.model.target import TABLE, Embedded, fill_rows, finish_rows
from paceline_export.npu.numbers import Numbers, quantization
from paceline_export.npu.ops import NpuChoice, NpuOps
from paceline_export.rounding import Rounding
from paceline_export.weights import Weight


@dataclass(frozen=True)
class NpuModel:
    """A file under construction.

    Attributes:
        ops: makes the op set of a subgraph.
        dtype: of inputs and outputs.
        signatures: those that are finished.
        masked: see `NpuOps`; the same in all signatures.
    """

    ops: Callable[[Subgraph], NpuOps]
    dtype: str
    tflite: TfliteFile = field(default_factory=TfliteFile)
    signatures: dict[str, Signature] = field(default_factory=dict)
    masked: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, numbers: Numbers, rounding: Rounding) -> NpuModel:
        """With matrices as `rounding` has them, and all else as `numbers`."""
        integers: dict[str, IntegerWeight] = {}
        return cls(lambda graph: NpuOps(graph, rounding, integers, numbers=numbers), numbers.dtype)

    def entry(self, name: str, signature: Signature, specs: Sequence[CacheSpec], config: Decoder) -> NpuEntry:
        """A signature, its inputs read by the op set."""
        op = self.ops(Subgraph(self.tflite, name))
        inputs = {port.name: op.input(port) for port in signature.inputs}
        for spec in specs:
            op.read(spec.layer, spec.kind, inputs[spec.key], inputs[spec.value])
        for kind, rope in config.ropes.items():
            if MASK[KINDS[kind]] in inputs:
                op.show(KINDS[kind], inputs[MASK[KINDS[kind]]])
                op.tables[rope] = inputs[COSINES[KINDS[kind]]], inputs[SINES[KINDS[kind]]]
        return NpuEntry(self, name, op, signature, inputs)


@dataclass(frozen=True)
class NpuEntry:
    """One signature under construction."""

    model: NpuModel
    name: str
    op: NpuOps
    signature: Signature
    inputs: dict[str, Tensor]

    def finish(self, outputs: dict[str, Tensor]) -> None:
        """Adds the signature to its file; outputs by name."""
        for port in self.signature.outputs:
            self.op.graph.output(port, outputs[port.name])
        self.op.graph.finish()
        self.model.signatures[self.name] = self.signature
        self.model.masked.update(self.op.masked)


def target_graphs(model: NpuModel, target: Target, contexts: Sequence[int], rows: Sequence[int] = ROWS) -> NpuModel:
    """Adds the target's signatures, for each number of rows and each context."""
    config = target.config
    specs = cache_specs(config)
    per_layer = (len(config.layers), config.per_layer_size) if config.per_layer_size else None
    for context in contexts:
        for count in rows:
            name = signature_name(count, context, contexts)
            sizes = config.window, config.hidden_size, config.vocab_size, per_layer, count, context
            signature = npu_target(specs, *sizes, model.dtype)
            entry = model.entry(name, signature, specs, config)
            embeddings = (entry.inputs.get(name) for name in (signatures.EMBEDDINGS, signatures.PER_LAYER_EMBEDDINGS))
            filled = fill_rows(entry.op, config, target.weights, Embedded(*embeddings))
            outputs = {}
            for spec in specs:
                outputs[cache_slice(spec.key)], outputs[cache_slice(spec.value)] = entry.op.slices[spec.layer]
            if count in signatures.VERIFY:
                logits, activations = finish_rows(entry.op, config, target.weights, filled)
                outputs |= {signatures.LOGITS: logits, signatures.ACTIVATIONS: activations}
            entry.finish(outputs)
    return model


def drafter_graphs(
    model: NpuModel, target: Target, drafter: Drafter, contexts: Sequence[int], steps: Sequence[int]
) -> NpuModel:
    """Adds the drafter's signatures, for each number of steps and each context."""
    config = drafter.config
    specs = drafter_caches(target.config, config)
    clusters = config.head.top_k if config.head else 0
    for context in contexts:
        for count in steps:
            sizes = config.window, config.target_hidden_size, config.scored_tokens, clusters, context, count
            name = draft_name(count, context, contexts)
            signature = npu_drafter(specs, *sizes, model.dtype)
            entry = model.entry(name, signature, specs, config)
            entry.finish(_steps(entry, drafter, count, _scaled(target.weights[TABLE])))
    return model


def _steps(entry: NpuEntry, drafter: Drafter, count: int, table: Weight) -> dict[str, Tensor]:
    """The outputs of a round's first `count` steps; with several, the target's table of scaled embeddings is inside."""
    op, config, outputs = entry.op, drafter.config, dict[str, Tensor]()
    token, joined = entry.inputs.get(TOKEN), entry.inputs[signatures.ACTIVATIONS]
    for step in range(count):
        if token is not None and count > 1:
            described = quantization(op.numbers.scale(signatures.ACTIVATIONS))
            joined = op.joined_at(described, [op.embedding(table, token), joined], axis=2)
        op.begin_step()
        state, hidden = draft_layers(op, config, drafter.weights, joined)
        choice = draft_choice(op, config, drafter.weights, state)
        assert isinstance(choice, NpuChoice)
        token, joined = choice.token, hidden
        made = {signatures.LOGITS: choice.logits, signatures.PROJECTED_ACTIVATIONS: hidden}
        if choice.scored is not None and choice.top_clusters is not None:
            made |= {signatures.DRAFT_SCORED: choice.scored, TOP_CLUSTERS: choice.top_clusters}
        outputs |= {of_step(name, step): tensor for name, tensor in made.items()}
    return outputs


def _scaled(table: Weight) -> Weight:
    """A table whose rows are embeddings as they are, under another name than the drafter's own table has."""
    factor = np.float32(table.shape[1] ** 0.5)
    return Weight(f"target.{table.name}", table.shape, lambda: table.read() * factor)
