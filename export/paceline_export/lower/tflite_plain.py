"""The part of the op vocabulary that is the same for every profile of TFLite graphs: no KV rows, no heads, no tables."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from paceline.signatures import CacheKind
from paceline_export.config import Rope
from paceline_export.lower.flatbuffer import Builtin, Tensor
from paceline_export.lower.tflite_nodes import Nodes
from paceline_export.weights import Weight

KEEPS_DIMENSIONS, TAKES_INT4 = 5, 12  # versions of FULLY_CONNECTED


@dataclass
class PlainOps(Nodes):
    """Operators on the tensors of one subgraph.

    Attributes:
        masks: kind of cache -> [1, T, 1, S], 0 for a row that is visible and a very negative number for others.
        tables: rope -> cosines and sines [1, T, 1, H] of this call's positions.
    """

    masks: dict[CacheKind, Tensor] = field(default_factory=dict)
    tables: dict[Rope, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        options = schema.FullyConnectedOptionsT()
        options.keepNumDims = True
        shape = (*x.shape[:-1], weight.shape[0])
        inputs = [x, self.weight(weight), None]
        return self.node(Builtin.FULLY_CONNECTED, inputs, shape, options, version=self._version(weight))

    def _version(self, weight: Weight) -> int:
        """Of a product: activations are rounded to int8, a scale for each row, where the weights are integers."""
        return TAKES_INT4 if self.rounding.scheme(weight.name) else KEEPS_DIMENSIONS

    def rms_norm(self, x: Tensor, weight: Weight | None, epsilon: float) -> Tensor:
        options = schema.ReducerOptionsT()
        options.keepDims = True
        last, one = self.constant([len(x.shape) - 1], np.int32), (*x.shape[:-1], 1)
        mean = self.node(Builtin.MEAN, [self.multiply(x, x), last], one, options)
        scale = self.node(Builtin.RSQRT, [self.add(mean, self.constant([epsilon]))], one)
        normed = self.multiply(x, scale)
        return normed if weight is None else self.multiply(normed, self.weight(weight))

    def gelu(self, x: Tensor) -> Tensor:
        options = schema.GeluOptionsT()
        options.approximate = True
        return self.node(Builtin.GELU, [x], x.shape, options)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return self.node(Builtin.ADD, [x, y], x.shape, schema.AddOptionsT())

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        return self.node(Builtin.MUL, [x, y], x.shape, schema.MulOptionsT())

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return self.multiply(x, self.constant([factor]))

    def scale_by(self, x: Tensor, weight: Weight) -> Tensor:
        return self.multiply(x, self.weight(weight))

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        scaled = self.node(Builtin.DIV, [x, self.constant([cap])], x.shape, schema.DivOptionsT())
        return self.scale(self.node(Builtin.TANH, [scaled], x.shape), cap)

    def concat(self, x: Tensor, y: Tensor) -> Tensor:
        return self.join([x, y], axis=len(x.shape) - 1)

    def fold(self, x: Tensor, groups: int) -> Tensor:
        return self.reshape(x, *x.shape[:-1], groups, x.shape[-1] // groups)

    def pick(self, x: Tensor, group: int) -> Tensor:
        return self.reshape(self.slice(x, 2, group, 1), *x.shape[:2], x.shape[3])

    def unfold_heads(self, x: Tensor) -> Tensor:
        return self.reshape(x, *x.shape[:2], x.shape[2] * x.shape[3])

    def rotate(self, x: Tensor, rope: Rope) -> Tensor:
        cos, sin = self.tables[rope]
        half = x.shape[3] // 2
        swapped = self.concat(self.slice(x, 3, half, half), self.slice(x, 3, 0, half))
        return self.add(self.multiply(x, cos), self.multiply(swapped, sin))
