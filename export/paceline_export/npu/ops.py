"""The op vocabulary for a neural processor: TFLite operators of fixed sizes, without writes, lookups or trigonometry.

A call's rows attend to the old slots and to each other: scores and values of both are joined, and the new rows come out of the
graph. Values are stored transposed, [1, K, H, S], as Google's bundles for NPUs have them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from paceline.npu.scales import Scale, least
from paceline.signatures import CacheKind
from paceline_export.config import ClusteredHead
from paceline_export.lower.flatbuffer import Builtin, Tensor
from paceline_export.lower.tflite_plain import KEEPS_DIMENSIONS, TAKES_INT4
from paceline_export.model.ops import DraftChoice
from paceline_export.npu.nodes import StaticNodes
from paceline_export.npu.numbers import quantization
from paceline_export.weights import Weight, pieces_by_cluster, read_permutation


@dataclass(frozen=True)
class SlicedRows:
    """The KV rows of one layer, of every kv head: keys [1, 1, S, H], values [1, 1, H, S], old ones and then a call's own."""

    kind: CacheKind
    keys: list[list[Tensor]]
    values: list[list[Tensor]]


@dataclass(frozen=True)
class NpuChoice(DraftChoice):
    """What a step's head decides.

    Attributes:
        top_clusters: the scores of the chosen clusters; None where there are none.
    """

    top_clusters: Tensor | None = None


