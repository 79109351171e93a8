"""The op vocabulary for a neural processor: TFLite operators of fixed sizes, without writes, lookups or trigonometry.

A call's rows attend to the old slots and to each other: scores and values of both are joined, and the new rows come out of the
graph. Values are stored transposed, [1, K, H, S], as Google's bundles for NPUs have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from paceline.npu.scales import Scale, least
from paceline.signatures import CacheKind, Port
from paceline_export.config import ClusteredHead
from paceline_export.lower.flatbuffer import Builtin, Tensor
from paceline_export.lower.tflite_plain import KEEPS_DIMENSIONS, TAKES_INT4, PlainOps
from paceline_export.model.ops import DraftChoice
from paceline_export.npu.numbers import MOVES, Floats, Numbers, quantization
from paceline_export.weights import Weight, pieces_by_cluster, read_permutation


@dataclass(frozen=True)
class SlicedRows:
    """The KV rows of one layer, of every kv head: keys [1, 1, S, H], values [1, 1, H, S], old ones and then a call's own."""

    kind: CacheKind
    keys: list[list[Tensor]]
    values: list[list[Tensor]]


@dataclass(frozen=True)
class NpuChoice(DraftChoice):
    """Attributes: top_clusters: the scores of the chosen clusters; None where there are none."""

    top_clusters: Tensor | None = None


