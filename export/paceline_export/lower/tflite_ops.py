"""The op vocabulary as TFLite operators, chosen so that XNNPACK takes all but lookups, cache writes and integers.

Inside a graph B is 1 and T is a number: plain values are [1, T, D], folded ones [1, T, groups, size]. Keys and values of
a layer are one tensor [1, 1, S, H] for each kv head, since only one head's rows are contiguous.

A row's result must not depend on T, bit for bit: matrix products are sums in one order whatever the number of rows, and
the sums of a softmax have the same order as long as S and the slot of a row change by whole blocks (`ROW_BLOCK`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from paceline.signatures import CacheKind
from paceline_export.config import ClusteredHead, Rope
from paceline_export.lower.flatbuffer import Builtin, Tensor
from paceline_export.lower.tflite_plain import PlainOps
from paceline_export.model.ops import DraftChoice
from paceline_export.weights import Weight, pieces_by_cluster, read_permutation


@dataclass(frozen=True)
class Rows:
    """The KV rows of one layer: keys and values, each one tensor [1, 1, S, H] for every kv head."""

    kind: CacheKind
    keys: list[Tensor]
    values: list[Tensor]


@dataclass
class TfliteOps(PlainOps):
    """`Ops` on the tensors of one subgraph.

    Attributes:
        rows: layer -> its KV rows; `cache_update` replaces the entry by the rows after the write.
        starts: kind of cache -> int32 [4], where this call's rows go: [0, 0, slot, 0].
    """

    rows: dict[int, Rows] = field(default_factory=dict)
    starts: dict[CacheKind, Tensor] = field(default_factory=dict)

    def embedding(self, table: Weight, tokens: Tensor) -> Tensor:
        count, width = tokens.shape[-1], table.shape[1]
        flat = self.reshape(tokens, count, dtype="int32")
        looked_up = self.node(Builtin.EMBEDDING_LOOKUP, [flat, self.weight(table)], (count, width))
        return self.reshape(looked_up, 1, count, width)

    def prepare_rotation(self, positions: Tensor, ropes: Sequence[Rope], step: int = 0) -> None:
        """Tables of this call's positions int32 [T] plus `step`, computed in the graph: no table bounds the context.

        The sines carry the sign of rotate-half: the low half of a head subtracts.
        """
        count = positions.shape[0]
        turns = self.node(Builtin.CAST, [positions], positions.shape, schema.CastOptionsT())
        turns = self.reshape(self.add(turns, self.constant([step])) if step else turns, 1, count, 1, 1)
        for rope in ropes:
            half = rope.inverse_frequencies()
            shape = (1, count, 1, rope.head_dim)
            frequencies = self.constant(np.concatenate([half, half])[None, None, None])
            angles = self.node(Builtin.MUL, [turns, frequencies], shape, schema.MulOptionsT())
            sign = self.constant(np.repeat([-1.0, 1.0], half.size)[None, None, None])
            cos, sin = self.node(Builtin.COS, [angles], shape), self.node(Builtin.SIN, [angles], shape)
            self.tables[rope] = (cos, self.multiply(sin, sign))

    def cache_update(self, layer: int, k: Tensor, v: Tensor) -> Rows:
        past = self.rows[layer]
        start = self.starts[past.kind]
        _, count, _, size = k.shape

        def write(cached: Tensor, new: Tensor, head: int) -> Tensor:
            row = self.reshape(self.slice(new, 2, head, 1) if new.shape[2] > 1 else new, 1, 1, count, size)
            inputs = [cached, row, start]
            return self.node(Builtin.DYNAMIC_UPDATE_SLICE, inputs, cached.shape, schema.DynamicUpdateSliceOptionsT())

        keys, values = ([write(c, new, h) for h, c in enumerate(old)] for old, new in ((past.keys, k), (past.values, v)))
        self.rows[layer] = Rows(past.kind, keys, values)
        return self.rows[layer]

    def cache_read(self, layer: int) -> Rows:
        return self.rows[layer]

    def attention(self, q: Tensor, kv: Rows, window: int | None) -> Tensor:
        """[1, T, N, H]; the mask of the cache's kind already knows the window."""
        group = q.shape[2] // len(kv.keys)
        parts = [
            self._attention_of_head(self.slice(q, 2, head * group, group) if len(kv.keys) > 1 else q, k, v, kv.kind)
            for head, (k, v) in enumerate(zip(kv.keys, kv.values, strict=True))
        ]
        return self.join(parts, axis=2)

    def _attention_of_head(self, q: Tensor, k: Tensor, v: Tensor, kind: CacheKind) -> Tensor:
        """All query heads [1, T, G, H] of one kv head, as one product with its rows."""
        _, count, heads, size = q.shape
        slots = k.shape[2]
        folded = self.reshape(q, 1, 1, count * heads, size)
        scores = self.product(folded, k, (1, 1, count * heads, slots), transposed=True)
        scores = self.add(self.reshape(scores, 1, count, heads, slots), self.masks[kind])
        options = schema.SoftmaxOptionsT()
        options.beta = 1.0
        shares = self.node(Builtin.SOFTMAX, [scores], scores.shape, options)
        shares = self.reshape(shares, 1, 1, count * heads, slots)
        return self.reshape(self.product(shares, v, (1, 1, count * heads, size), transposed=False), *q.shape)

    def clustered_head(self, x: Tensor, centroids: Weight, ordering: Weight, table: Weight, head: ClusteredHead) -> DraftChoice:
        size = table.shape[0] // head.clusters
        members = read_permutation(ordering).reshape(head.clusters, size)
        tokens = self.stored(ordering.name, members.shape, "int32", lambda: [members.astype(np.int32)])
        scores = self.linear(x, centroids)
        top, values = self.graph.tensor((1, 1, head.top_k), "int32"), self.graph.tensor((1, 1, head.top_k))
        count = self.constant(head.top_k, np.int32)
        self.graph.operator(Builtin.TOPK_V2, [scores, count], [values, top], schema.TopKV2OptionsT())
        best, scored = self.reshape(top, head.top_k, dtype="int32"), head.top_k * size
        choice = self._choice(self._cluster_logits(x, best, table, members))
        options = schema.GatherOptionsT
        candidates = self.node(Builtin.GATHER, [tokens, best], (head.top_k, size), options(), "int32")
        candidates = self.reshape(candidates, scored, dtype="int32")
        token = self.node(Builtin.GATHER, [candidates, choice.token], (1,), options(), "int32")
        return replace(choice, token=token, scored=candidates)

    def _cluster_logits(self, x: Tensor, best: Tensor, table: Weight, members: NDArray[np.int64]) -> Tensor:
        """Logits [1, 1, top_k * size] of the tokens of clusters `best` [top_k], in the order of `members` [C, size]."""
        (clusters, size), width, top_k = members.shape, table.shape[1], best.shape[0]
        name, scheme = f"{table.name}.by_cluster", self.rounding.scheme(table.name)
        pieces = partial(pieces_by_cluster, table, members)

        def look_up(rows: Tensor) -> Tensor:
            return self.node(Builtin.EMBEDDING_LOOKUP, [best, rows], (top_k, *rows.shape[1:]))

        # A cluster's rows lie together as one, so that they are read in one go.
        if scheme is None:
            rows = look_up(self.stored(name, (clusters, size, width), "float32", pieces))
        else:
            integer = self.integer(name, table, pieces, together=size)
            rows = self.reshape(look_up(integer.tensor(self.graph)), top_k, size, width)
        logits = self.reshape(self.product(x, rows, (top_k, 1, size), transposed=True), 1, 1, top_k * size)
        if scheme is None or scheme.block:
            return logits
        return self.multiply(logits, self.reshape(look_up(integer.scales_tensor(self.graph)), *logits.shape))

    def dense_head(self, x: Tensor, table: Weight) -> DraftChoice:
        return self._choice(self.linear(x, table))

    def _choice(self, logits: Tensor) -> DraftChoice:
        """The index of the largest of logits [1, 1, N], its value and the log-sum-exp, each [1]."""
        flat = self.reshape(logits, 1, logits.shape[-1])
        axis = self.constant([1], np.int32)
        options = schema.ArgMaxOptionsT()
        options.outputType = schema.TensorType.INT32
        index = self.node(Builtin.ARG_MAX, [flat, axis], (1,), options, "int32")
        keep = schema.ReducerOptionsT()
        keep.keepDims = True
        largest = self.node(Builtin.REDUCE_MAX, [flat, axis], (1, 1), keep)
        shifted = self.node(Builtin.SUB, [flat, largest], flat.shape, schema.SubOptionsT())
        total = self.node(Builtin.SUM, [self.node(Builtin.EXP, [shifted], flat.shape), axis], (1, 1), keep)
        logsumexp = self.add(self.node(Builtin.LOG, [total], (1, 1)), largest)
        flat = self.reshape(logits, logits.shape[-1])
        return DraftChoice(index, self.reshape(largest, 1), self.reshape(logsumexp, 1), flat, scored=None)
