"""Integer weights in a .tflite file: packed values, and scales that become known while they are written.

Spec: `QuantizationParameters` and `BlockwiseQuantization` of the schema; a scale for each row is part of the flatbuffer,
scales of blocks are a float16 tensor of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from paceline_export.lower.flatbuffer import Subgraph, Tensor, TfliteFile
from paceline_export.quantize import Scheme, pack_int4, quantize
from paceline_export.weights import Pieces

NO_TENSOR = -1


@dataclass
class IntegerWeight:
    """One weight [R, C] under a scheme, registered once in a file and used by all its subgraphs.

    Attributes:
        scales: [R, C / group], filled while the integers are written.
    """

    file: TfliteFile
    name: str
    shape: tuple[int, int]
    scheme: Scheme
    pieces: Pieces
    scales: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        rows, columns = self.shape
        self.scales = np.ones((rows, columns // self.scheme.group(columns)), np.float32)
        packed = (rows * columns * self.scheme.bits // 8,)
        self.buffer = self.file.stored(self.name, packed, "int8", self._integers)
        if self.scheme.block:
            self.scales_buffer = self.file.stored(f"{self.name}.scales", self.scales.shape, "float16", self._block_scales)
        else:
            self.parameters = schema.QuantizationParametersT()
            self.parameters.scale = self.scales[:, 0]  # a view, and so right once the integers are written
            self.parameters.zeroPoint = np.zeros(rows, np.int64)

    def tensor(self, graph: Subgraph) -> Tensor:
        """The weight as a tensor of a subgraph."""
        return graph.tensor(self.shape, f"int{self.scheme.bits}", self.buffer, self.name, self._parameters(graph))

    def _parameters(self, graph: Subgraph) -> Any:
        if not self.scheme.block:
            return self.parameters
        blocks = schema.BlockwiseQuantizationT()
        blocks.scales = graph.tensor(self.scales.shape, "float16", self.scales_buffer, f"{self.name}.scales").index
        blocks.zeroPoints, blocks.blockSize = NO_TENSOR, self.scheme.block
        parameters = schema.QuantizationParametersT()
        parameters.details, parameters.detailsType = blocks, schema.QuantizationDetails.BlockwiseQuantization
        return parameters

    def _integers(self) -> Iterator[NDArray[Any]]:
        start = 0
        for piece in self.pieces():
            rounded = quantize(piece, self.scheme)
            self.scales[start : start + len(piece)] = rounded.scales
            start += len(piece)
            yield pack_int4(rounded.integers) if self.scheme.bits == 4 else rounded.integers

    def _block_scales(self) -> Iterable[NDArray[Any]]:
        return [self.scales.astype(np.float16)]