@dataclass
class NpuOps(PlainOps):
    """`Ops` on the tensors of one subgraph.

    Attributes:
        numbers: what floating point values are written as.
        old: layer -> its KV rows before the call.
        slices: layer -> the keys and values that the call adds.
        masked: scores behind a mask -> the same in front of it, by name.
        visible: kind of cache -> [1, T, 1, S], 1 for a row that is visible and 0 for others.
    """

    numbers: Numbers = field(default_factory=Floats)
    old: dict[int, SlicedRows] = field(default_factory=dict)
    slices: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    masked: dict[str, str] = field(default_factory=dict)
    visible: dict[CacheKind, Tensor] = field(default_factory=dict)
    _step: int = 0
    _count: int = 0

    def input(self, port: Port) -> Tensor:
        """An input of the signature, at the scale that has its name."""
        made = self.graph.input(port)
        if port.dtype == self.numbers.dtype:
            self._tensor(made).quantization = quantization(self.numbers.scale(port.name))
        return made

    def begin_step(self) -> None:
        """The tensors that follow are those of a new drafter step, and have the ranges of the others'."""
        self._step, self._count = self._step + 1, 0

    def node(
        self,
        builtin: int,
        inputs: Sequence[Tensor | None],
        shape: Sequence[int],
        options: Any = None,
        dtype: str = "float32",
        version: int = 1,
    ) -> Tensor:
        if dtype != "float32":
            return super().node(builtin, inputs, shape, options, dtype, version)
        if builtin in MOVES:
            assert inputs[0] is not None
            described, name = self._described(inputs[0]), ""
        else:
            name = self._next_name()
            described = quantization(self.numbers.fixed(builtin) or self.numbers.scale(name))
        made = self.graph.tensor(shape, self.numbers.dtype, name=self._label(name), quantization=described)
        self.graph.operator(builtin, inputs, [made], options, version)
        return made

    def unnamed(
        self,
        builtin: int,
        inputs: Sequence[Tensor | None],
        shape: Sequence[int],
        dtype: str,
        scale: Scale | None,
        options: Any,
        version: int = 1,
    ) -> Tensor:
        """An operator whose result's range is known, and which is not counted with those that are measured."""
        made = self.graph.tensor(shape, dtype, quantization=quantization(scale))
        self.graph.operator(builtin, inputs, [made], options, version)
        return made

    def constant(self, values: Any, dtype: Any = np.float32) -> Tensor:
        if np.dtype(dtype) != np.float32:
            return super().constant(values, dtype)
        stored, scale = self.numbers.written(np.asarray(values, np.float32))
        buffer = self.graph.file.constant(stored)
        return self.graph.tensor(stored.shape, self.numbers.dtype, buffer, quantization=quantization(scale))

    def weight(self, weight: Weight) -> Tensor:
        return super().weight(weight) if len(weight.shape) == 2 else self.constant(weight.read())

    def embedding(self, table: Weight, tokens: Tensor) -> Tensor:
        """Rows of a table that has integers of the graph's own size, twice the bytes of what the CPU looks up."""
        rows = self.table(table.name, np.concatenate(list(table.pieces())))
        count, width = tokens.shape[-1], table.shape[1]
        found = self.node(Builtin.GATHER, [rows, tokens], (count, width), schema.GatherOptionsT())
        return self.reshape(found, 1, count, width)

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        options = schema.FullyConnectedOptionsT()
        options.keepNumDims = True
        scheme = self.rounding.scheme(weight.name)
        version = TAKES_INT4 if scheme and scheme.bits == 4 else KEEPS_DIMENSIONS
        shape = (*x.shape[:-1], weight.shape[0])
        return self.node(Builtin.FULLY_CONNECTED, [x, self.weight(weight), None], shape, options, version=version)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        options = schema.AddOptionsT()
        options.potScaleInt16 = False  # scales are no powers of two
        return self.node(Builtin.ADD, [x, y], x.shape, options)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return self.scale(self.node(Builtin.TANH, [self.scale(x, 1 / cap)], x.shape), cap)

    def join(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Joins tensors along one axis; those of another scale than the result's are brought to it."""
        if len(parts) == 1:
            return parts[0]
        described = quantization(self.numbers.scale(name := self._next_name()))
        return self.joined_at(described, parts, axis, name)

    def joined_at(self, described: Any, parts: Sequence[Tensor], axis: int, name: str = "") -> Tensor:
        """`join` with a given scale, as the flatbuffer has it."""
        first, options = parts[0].shape, schema.ConcatenationOptionsT()
        options.axis = axis
        shape = (*first[:axis], sum(part.shape[axis] for part in parts), *first[axis + 1 :])
        joined = self.graph.tensor(shape, self.numbers.dtype, name=self._label(name), quantization=described)
        self.graph.operator(Builtin.CONCATENATION, [self._as(part, joined) for part in parts], [joined], options)
        return joined

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

    def _zeros(self, shape: tuple[int, ...], described: Any) -> Tensor:
        """Zeros at a scale, as the flatbuffer has it."""
        zero = 0 if described is None else described.zeroPoint[0]
        buffer = self.graph.file.constant(np.full(shape, zero, self.numbers.dtype))
        return self.graph.tensor(shape, self.numbers.dtype, buffer, quantization=described)

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

    def table(self, name: str, rows: NDArray[np.float32]) -> Tensor:
        """Many constants, behind the flatbuffer."""
        stored, scale = self.numbers.written(rows)
        buffer = self.graph.file.stored(name, rows.shape, self.numbers.dtype, lambda: [stored])
        return self.graph.tensor(rows.shape, self.numbers.dtype, buffer, name, quantization(scale))

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

    def _heads(self, x: Tensor) -> list[Tensor]:
        """The kv heads of a tensor, axis 1."""
        return [x] if x.shape[1] == 1 else [self.slice(x, 1, head, 1) for head in range(x.shape[1])]

    def _turned(self, x: Tensor, order: tuple[int, ...]) -> Tensor:
        shape = [x.shape[axis] for axis in order]
        return self.node(Builtin.TRANSPOSE, [x, self.constant(order, np.int32)], shape, schema.TransposeOptionsT())

    def _as(self, x: Tensor, wanted: Tensor) -> Tensor:
        """`x` at the scale of another tensor."""
        if _steps(self._described(x)) == _steps(self._described(wanted)):
            return x
        made = self.graph.tensor(x.shape, self.numbers.dtype, quantization=self._described(wanted))
        self.graph.operator(Builtin.QUANTIZE, [x], [made], schema.QuantizeOptionsT())
        return made

    def _described(self, x: Tensor) -> Any:
        return self._tensor(x).quantization

    def _tensor(self, x: Tensor) -> Any:
        return self.graph.graph.tensors[x.index]

    def _next_name(self) -> str:
        self._count += 1
        return f"a{self._count}"

    def _label(self, name: str) -> str:
        """Names of tensors are unique in a graph; those of a later step have its number behind them. QNN takes no dots."""
        return f"{name}_step_{self._step}" if name and self._step > 1 else name


def _steps(described: Any) -> tuple[float, int] | None:
    return None if described is None else (float(described.scale[0]), int(described.zeroPoint[0]))
