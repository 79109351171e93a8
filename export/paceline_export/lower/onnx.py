"""The ONNX lowering: target.onnx and drafter.onnx from the one model definition.

The target sees the slots of its caches through masks, and writes its rows where they lie. The drafter owns no rows, and is
given views of exactly those that it may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from paceline import signatures
from paceline.manifest import GraphFiles
from paceline.signatures import CacheSpec, Port, Signature
from paceline_export.checkpoint import Drafter, Target
from paceline_export.lower.caches import cache_specs, drafter_caches
from paceline_export.lower.external_data import ExternalData
from paceline_export.lower.onnx_ops import OPSETS, GraphState, OnnxOps, Rows
from paceline_export.lower.onnx_weights import GraphWeights
from paceline_export.model.drafter import draft_choice, draft_state
from paceline_export.model.target import TABLE, fill, finish_rows
from paceline_export.rounding import Rounding
from paceline_export.weights import Progress, Weight

IR_VERSION = 11
TARGET_FILE, DRAFTER_FILE = "target.onnx", "drafter.onnx"


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
    op = OnnxOps(state, inputs[signatures.INPUT_POS], _rows(specs, inputs))
    op.prepare_rotation(list(config.ropes.values()))
    for kind in {spec.kind: None for spec in specs}:  # in order: the same export gives the same bytes
        op.starts[kind], op.masks[kind] = inputs[signatures.CACHE_START[kind]], inputs[signatures.MASK[kind]]
    filled = fill(op, config, weights, inputs[signatures.TOKENS])
    # Prefill takes the other branch, and so skips every layer that owns no KV.
    branch = op.branch()
    rows = finish_rows(branch, config, weights, filled)
    nothing = op.branch()
    empty = [
        nothing.node("Identity", nothing.constant(np.zeros((0, size)), np.float32))
        for size in (config.vocab_size, config.hidden_size)
    ]
    branches: dict[str, Any] = {"then_branch": _graph("emit", rows, branch), "else_branch": _graph("fill", empty, nothing)}
    emitted = op.nodes("If", inputs[signatures.EMIT], outputs=2, **branches)
    caches = [value for spec in specs for value in (*op.rows[spec.layer].keys, *op.rows[spec.layer].values)]
    _save(folder / TARGET_FILE, signature, inputs, [*emitted, *caches], op)
    return signature


def _write_drafter(folder: Path, target: Target, drafter: Drafter, stored: GraphWeights, of_target: GraphWeights) -> Signature:
    config, state = drafter.config, GraphState(stored)
    specs = drafter_caches(target.config, config)
    signature = signatures.onnx_drafter(specs, config.target_hidden_size, config.scored_tokens, config.vocab_size)
    inputs = {port.name: _value(port) for port in signature.inputs}
    op = OnnxOps(state, inputs[signatures.INPUT_POS], _rows(specs, inputs))
    op.prepare_rotation(list(config.ropes.values()))
    # Under another name, because the drafter has a table of the same checkpoint name.
    target_table = Weight(f"target.{TABLE}", target.weights[TABLE].shape, target.weights[TABLE].read)
    stored.borrow(of_target, TABLE, target_table.name)
    token, hidden = inputs[signatures.TOKEN], inputs[signatures.ACTIVATIONS]
    head_state, projected = draft_state(op, config, drafter.weights, target_table, token, hidden)
    choice = draft_choice(op, config, drafter.weights, head_state)
    scored = [] if choice.scored is None else [choice.scored]
    outputs = [choice.token, choice.logit, choice.logsumexp, projected, choice.logits, *scored]
    _save(folder / DRAFTER_FILE, signature, inputs, outputs, op)
    return signature


def _rows(specs: Sequence[CacheSpec], inputs: dict[str, ir.Value]) -> dict[int, Rows]:
    """The KV rows of every layer, as a graph is given them."""

    def heads(spec: CacheSpec, tensor: str) -> list[ir.Value]:
        return [inputs[name] for name in spec.head_names(tensor)]

    return {spec.layer: Rows(spec, heads(spec, spec.key), heads(spec, spec.value)) for spec in specs}


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
