"""The op vocabulary as ONNX nodes (opset 24 and onnxruntime's contrib ops).

Inside a graph B is 1 and dropped: plain values are [T, D], folded ones [T, groups, size], and values on their way
into attention [1, T, heads * H]. Linear weights keep the checkpoint's [out, in] layout (Gemm with transB), so the
tied embedding and head share one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import onnx_ir as ir

from paceline_export.config import ClusteredHead, Rope
from paceline_export.lower.onnx_head import cluster_logits
from paceline_export.lower.onnx_weights import GraphWeights
from paceline_export.model.ops import DraftChoice
from paceline_export.weights import Weight, read_permutation

CONTRIB = "com.microsoft"
INT8_ACTIVATIONS = 4  # MatMulNBits rounds each block of its input to int8; the other levels are slower
OPSETS = {"": 24, CONTRIB: 1}


@dataclass
class GraphState:
    """What the main graph and its branches share: weights, and unique names."""

    weights: GraphWeights
    node_count: int = 0


@dataclass
class OnnxOps:
    """The ops that do not depend on how attention reaches the KV rows; see `TargetOps` and `DrafterOps`."""

    state: GraphState
    positions: ir.Value  # int64 [T]
    tape: ir.tape.Tape = field(default_factory=ir.tape.Tape)
    tables: dict[Rope, tuple[ir.Value, ir.Value]] = field(default_factory=dict)

    def node(self, kind: str, *inputs: ir.Value, domain: str = "", **attributes: Any) -> ir.Value:
        """Adds a node with one output and returns that."""
        return self.nodes(kind, *inputs, domain=domain, outputs=1, **attributes)[0]

    def nodes(self, kind: str, *inputs: ir.Value, domain: str = "", outputs: int, **attributes: Any) -> Sequence[ir.Value]:
        """Adds a node with several outputs and returns them."""
        self.state.node_count += 1
        name = f"{kind}_{self.state.node_count}"
        made = self.tape.op_multi_out(kind, list(inputs), attributes, num_outputs=outputs, domain=domain, name=name)
        for index, value in enumerate(made):
            value.name = f"{name}.{index}"
        return made

    def constant(self, values: Any, dtype: Any = np.int64) -> ir.Value:
        """A small constant, kept in the graph file and shared where it repeats."""
        array = np.asarray(values, dtype)
        name = f"constant.{array.dtype}.{list(array.shape)}.{sha256(array.tobytes()).hexdigest()[:16]}"
        return self.state.weights.initializer(ir.tensor(array, name=name))

    def weight(self, weight: Weight) -> ir.Value:
        """A weight that is float32 in every recipe."""
        return self.state.weights.floats(weight)

    def reshape(self, x: ir.Value, *shape: int) -> ir.Value:
        return self.node("Reshape", x, self.constant(shape))

    # The vocabulary.

    def embedding(self, table: Weight, tokens: ir.Value) -> ir.Value:
        integers = self.state.weights.integers(table)
        if integers is None:
            return self.node("Gather", self.weight(table), tokens, axis=0)
        attributes = {"bits": integers.bits, "block_size": integers.block, "gather_axis": 0, "quantize_axis": 1}
        inputs = integers.rows, tokens, integers.scales
        rows, width = self.node("GatherBlockQuantized", *inputs, domain=CONTRIB, **attributes), table.shape[1]
        filled_up = width % integers.block
        return self.node("Slice", rows, *map(self.constant, ([0], [width], [1]))) if filled_up else rows

    def linear(self, x: ir.Value, weight: Weight) -> ir.Value:
        integers = self.state.weights.integers(weight)
        if integers is None:
            return self.node("Gemm", x, self.weight(weight), transB=1)
        size, width = weight.shape
        attributes = {"bits": integers.bits, "block_size": integers.block, "K": width, "N": size}
        inputs = x, integers.matrix, integers.scales
        return self.node("MatMulNBits", *inputs, domain=CONTRIB, accuracy_level=INT8_ACTIVATIONS, **attributes)

    def rms_norm(self, x: ir.Value, weight: Weight | None, epsilon: float) -> ir.Value:
        scale = self.constant([1.0], np.float32) if weight is None else self.weight(weight)
        normed = self.node("RMSNormalization", x, scale, axis=-1, epsilon=epsilon)
        return normed if x.shape is None else shaped(normed, x.shape)

    def gelu(self, x: ir.Value) -> ir.Value:
        return self.node("Gelu", x, approximate="tanh")

    def add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.node("Add", x, y)

    def multiply(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.node("Mul", x, y)

    def scale(self, x: ir.Value, factor: float) -> ir.Value:
        return self.node("Mul", x, self.constant(factor, np.float32))

    def scale_by(self, x: ir.Value, weight: Weight) -> ir.Value:
        return self.node("Mul", x, self.weight(weight))

    def softcap(self, x: ir.Value, cap: float) -> ir.Value:
        scaled = self.node("Div", x, self.constant(cap, np.float32))
        return self.node("Mul", self.node("Tanh", scaled), self.constant(cap, np.float32))

    def concat(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.node("Concat", x, y, axis=-1)

    def fold(self, x: ir.Value, groups: int) -> ir.Value:
        # `joined` asks the shape for the number of heads.
        return shaped(self.reshape(x, 0, groups, -1), ir.Shape(["T", groups, None]))

    def pick(self, x: ir.Value, group: int) -> ir.Value:
        return self.node("Gather", x, self.constant(group), axis=1)

    def unfold_heads(self, x: ir.Value) -> ir.Value:
        return self.node("Squeeze", x, self.constant([0]))

    def rotate(self, x: ir.Value, rope: Rope) -> ir.Value:
        cos, sin = self.tables[rope]
        joined = self.joined(x, rope.head_dim)
        rotated = self.node("RotaryEmbedding", joined, cos, sin, num_heads=width(joined) // rope.head_dim)
        return shaped(rotated, ir.Shape([1, "T", width(joined)]))

    def joined(self, x: ir.Value, head_dim: int) -> ir.Value:
        """[T, heads, H] -> [1, T, heads * H]."""
        size = width(x, axis=1) * head_dim
        return shaped(self.reshape(x, 1, -1, size), ir.Shape([1, "T", size]))

    def prepare_rotation(self, ropes: Sequence[Rope]) -> None:
        """Cosines and sines [1, T, H / 2] of this call's positions, computed in the graph: no table bounds the context."""
        positions = self.reshape(self.node("Cast", self.positions, to=ir.DataType.FLOAT), 1, -1, 1)
        for rope in ropes:
            angles = self.node("Mul", positions, self.constant(rope.inverse_frequencies(), np.float32))
            self.tables[rope] = (self.node("Cos", angles), self.node("Sin", angles))

    def clustered_head(
        self, x: ir.Value, centroids: Weight, ordering: Weight, table: Weight, head: ClusteredHead
    ) -> DraftChoice:
        # A cluster's rows lie together, in the order of token_ordering, so that one copy fetches all of them.
        members = read_permutation(ordering).reshape(head.clusters, -1)
        tokens = self.state.weights.stored(ordering.name, members.shape, ir.DataType.INT64, lambda: [members])
        scores = self.linear(x, centroids)
        _, top = self.nodes("TopK", scores, self.constant([head.top_k]), outputs=2, axis=-1)
        best = self.reshape(top, -1)
        logits = cluster_logits(self, x, best, table, members)
        scored = self.reshape(self.node("Gather", tokens, best, axis=0), -1)
        choice = self.node("ArgMax", logits, axis=-1, keepdims=0)
        return self._choice(logits, self.node("Gather", scored, choice, axis=0))

    def dense_head(self, x: ir.Value, table: Weight) -> DraftChoice:
        logits = self.linear(x, table)
        return self._choice(logits, self.node("ArgMax", logits, axis=-1, keepdims=0))

    def _choice(self, logits: ir.Value, token: ir.Value) -> DraftChoice:
        axis = self.constant([-1])
        return DraftChoice(
            token,
            self.node("ReduceMax", logits, axis, keepdims=0),
            self.node("ReduceLogSumExp", logits, axis, keepdims=0),
        )


def shaped(x: ir.Value, shape: ir.Shape) -> ir.Value:
    """Notes the shape of a float32 value, for the ops that need a dimension of it."""
    x.shape, x.type = shape, ir.TensorType(ir.DataType.FLOAT)
    return x


def width(x: ir.Value, axis: int = 2) -> int:
    """A known dimension of a value on its way into attention."""
    assert x.shape is not None
    size = x.shape[axis]
    assert isinstance(size, int)
    return size
