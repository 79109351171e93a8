"""Weights of an ONNX graph in its data file: float32 as they are, integers as onnxruntime's MatMulNBits has them.

Integers are unsigned there, with zero in the middle of their range, and scales are given for blocks of 16 to 256 values;
a scale for a whole row is therefore repeated. A table that is both looked up and multiplied with is stored once.

Source: onnxruntime `docs/ContribOperators.md`, MatMulNBits and GatherBlockQuantized.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from paceline_export.lower.external_data import ExternalData
from paceline_export.quantize import Quantized, Scheme, pack_int4
from paceline_export.rounding import Rounding
from paceline_export.weights import Pieces, Weight

BLOCKS = (128, 64, 32, 16)  # for a row with one scale, the first that divides it: large ones cost least to read


@dataclass(frozen=True)
class Blocks:
    """A weight [N, K] as integers.

    Attributes:
        matrix: uint8 [N, K / block, block * bits / 8], for MatMulNBits; the last block of a row may be filled up.
        rows: the same bytes, for lookups: uint8 [N, K * bits / 8].
        scales: float32 [N, K / block].
    """

    matrix: ir.Value
    rows: ir.Value
    scales: ir.Value
    bits: int
    block: int


@dataclass
class GraphWeights:
    """The initializers of a graph and its branches, and the file that holds their values."""

    data: ExternalData
    rounding: Rounding
    initializers: dict[str, ir.Value] = field(default_factory=dict)
    blocks: dict[str, Blocks] = field(default_factory=dict)

    def initializer(self, tensor: ir.TensorProtocol) -> ir.Value:
        """The graph value of a tensor; the same name is added once."""
        name = str(tensor.name)
        if name not in self.initializers:
            kind = ir.TensorType(tensor.dtype)
            self.initializers[name] = ir.Value(name=name, type=kind, shape=tensor.shape, const_value=tensor)  # type: ignore[arg-type]
        return self.initializers[name]

    def stored(self, name: str, shape: Sequence[int], dtype: ir.DataType, pieces: Pieces) -> ir.Value:
        """A tensor in the data file under `name`; `pieces` makes its values, once, when a node first asks for it."""
        if name not in self.initializers:
            self.initializer(self.data.add(name, shape, dtype, pieces()))
        return self.initializers[name]

    def floats(self, weight: Weight) -> ir.Value:
        """A weight as float32."""
        return self.stored(weight.name, weight.shape, ir.DataType.FLOAT, weight.pieces)

    def integers(self, weight: Weight) -> Blocks | None:
        """A weight as its scheme has it; None where it stays float32."""
        scheme = self.rounding.scheme(weight.name)
        if weight.name not in self.blocks and scheme:
            self.blocks[weight.name] = self._write_blocks(weight, scheme)
        return self.blocks.get(weight.name)

    def borrow(self, lender: GraphWeights, name: str, new_name: str) -> None:
        """Makes a weight of another graph one of this graph's under a new name: the same bytes of the same file."""

        def renamed(value: ir.Value, end: str = "") -> ir.Value:
            assert isinstance(value.const_value, ir.ExternalTensor)
            return self.initializer(view(value.const_value, new_name + end))

        if name in lender.blocks:
            lent = lender.blocks[name]
            rows, scales = renamed(lent.rows, ".rows"), renamed(lent.scales, ".scales")
            self.blocks[new_name] = Blocks(rows, rows, scales, lent.bits, lent.block)
        else:
            renamed(lender.initializers[name])

    def _write_blocks(self, weight: Weight, scheme: Scheme) -> Blocks:
        rows, columns = weight.shape
        block = scheme.block or next((size for size in BLOCKS if columns % size == 0), BLOCKS[-1])
        count = -(-columns // block)
        scales = np.empty((rows, count), np.float32)

        def integers() -> Iterator[NDArray[np.uint8]]:
            start = 0
            for rounded in self.rounding.round(weight.name, weight.pieces):
                stop = start + len(rounded.integers)
                scales[start:stop] = np.repeat(rounded.scales, count // rounded.scales.shape[1], axis=1)
                start = stop
                yield _unsigned(rounded, scheme.bits, count * block)

        shape = (rows, count, block * scheme.bits // 8)
        matrix = self.data.add(weight.name, shape, ir.DataType.UINT8, integers())
        return Blocks(
            self.initializer(matrix),
            self.initializer(view(matrix, f"{weight.name}.rows", (rows, count * shape[2]))),
            self.stored(f"{weight.name}.scales", scales.shape, ir.DataType.FLOAT, lambda: [scales]),
            scheme.bits,
            block,
        )


def _unsigned(rounded: Quantized, bits: int, columns: int) -> NDArray[np.uint8]:
    """Rows of integers with zero at 8 or 128, filled up with zeros to so many columns; two int4 to a byte."""
    filled = np.zeros((len(rounded.integers), columns), np.int8)
    filled[:, : rounded.integers.shape[1]] = rounded.integers
    if bits == 8:
        return filled.view(np.uint8) + np.uint8(0x80)
    return pack_int4(filled) ^ np.uint8(0x88)


def view(tensor: ir.ExternalTensor, name: str, shape: Sequence[int] | None = None) -> ir.ExternalTensor:
    """Another name, and maybe another shape, for the same bytes."""
    return ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape if shape is None else ir.Shape(shape),
        name=name,
        base_dir=tensor.base_dir,
    )
