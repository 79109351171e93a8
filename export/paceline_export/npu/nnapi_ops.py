"""The graphs for a neural processor within what NNAPI's feature level 6 can run.

Matrix products with weights are of 8-bit integers, with one scale for each whole matrix; all else is float32, because 8-bit
norms would need level 7, and equal scales around a mean. GELU is spelled out, which NNAPI has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import pi, sqrt
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from paceline.npu.scales import Scale
from paceline.signatures import ACTIVATIONS, Port
from paceline_export.lower.flatbuffer import Builtin, Tensor
from paceline_export.npu.numbers import MOVES, Ranges, quantization
from paceline_export.npu.ops import NpuOps
from paceline_export.weights import Weight

TAKES_INT8 = 4  # version of FULLY_CONNECTED
LARGEST = 127


@dataclass
class NnapiOps(NpuOps):
    """`Ops` on the tensors of one subgraph.

    Attributes:
        ranges: of the tensors, by the names that `NpuOps` gives them.
    """

    ranges: Ranges = field(default_factory=dict)
    _origins: dict[int, str] = field(default_factory=dict)  # tensor -> whose range it has

    def input(self, port: Port) -> Tensor:
        made = super().input(port)
        self._origins[made.index] = port.name
        return made

    def node(
        self,
        builtin: int,
        inputs: Sequence[Tensor | None],
        shape: Sequence[int],
        options: Any = None,
        dtype: str = "float32",
        version: int = 1,
    ) -> Tensor:
        made = super().node(builtin, inputs, shape, options, dtype, version)
        moved = inputs[0] if builtin in MOVES else None
        if moved is not None and moved.index in self._origins:
            self._origins[made.index] = self._origins[moved.index]
        elif dtype == "float32" and builtin not in MOVES:
            self._origins[made.index] = f"a{self._count}"
        return made

    def joined_at(self, described: Any, parts: Sequence[Tensor], axis: int, name: str = "") -> Tensor:
        joined = super().joined_at(described, parts, axis, name)
        self._origins[joined.index] = name or ACTIVATIONS  # of those without a name only an unrolled step's input is measured
        return joined

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        entered = Scale.of_range(*self.ranges[self._origins[x.index]], "int8")
        name = self._next_name()
        left = Scale.of_range(*self.ranges[name], "int8")
        options = schema.FullyConnectedOptionsT()
        options.keepNumDims = True
        shape = (*x.shape[:-1], weight.shape[0])
        steps = self.unnamed(Builtin.QUANTIZE, [x], x.shape, "int8", entered, schema.QuantizeOptionsT())
        inputs = [steps, self._matrix(weight), None]
        summed = self.unnamed(Builtin.FULLY_CONNECTED, inputs, shape, "int8", left, options, version=TAKES_INT8)
        made = self.unnamed(Builtin.DEQUANTIZE, [summed], shape, "float32", None, schema.DequantizeOptionsT())
        self._origins[made.index] = name
        return made

    def gelu(self, x: Tensor) -> Tensor:
        """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), the same approximation as GELU's."""
        name = self._next_name()
        cubed = self._plain(Builtin.MUL, self._plain(Builtin.MUL, x, x), x)
        inner = self._plain(Builtin.ADD, x, self._plain(Builtin.MUL, cubed, self.constant([0.044715])))
        turned = self._plain(Builtin.MUL, inner, self.constant([sqrt(2 / pi)]))
        turned = self.unnamed(Builtin.TANH, [turned], x.shape, "float32", None, None)
        share = self._plain(Builtin.ADD, turned, self.constant([1.0]))
        made = self._plain(Builtin.MUL, self._plain(Builtin.MUL, x, self.constant([0.5])), share)
        self._origins[made.index] = name
        return made

    def _plain(self, builtin: int, x: Tensor, y: Tensor) -> Tensor:
        options = schema.MulOptionsT() if builtin == Builtin.MUL else schema.AddOptionsT()
        return self.unnamed(builtin, [x, y], x.shape, "float32", None, options)

    def _matrix(self, weight: Weight) -> Tensor:
        """A weight in 8-bit integers of one scale; the largest value is at the end of the range."""
        largest = max(float(np.abs(piece).max()) for piece in weight.pieces()) or 1.0
        scale = Scale(float(np.float32(largest / LARGEST)), 0)

        def pieces() -> list[NDArray[np.int8]]:
            return [scale.integers(piece, "int8") for piece in weight.pieces()]

        buffer = self.graph.file.stored(weight.name, weight.shape, "int8", pieces)
        return self.graph.tensor(weight.shape, "int8", buffer, weight.name, quantization(scale))
