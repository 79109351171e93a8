"""Integer weights in a .tflite file: packed values, and scales that become known while they are written.

Spec: `QuantizationParameters` and `BlockwiseQuantization` of the schema; a scale for each row is part of the flatbuffer,
scales of blocks are a float16 tensor of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline_export.lower.flatbuffer import Subgraph, Tensor, TfliteFile
from paceline_export.lower.tflite_read import StoredTensor
from paceline_export.quantize import pack_int4
from paceline_export.rounding import Rounding
from paceline_export.weights import Pieces

NO_TENSOR = -1


@dataclass
class IntegerWeight:
    """One weight [R, C] rounded by its scheme, registered once in a file and used by all its subgraphs.

    Attributes:
        weight: its name in the checkpoint, by which the rounding knows it.
        together: rows that one stored row holds, so that one lookup fetches them. The scales of channels are then a tensor
            of their own, because a stored row can have only one.
        scales: [R, C / group], filled while the integers are written.
    """

    file: TfliteFile
    name: str
    weight: str
    shape: tuple[int, int]
    rounding: Rounding
    pieces: Pieces
    together: int = 1
    scales: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        rows, columns = self.shape
        self.scheme = self.rounding.schemes[self.weight]
        packed = (rows * columns * self.scheme.bits // 8,)
        self.buffer = self.file.stored(self.name, packed, "int8", self._integers)  # refuses what another file does not have
        self.scales = np.ones((rows, columns // self.scheme.group(columns)), np.float32)
        self.stored_rows = rows // self.together
        if self.scheme.block or self.together > 1:
            self.scales_shape = (self.stored_rows, self.scales.size // self.stored_rows)
            self.scales_dtype = "float16" if self.scheme.block else "float32"
            self.scales_buffer = self.file.stored(
                f"{self.name}.scales", self.scales_shape, self.scales_dtype, lambda: [self.scales.astype(self.scales_dtype)]
            )
        if not self.scheme.block:
            self.parameters = schema.QuantizationParametersT()
            # A view, and so right once the integers are written.
            self.parameters.scale = self.scales[:, 0] if self.together == 1 else np.ones(self.stored_rows, np.float32)
            if self.file.source is not None and self.together == 1:
                self.scales[:, 0] = _row_scales(self.file.source[self.name], self.name, rows)
            self.parameters.zeroPoint = np.zeros(self.stored_rows, np.int64)

    def tensor(self, graph: Subgraph) -> Tensor:
        """The weight as a tensor of a subgraph: [R, C], or [R / together, together, C]."""
        shape: tuple[int, ...] = self.shape
        if self.together > 1:
            shape = (self.stored_rows, self.together, self.shape[1])
            if self.scheme.block:  # of blocks LiteRT looks up rows of one axis only
                shape = (self.stored_rows, self.together * self.shape[1])
        return graph.tensor(shape, f"int{self.scheme.bits}", self.buffer, self.name, self._parameters(graph))

    def scales_tensor(self, graph: Subgraph) -> Tensor:
        """The scales where they are a tensor: of blocks, or of rows that are stored together."""
        return graph.tensor(self.scales_shape, self.scales_dtype, self.scales_buffer, f"{self.name}.scales")

    def _parameters(self, graph: Subgraph) -> Any:
        if not self.scheme.block:
            return self.parameters
        blocks = schema.BlockwiseQuantizationT()
        blocks.scales = self.scales_tensor(graph).index
        blocks.zeroPoints, blocks.blockSize = NO_TENSOR, self.scheme.block
        parameters = schema.QuantizationParametersT()
        parameters.details, parameters.detailsType = blocks, schema.QuantizationDetails.BlockwiseQuantization
        return parameters

    def _integers(self) -> Iterator[NDArray[Any]]:
        start = 0
        for rounded in self.rounding.round(self.weight, self.pieces):
            stop = start + len(rounded.scales)
            self.scales[start:stop] = rounded.scales
            start = stop
            yield pack_int4(rounded.integers) if self.scheme.bits == 4 else rounded.integers


def _row_scales(stored: StoredTensor, name: str, rows: int) -> NDArray[np.float32]:
    held = 0 if stored.scales is None else len(stored.scales)
    if stored.scales is None or held != rows:
        raise InputError(f"the bundle's graphs hold {held} scales of {name}, which has {rows} rows; export the bundle again.")
    return stored.scales
