"""The ONNX lowering: target.onnx and drafter.onnx from the one model definition.

Attention differs between the two. The target's rows are written in place by GroupQueryAttention, which scans a
buffer up to a length. The drafter owns no rows, and reads exact-length views of the target's with the plain
Attention op, which then needs neither mask nor length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from paceline import signatures
from paceline.bundle import GraphFiles
from paceline.signatures import CacheKind, CacheSpec, Port, Signature
from paceline_export.checkpoint import Drafter, Target
from paceline_export.lower.caches import cache_specs, drafter_caches
from paceline_export.lower.external_data import ExternalData
from paceline_export.lower.onnx_ops import CONTRIB, OPSETS, GraphState, OnnxOps, width
from paceline_export.lower.onnx_weights import GraphWeights
from paceline_export.model.drafter import draft_choice, draft_state
from paceline_export.model.target import TABLE, fill, finish_rows
from paceline_export.rounding import Rounding
from paceline_export.weights import Progress, Weight

IR_VERSION = 11
TARGET_FILE, DRAFTER_FILE = "target.onnx", "drafter.onnx"
Pair = tuple[ir.Value, ir.Value]  # keys and values


@dataclass(frozen=True)
class Rows:
    """The KV rows of one target layer; `new` are rows [1, T, K * H] that attention still has to write."""

    spec: CacheSpec
    cached: Pair
    new: Pair | None = None


@dataclass
class TargetOps(OnnxOps):
    """Attention over the target's own cache buffers.

    Attributes:
        past: layer -> its rows before the call.
        present: layer -> its rows after, once written.
        counts: for each kind of cache (index of the last row int32 [1], number of rows int32 []).
    """

    past: dict[int, Rows] = field(default_factory=dict)
    present: dict[int, Rows] = field(default_factory=dict)
    counts: dict[CacheKind, Pair] = field(default_factory=dict)

    def cache_update(self, layer: int, k: ir.Value, v: ir.Value) -> Rows:
        past = self.past[layer]
        return Rows(past.spec, past.cached, (k, self.joined(v, past.spec.head_dim)))

    def cache_read(self, layer: int) -> Rows:
        return self.present[layer]

    def attention(self, q: ir.Value, kv: Rows, window: int | None) -> ir.Value:
        spec = kv.spec
        attributes: dict[str, Any] = {
            "num_heads": width(q) // spec.head_dim,
            "kv_num_heads": spec.kv_heads,
            "scale": 1.0,
            "do_rotary": 0,
        }
        if window is not None:
            attributes["local_window_size"] = window
        nothing = self.constant(np.zeros((1, 0, spec.kv_heads * spec.head_dim)), np.float32)
        k, v = kv.new or (nothing, nothing)  # without new rows the op only reads
        inputs = (q, k, v, *kv.cached, *self.counts[spec.kind])
        if kv.new is None:
            return self.node("GroupQueryAttention", *inputs, domain=CONTRIB, **attributes)
        attended, *present = self.nodes("GroupQueryAttention", *inputs, domain=CONTRIB, outputs=3, **attributes)
        self.present[spec.layer] = Rows(spec, (present[0], present[1]))
        return attended


@dataclass
class DrafterOps(OnnxOps):
    """Attention over exact-length views [1, S, H], one for each kv head; `views` is layer -> (keys, values)."""

    views: dict[int, tuple[list[ir.Value], list[ir.Value]]] = field(default_factory=dict)

    def cache_update(self, layer: int, k: ir.Value, v: ir.Value) -> None:
        raise AssertionError("a drafter owns no KV rows")

    def cache_read(self, layer: int) -> tuple[list[ir.Value], list[ir.Value]]:
        return self.views[layer]

    def attention(self, q: ir.Value, kv: tuple[list[ir.Value], list[ir.Value]], window: int | None) -> ir.Value:
        keys, values = kv
        head_dim = width(keys[0])
        q_heads = width(q) // head_dim // len(keys)
        parts = [q] if len(keys) == 1 else self.nodes("Split", q, outputs=len(keys), axis=2, num_outputs=len(keys))
        attended = [
            self.node("Attention", part, k, v, q_num_heads=q_heads, kv_num_heads=1, scale=1.0)
            for part, k, v in zip(parts, keys, values, strict=True)
        ]
        return attended[0] if len(attended) == 1 else self.node("Concat", *attended, axis=2)


def write_pair(
    folder: Path, target: Target, drafter: Drafter, target_rounding: Rounding, drafter_rounding: Rounding, progress: Progress
) -> GraphFiles:
    """Writes both graphs and their weight files into `folder`; the drafter's input table is the target's."""
    with ExternalData(folder, f"{TARGET_FILE}.data", progress) as data:
        weights = GraphWeights(data, target_rounding)
        target_signature = _write_target(folder, target, weights)
    with ExternalData(folder, f"{DRAFTER_FILE}.data", progress) as data:
        drafter_signature = _write_drafter(folder, target, drafter, GraphWeights(data, drafter_rounding), weights)
    described = {TARGET_FILE: target_signature, DRAFTER_FILE: drafter_signature}
    return GraphFiles(
        {"target": TARGET_FILE, "drafter": DRAFTER_FILE},
        {name: {signatures.MAIN: signature.to_json()} for name, signature in described.items()},
    )


def _write_target(folder: Path, target: Target, stored: GraphWeights) -> Signature:
    config, weights, state = target.config, target.weights, GraphState(stored)
    specs = cache_specs(config)
    signature = signatures.onnx_target(specs, config.hidden_size, config.vocab_size)
    inputs = {port.name: _value(port) for port in signature.inputs}
    op = TargetOps(state, inputs[signatures.INPUT_POS])
    op.prepare_rotation(list(config.ropes.values()))
    op.past = {spec.layer: Rows(spec, (inputs[spec.key], inputs[spec.value])) for spec in specs}
    for kind, name in ((CacheKind.FULL, signatures.ROWS), (CacheKind.LOCAL, signatures.LOCAL_ROWS)):
        last = op.node("Sub", inputs[name], op.constant([1], np.int32))
        op.counts[kind] = (last, op.node("Squeeze", inputs[name], op.constant([0])))
    filled = fill(op, config, weights, inputs[signatures.TOKENS])
    # Prefill takes the other branch, and so skips every layer that owns no KV.
    branch = TargetOps(state, op.positions, tables=op.tables, present=op.present, counts=op.counts)
    rows = finish_rows(branch, config, weights, filled)
    nothing = OnnxOps(state, op.positions)
    empty = [
        nothing.node("Identity", nothing.constant(np.zeros((0, size)), np.float32))
        for size in (config.vocab_size, config.hidden_size)
    ]
    branches: dict[str, Any] = {"then_branch": _graph("emit", rows, branch), "else_branch": _graph("fill", empty, nothing)}
    emitted = op.nodes("If", inputs[signatures.EMIT], outputs=2, **branches)
    caches = [value for spec in specs for value in op.present[spec.layer].cached]
    _save(folder / TARGET_FILE, signature, inputs, [*emitted, *caches], op)
    return signature


def _write_drafter(folder: Path, target: Target, drafter: Drafter, stored: GraphWeights, of_target: GraphWeights) -> Signature:
    config, state = drafter.config, GraphState(stored)
    specs = drafter_caches(target.config, config)
    signature = signatures.onnx_drafter(specs, config.target_hidden_size)
    inputs = {port.name: _value(port) for port in signature.inputs}
    op = DrafterOps(state, inputs[signatures.INPUT_POS])
    op.prepare_rotation(list(config.ropes.values()))
    op.views = {
        spec.layer: (
            [inputs[view] for view in spec.head_names(spec.key)],
            [inputs[view] for view in spec.head_names(spec.value)],
        )
        for spec in specs
    }
    # Under another name, because the drafter has a table of the same checkpoint name.
    target_table = Weight(f"target.{TABLE}", target.weights[TABLE].shape, target.weights[TABLE].read)
    stored.borrow(of_target, TABLE, target_table.name)
    token, hidden = inputs[signatures.TOKEN], inputs[signatures.ACTIVATIONS]
    head_state, projected = draft_state(op, config, drafter.weights, target_table, token, hidden)
    choice = draft_choice(op, config, drafter.weights, head_state)
    _save(folder / DRAFTER_FILE, signature, inputs, [choice.token, choice.logit, choice.logsumexp, projected], op)
    return signature


def _value(port: Port) -> ir.Value:
    kind = ir.TensorType(ir.DataType.from_numpy(np.dtype(port.dtype)))
    return ir.Value(name=port.name, type=kind, shape=ir.Shape(port.shape))


def _graph(name: str, outputs: Sequence[ir.Value], op: OnnxOps) -> ir.Graph:
    """A branch: it reads the outer graph's values, so it has no inputs."""
    for value in outputs:
        value.type = ir.TensorType(ir.DataType.FLOAT)
    return ir.Graph([], outputs, nodes=op.tape.nodes, name=name)


def _save(file: Path, signature: Signature, inputs: dict[str, ir.Value], outputs: list[ir.Value], op: OnnxOps) -> None:
    for port, value in zip(signature.outputs, outputs, strict=True):
        shaped = _value(port)
        value.name, value.type, value.shape = shaped.name, shaped.type, shaped.shape
    graph = ir.Graph(
        list(inputs.values()),
        outputs,
        nodes=op.tape.nodes,
        initializers=list(op.state.weights.initializers.values()),
        opset_imports=OPSETS,
        name=file.stem,
    )
    ir.save(ir.Model(graph, ir_version=IR_VERSION, producer_name="paceline"), file)