@dataclass
class NpuOps(StaticNodes):
    """`Ops` on the tensors of one subgraph.

    Attributes:
        old: layer -> its KV rows before the call.
        slices: layer -> the keys and values that the call adds.
        masked: scores behind a mask -> the same in front of it, by name.
        visible: kind of cache -> [1, T, 1, S], 1 for a row that is visible and 0 for others.
    """

    old: dict[int, SlicedRows] = field(default_factory=dict)
    slices: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    masked: dict[str, str] = field(default_factory=dict)
    visible: dict[CacheKind, Tensor] = field(default_factory=dict)

    def embedding(self, table: Weight, tokens: Tensor) -> Tensor:
        """Rows of a table that has integers of the graph's own size, twice the bytes of what the CPU looks up."""
        rows = self.table(table.name, np.concatenate(list(table.pieces())))
        count, width = tokens.shape[-1], table.shape[1]
        found = self.node(Builtin.GATHER, [rows, tokens], (count, width), schema.GatherOptionsT())
        return self.reshape(found, 1, count, width)

    def _version(self, weight: Weight) -> int:
        scheme = self.rounding.scheme(weight.name)
        return TAKES_INT4 if scheme and scheme.bits == 4 else KEEPS_DIMENSIONS

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        options = schema.AddOptionsT()
        options.potScaleInt16 = False  # scales are no powers of two
        return self.node(Builtin.ADD, [x, y], x.shape, options)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return self.scale(self.node(Builtin.TANH, [self.scale(x, 1 / cap)], x.shape), cap)

    def show(self, kind: CacheKind, mask: Tensor) -> None:
        """Takes a mask [1, 1, T, S].

        A softmax of 16-bit integers gives each masked slot a share of 2^-15, and so whatever lies there a part in the result.
        So shares are multiplied by what the mask says in another way: the bottom of its range and it are 0 where a slot is
        hidden, and where it is not, their sum is cut off at 1.
        """
        self.masks[kind] = self.reshape(mask, 1, mask.shape[2], 1, mask.shape[3])
        if self.numbers.dtype == "float32":
            return
        (step,), (zero,) = self._described(mask).scale, self._described(mask).zeroPoint
        bottom = self.constant([step * (zero - least(self.numbers.dtype))])
        options = schema.AddOptionsT()
        options.potScaleInt16 = False
        one, shape = Scale.of_range(0.0, 1.0, self.numbers.dtype), self.masks[kind].shape
        self.visible[kind] = self.unnamed(Builtin.ADD, [self.masks[kind], bottom], shape, self.numbers.dtype, one, options)

    def read(self, layer: int, kind: CacheKind, keys: Tensor, values: Tensor) -> None:
        """Takes the KV tensors of a layer: keys [1, K, S, H], values [1, K, H, S]."""
        self.old[layer] = SlicedRows(kind, [[head] for head in self._heads(keys)], [[head] for head in self._heads(values)])

    def cache_update(self, layer: int, k: Tensor, v: Tensor) -> SlicedRows:
        old = self.old[layer]
        _, count, heads, size = k.shape
        for new, past in ((k, old.keys), (v, old.values)):  # what is written has the scale of where it goes
            self._tensor(new).quantization = self._described(past[0][0])
        turned = k if heads == 1 else self._turned(k, (0, 2, 1, 3))
        keys = self.reshape(turned, 1, heads, count, size)
        values = self._turned(self.reshape(v, 1, count, heads, size), (0, 2, 3, 1))
        self.slices[layer] = keys, values
        grown = [
            [[*past, new] for past, new in zip(before, self._heads(added), strict=True)]
            for before, added in ((old.keys, keys), (old.values, values))
        ]
        self.old[layer] = SlicedRows(old.kind, *grown)
        return self.old[layer]

    def cache_read(self, layer: int) -> SlicedRows:
        return self.old[layer]

    def attention(self, q: Tensor, kv: SlicedRows, window: int | None) -> Tensor:
        """[1, T, N, H]; the mask of the cache's kind already knows the window."""
        group = q.shape[2] // len(kv.keys)
        parts = [
            self._attend(self.slice(q, 2, head * group, group) if len(kv.keys) > 1 else q, keys, values, kv.kind)
            for head, (keys, values) in enumerate(zip(kv.keys, kv.values, strict=True))
        ]
        return self.join(parts, axis=2)

    def _attend(self, q: Tensor, keys: list[Tensor], values: list[Tensor], kind: CacheKind) -> Tensor:
        """All query heads [1, T, G, H] of one kv head."""
        _, count, heads, size = q.shape
        rows, mask = count * heads, self.masks[kind]
        folded = self.reshape(q, 1, 1, rows, size)
        parts = [self.product(folded, each, (1, 1, rows, each.shape[2]), transposed=True) for each in keys]
        unmasked, name = parts[0], f"a{self._count}"
        if len(parts) > 1:
            described = quantization(self.numbers.scale(name := self._next_name()))
            for part in parts:  # nobody else reads them, so they have the scale of the whole from the start
                self._tensor(part).quantization = described
            if unfilled := mask.shape[3] - sum(each.shape[2] for each in keys):  # see `new_slots`
                parts.append(self._zeros((1, 1, rows, unfilled), described))
                values = [*values, self._zeros((1, 1, size, unfilled), self._described(values[0]))]
            unmasked = self.joined_at(described, parts, 3, name)
        scores = self.add(self.reshape(unmasked, 1, count, heads, mask.shape[3]), mask)
        self.masked[f"a{self._count}"] = name
        options = schema.SoftmaxOptionsT()
        options.beta = 1.0
        shares = self.node(Builtin.SOFTMAX, [scores], scores.shape, options)
        if kind in self.visible:
            scale = self.numbers.fixed(Builtin.SOFTMAX)
            inputs = [shares, self.visible[kind]]
            shares = self.unnamed(Builtin.MUL, inputs, shares.shape, self.numbers.dtype, scale, schema.MulOptionsT())
        shares = self.reshape(shares, 1, 1, rows, mask.shape[3])
        # One product over all rows: sums of two would be rounded by themselves, and a row's result would depend on which of
        # the rows that it sees came with the same call.
        held = values[0] if len(values) == 1 else self.joined_at(self._described(values[0]), values, axis=3)
        attended = self.product(shares, held, (1, 1, rows, size), transposed=True)
        return self.reshape(attended, *q.shape)

    def clustered_head(self, x: Tensor, centroids: Weight, ordering: Weight, table: Weight, head: ClusteredHead) -> NpuChoice:
        width, size = table.shape[1], table.shape[0] // head.clusters
        members = read_permutation(ordering).reshape(head.clusters, size)
        scores = self._floats(self.linear(x, centroids))
        top, values = self.graph.tensor((1, 1, head.top_k), "int32"), self.graph.tensor((1, 1, head.top_k))
        count = self.constant(head.top_k, np.int32)
        self.graph.operator(Builtin.TOPK_V2, [scores, count], [values, top], schema.TopKV2OptionsT())
        best, scored = self.reshape(top, head.top_k, dtype="int32"), head.top_k * size
        # A cluster's rows lie together as one, so that they are read in one go.
        rows = np.concatenate(list(pieces_by_cluster(table, members))).reshape(head.clusters, size * width)
        options = schema.GatherOptionsT
        inputs = [self.table(f"{table.name}.by_cluster", rows), best]
        chosen = self.node(Builtin.GATHER, inputs, (head.top_k, size * width), options())
        logits = self.product(x, self.reshape(chosen, 1, scored, width), (1, 1, scored), transposed=True)
        tokens = self.constant(members, np.int32)
        candidates = self.node(Builtin.GATHER, [tokens, best], (head.top_k, size), options(), "int32")
        candidates = self.reshape(candidates, scored, dtype="int32")
        token = self.node(Builtin.GATHER, [candidates, self._largest(logits)], (1,), options(), "int32")
        return NpuChoice(token, None, None, logits, candidates, values)

    def dense_head(self, x: Tensor, table: Weight) -> NpuChoice:
        logits = self.linear(x, table)
        return NpuChoice(self._largest(logits), None, None, logits, None)

    def _largest(self, logits: Tensor) -> Tensor:
        options = schema.ArgMaxOptionsT()
        options.outputType = schema.TensorType.INT32
        flat = self._floats(self.reshape(logits, 1, logits.shape[-1]))
        return self.node(Builtin.ARG_MAX, [flat, self.constant([1], np.int32)], (1,), options, "int32")

    def _floats(self, x: Tensor) -> Tensor:
        """Numbers that are only compared: Qualcomm's compiler finds the largest of float32 and not of 16-bit ones."""
        if self.numbers.dtype == "float32":
            return x
        return self.unnamed(Builtin.DEQUANTIZE, [x], x.shape, "float32", None, schema.DequantizeOptionsT())
