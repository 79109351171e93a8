"""The op vocabulary as ONNX nodes (opset 24 and onnxruntime's contrib ops).

Inside a graph B is 1 and dropped: plain values are [T, D], folded ones [T, groups, size], rotated and attended ones
[1, T, heads * H], and the KV rows of a kv head [1, S, H]. Linear weights keep the checkpoint's [out, in] layout (Gemm
with transB), so the tied embedding and head share one tensor.

Attention is plain products of matrices: all heads that read a kv head are rows of one product, which is several times
faster on the CPU than onnxruntime's attention operators, and a row of the result does not depend, in any bit, on how many
rows are computed with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
import onnx_ir as ir

from paceline.signatures import CacheKind, CacheSpec
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


@dataclass(frozen=True)
class Rows:
    """The KV rows of one target layer: keys and values, each one value [1, S, H] for every kv head."""

    spec: CacheSpec
    keys: list[ir.Value]
    values: list[ir.Value]


@dataclass
class OnnxOps:
    """`Ops` on the values of one graph.

    Attributes:
        positions: int64 [T].
        rows: layer -> its KV rows; `cache_update` replaces the entry by the rows after the write.
        starts: kind of cache -> int64 [1], the slot of this call's first row.
        masks: kind of cache -> float32 [T, 1, S]; none where every row that is given is seen.
        tables: rope -> cosines and sines [1, T, H / 2] of this call's positions.
    """

    state: GraphState
    positions: ir.Value
    rows: dict[int, Rows] = field(default_factory=dict)
    starts: dict[CacheKind, ir.Value] = field(default_factory=dict)
    masks: dict[CacheKind, ir.Value] = field(default_factory=dict)
    tables: dict[Rope, tuple[ir.Value, ir.Value]] = field(default_factory=dict)
    tape: ir.tape.Tape = field(default_factory=ir.tape.Tape)

    def branch(self) -> OnnxOps:
        """The same graph's values, for a subgraph with nodes of its own."""
        return replace(self, tape=ir.tape.Tape())

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

    def cache_update(self, layer: int, k: ir.Value, v: ir.Value) -> Rows:
        past = self.rows[layer]
        spec = past.spec

        def write(cached: Sequence[ir.Value], new: ir.Value) -> list[ir.Value]:
            parts = self.by_head(new, spec.kv_heads, spec.head_dim)
            pairs = zip(cached, parts, strict=True)
            return [self.node("TensorScatter", rows, part, self.starts[spec.kind], axis=1) for rows, part in pairs]

        self.rows[layer] = Rows(spec, write(past.keys, k), write(past.values, self.joined(v, spec.head_dim)))
        return self.rows[layer]

    def cache_read(self, layer: int) -> Rows:
        return self.rows[layer]

    def attention(self, q: ir.Value, kv: Rows, window: int | None) -> ir.Value:
        """[1, T, N * H]; the mask of the cache's kind, or the choice of rows that are given, already knows the window."""
        head_dim, kv_heads = kv.spec.head_dim, len(kv.keys)
        heads = width(q) // head_dim // kv_heads
        parts = self.by_head(q, kv_heads, heads * head_dim)
        attended = [
            self._attention_of_head(self.reshape(part, 1, -1, head_dim), k, v, kv.spec, heads)
            for part, k, v in zip(parts, kv.keys, kv.values, strict=True)
        ]
        return attended[0] if kv_heads == 1 else self.node("Concat", *attended, axis=2)

    def _attention_of_head(self, q: ir.Value, k: ir.Value, v: ir.Value, spec: CacheSpec, heads: int) -> ir.Value:
        """All query heads of one kv head: q [1, T * heads, H] -> [1, T, heads * H]."""
        scores = self.node("FusedMatMul", q, k, domain=CONTRIB, transB=1)
        if spec.kind in self.masks:
            by_row = self.add(self.reshape(scores, -1, heads, 0), self.masks[spec.kind])
            scores = self.reshape(by_row, 1, -1, 0)
        attended = self.node("MatMul", self.node("Softmax", scores, axis=-1), v)
        return self.reshape(attended, 1, -1, heads * spec.head_dim)

    def by_head(self, x: ir.Value, count: int, size: int) -> list[ir.Value]:
        """[1, T, count * size] -> `count` values [1, T, size]."""
        return [x] if count == 1 else list(self.nodes("Split", x, outputs=count, axis=2, num_outputs=count))

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
        return self._choice(logits, self.node("Gather", scored, choice, axis=0), scored)

    def dense_head(self, x: ir.Value, table: Weight) -> DraftChoice:
        logits = self.linear(x, table)
        return self._choice(logits, self.node("ArgMax", logits, axis=-1, keepdims=0), None)

    def _choice(self, logits: ir.Value, token: ir.Value, scored: ir.Value | None) -> DraftChoice:
        """Of logits [1, N] of the tokens `scored` [N]."""
        axis = self.constant([-1])
        return DraftChoice(
            token,
            self.node("ReduceMax", logits, axis, keepdims=0),
            self.node("ReduceLogSumExp", logits, axis, keepdims=0),
            self.reshape(logits, -1),
            scored,
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
