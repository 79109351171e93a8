"""The signatures of a .tflite file with all that a translator must know of them; weights are mapped and not read."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline_export.lower.tflite_read import UNREADABLE
from paceline_export.npu.operators import LEFT_OUT, TfliteReader, damaged, options_of
from paceline_export.npu.operators import TYPES as TYPE_NAMES

BITS = {"float32": 32, "int32": 32, "int16": 16, "int8": 8, "int4": 4}
# As for a lint, but for files of a neural processor: E2B's target has 0.4 millions for each size of its caches.
MOST_PARTS = 1 << 22
SCALES_PART = 256  # so many are a part of what may be read; they are looked at all at once


@dataclass(frozen=True)
class GraphTensor:
    """A tensor of one signature.

    Attributes:
        dtype: a key of BITS.
        content: the bytes of a constant; None for what is given or computed.
        buffer: the number of these bytes in the file.
        scales: empty where it is not quantised; one, or one for each place of `axis`.
        zero_point: the integer that is 0, the same for all scales.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: NDArray[np.uint8] | None
    buffer: int
    scales: NDArray[np.float32]
    zero_point: int
    axis: int

    @property
    def quantised(self) -> bool:
        """Whether its integers stand for numbers."""
        return len(self.scales) > 0

    def values(self) -> NDArray[Any]:
        """What a constant holds. Raises ValueError where it is none, or has two integers in a byte."""
        if self.content is None or self.dtype == "int4":
            raise ValueError(f"{self.name} is no plain constant")
        found: NDArray[Any] = self.content.view(self.dtype).reshape(self.shape)
        return found


@dataclass(frozen=True)
class GraphOperator:
    """An operator of one signature.

    Attributes:
        name: TFLite's.
        inputs, outputs: places among the tensors; None for an optional input that is left out.
        stored: its table in the flatbuffer.
    """

    name: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    stored: Any

    def input(self, place: int) -> int:
        """An input that it cannot do without. Raises ValueError where there is none."""
        found = self.inputs[place] if place < len(self.inputs) else None
        if found is None:
            raise ValueError(f"{self.name} has no input {place}")
        return found

    def options(self, kind: Any) -> Any:
        """Its options. Raises ValueError where it has none."""
        found = options_of(self.stored, kind)
        if found is None:
            raise ValueError(f"{self.name} has no options")
        return found


@dataclass(frozen=True)
class SignatureGraph:
    """One signature: its tensors, the operators in their order, and the places of inputs and outputs by name."""

    name: str
    tensors: Sequence[GraphTensor]
    operators: Sequence[GraphOperator]
    inputs: dict[str, int]
    outputs: dict[str, int]


def read_graphs(file: Path) -> list[SignatureGraph]:
    """Every signature of a file, in its order. Nobody has checked the file.

    Raises:
        InputError: it cannot be mapped, an index or offset points outside, a constant has another size than its shape, or
            there is more of it than `paceline_export.npu.operators` allows.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise ValueError("it is not a plain file")
        return _GraphReader(np.memmap(file, np.uint8, "r")).graphs()
    except UNREADABLE as error:
        raise damaged(file, error) from None


class _GraphReader(TfliteReader):
    def __init__(self, content: NDArray[np.uint8]):
        super().__init__(content, MOST_PARTS)
        self.content = content

    def graphs(self) -> list[SignatureGraph]:
        found = list[SignatureGraph]()
        for definition in map(self.model.SignatureDefs, self.places(self.model.SignatureDefsLength())):
            if definition.SubgraphIndex() >= self.model.SubgraphsLength():
                raise ValueError("a signature has a graph that is not there")
            graph = self.model.Subgraphs(definition.SubgraphIndex())
            tensors = [self._tensor(graph.Tensors(place)) for place in self.places(graph.TensorsLength())]
            operators = [self._operator(graph.Operators(place), len(tensors)) for place in self.places(graph.OperatorsLength())]
            inputs, outputs = (
                {self.text(each.Name()): _within(each.TensorIndex(), len(tensors)) for each in map(maps, self.places(count))}
                for maps, count in (
                    (definition.Inputs, definition.InputsLength()),
                    (definition.Outputs, definition.OutputsLength()),
                )
            )
            found.append(SignatureGraph(self.text(definition.SignatureKey()), tensors, operators, inputs, outputs))
        if not found:
            raise ValueError("it has no signature")
        return found

    def _tensor(self, tensor: Any) -> GraphTensor:
        name, dtype = self.text(tensor.Name()), TYPE_NAMES.get(tensor.Type(), "")
        if dtype not in BITS:
            raise ValueError(f"{name} has the type {dtype or tensor.Type()}, where {', '.join(BITS)} are known")
        shape = tuple(int(tensor.Shape(axis)) for axis in range(self.spend(tensor.ShapeLength())))
        if min(shape, default=1) < 1:
            raise ValueError(f"{name} has the shape {list(shape)}")
        content = self._content(tensor.Buffer())
        if content is not None and len(content) != ceil(prod(shape) * BITS[dtype] / 8):
            raise ValueError(f"{name} is {dtype} {list(shape)}, and has {len(content)} bytes")
        scales = _scales(name, tensor.Quantization(), dtype, shape)
        self.spend(len(scales[0]) // SCALES_PART)
        return GraphTensor(name, dtype, shape, content, tensor.Buffer(), *scales)

    def _content(self, place: int) -> NDArray[np.uint8] | None:
        if place >= self.model.BuffersLength():
            raise ValueError("a tensor has a buffer that is not there")
        buffer = self.model.Buffers(place)
        start, size = buffer.Offset(), buffer.Size()
        if start:
            if start + size > len(self.content):
                raise ValueError("a tensor ends outside the file")
            return self.content[start : start + size]
        return np.asarray(buffer.DataAsNumpy(), np.uint8) if buffer.DataLength() else None

    def _operator(self, stored: Any, tensors: int) -> GraphOperator:
        given, made = stored.InputsLength(), stored.OutputsLength()
        self.spend(given + made)
        inputs = (stored.Inputs(place) for place in range(given))
        return GraphOperator(
            self.operator(stored)[0],
            tuple(None if place == LEFT_OUT else _within(place, tensors) for place in inputs),
            tuple(_within(stored.Outputs(place), tensors) for place in range(made)),
            stored,
        )


def _scales(name: str, table: Any, dtype: str, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], int, int]:
    """Scales, zero point and axis."""
    count = 0 if table is None else table.ScaleLength()
    if not count:
        return np.empty(0, np.float32), 0, 0
    if not dtype.startswith("int") or dtype == "int32":
        raise ValueError(f"{name} is {dtype} and has scales")
    axis = table.QuantizedDimension() if count > 1 else 0
    if count > 1 and not (0 <= axis < len(shape) and shape[axis] == count):
        raise ValueError(f"{name} has {count} scales, and the shape {list(shape)}")
    zero_point, half = table.ZeroPoint(0) if table.ZeroPointLength() else 0, 1 << (BITS[dtype] - 1)
    if not -half <= zero_point < half or (count > 1 and zero_point):
        raise ValueError(f"{name} has the zero point {zero_point}")
    return np.asarray(table.ScaleAsNumpy(), np.float32), int(zero_point), int(axis)


def _within(place: int, count: int) -> int:
    if not 0 <= place < count:
        raise ValueError("an operator or a signature has a tensor that is not there")
    return place
