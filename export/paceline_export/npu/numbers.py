"""How the values of a graph for a neural processor are written: as float32, to be measured, or as integers.

A value is an integer, less a zero point, times the scale of its tensor. The range of every tensor is measured once, on a graph
of one row; since all signatures compute the same operators in the same order, a counter names the same tensor in each of them.
Integer arithmetic of operators: LiteRT's 8-bit and 16x8 quantisation specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from paceline.npu.scales import Scale
from paceline_export.lower.flatbuffer import Builtin

Ranges = Mapping[str, tuple[float, float]]  # of a tensor, by the name that its graph gives it
# Operators whose result has the scale of what they move, and those whose scale the specification fixes.
MOVES = frozenset({Builtin.RESHAPE, Builtin.SLICE, Builtin.TRANSPOSE, Builtin.GATHER})
FIXED = {
    (Builtin.SOFTMAX, "int8"): Scale(1 / 256, -128),
    (Builtin.SOFTMAX, "int16"): Scale(1 / 32768, 0),
    (Builtin.TANH, "int8"): Scale(1 / 128, 0),
    (Builtin.TANH, "int16"): Scale(1 / 32768, 0),
}


class Numbers(Protocol):
    """The numbers of one model's graphs."""

    @property
    def dtype(self) -> str:
        """Of floating point values, as they are written."""

    def scale(self, name: str) -> Scale | None:
        """Of the tensor that has this name; None for float32."""

    def fixed(self, builtin: int) -> Scale | None:
        """Of an operator's result, where it is the operator's own."""

    def written(self, values: NDArray[Any]) -> tuple[NDArray[Any], Scale | None]:
        """Constants as they are stored."""


@dataclass(frozen=True)
class Floats:
    """Float32, as the checkpoint computes."""

    dtype: str = "float32"

    def scale(self, name: str) -> Scale | None:
        """See `Numbers`."""
        return None

    def fixed(self, builtin: int) -> Scale | None:
        """See `Numbers`."""
        return None

    def written(self, values: NDArray[Any]) -> tuple[NDArray[Any], Scale | None]:
        """See `Numbers`."""
        return np.asarray(values, np.float32), None


@dataclass(frozen=True)
class Integers:
    """Integers of 8 or 16 bits, with the ranges that were measured."""

    dtype: str
    ranges: Ranges

    def scale(self, name: str) -> Scale:
        """See `Numbers`."""
        return Scale.of_range(*self.ranges[name], self.dtype)

    def fixed(self, builtin: int) -> Scale | None:
        """See `Numbers`."""
        return FIXED.get((builtin, self.dtype))

    def written(self, values: NDArray[Any]) -> tuple[NDArray[Any], Scale | None]:
        """See `Numbers`; the range is that of the values."""
        scale = Scale.of_range(float(np.min(values)), float(np.max(values)), self.dtype)
        return scale.integers(values, self.dtype), scale


def quantization(scale: Scale | None) -> Any:
    """A scale as the flatbuffer has it."""
    if scale is None:
        return None
    made = schema.QuantizationParametersT()
    made.scale, made.zeroPoint = np.array([scale.scale], np.float32), np.array([scale.zero_point], np.int64)
    return made
