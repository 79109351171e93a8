"""The operators of a .tflite file with what is known of their operands: the facts that a lint looks at."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline_export.lower.tflite_read import UNREADABLE

# Of all subgraphs: dimensions, operands, letters of names, and tables, each of which takes as long as some of the others. E2B's
# target has a quarter of it, and a small file can claim billions, or name the same piece of itself a million times.
MOST_PARTS, TABLE_PARTS = 1 << 20, 4
LEFT_OUT = -1  # an optional input that is not there
IN_FLATBUFFER = 1


def _names(codes: type) -> dict[int, str]:
    return {code: name for name, code in vars(codes).items() if isinstance(code, int)}


OPERATORS = _names(schema.BuiltinOperator)
TYPES = {code: name.lower() for code, name in _names(schema.TensorType).items()}
NO_ACTIVATION = schema.ActivationFunctionType.NONE
ACTIVATED = {
    "ADD": schema.AddOptions,
    "SUB": schema.SubOptions,
    "MUL": schema.MulOptions,
    "CONCATENATION": schema.ConcatenationOptions,
    "L2_NORMALIZATION": schema.L2NormOptions,
}


@dataclass(frozen=True)
class Operand:
    """A tensor that an operator reads or writes.

    Attributes:
        type: TFLite's name of it, in small letters.
        scales: how many it has; 0 where it is not quantised.
        scale: the first one.
    """

    type: str
    shape: tuple[int, ...]
    constant: bool
    scales: int
    scale: float
    zero_point: int


@dataclass(frozen=True)
class Call:
    """One operator of one subgraph.

    Attributes:
        graph: the name of its signature, or else of its subgraph; a stranger's text.
        index: its place in the subgraph.
        inputs: None where an optional one is left out.
        activated: an activation function is part of it.
        keeps_dims: FULLY_CONNECTED gives its output as many dimensions as its input has.
    """

    graph: str
    index: int
    operator: str
    version: int
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    activated: bool
    keeps_dims: bool

    def input(self, place: int) -> Operand:
        """An input that the operator cannot do without.

        Raises:
            ValueError: it has none there.
        """
        found = self.optional(place)
        if found is None:
            raise ValueError(f"{self.operator} has no input {place}")
        return found

    def optional(self, place: int) -> Operand | None:
        """An input, or None where it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    @property
    def output(self) -> Operand:
        """The first output. Raises ValueError where there is none."""
        if not self.outputs:
            raise ValueError(f"{self.operator} has no output")
        return self.outputs[0]


def read_calls(file: Path) -> list[Call]:
    """Every operator of every subgraph, in the file's order; weights are not read.

    Nobody has checked the file. Python's flatbuffers read from wherever an offset points to, and raise where that is outside.

    Raises:
        InputError: the file cannot be mapped, an index or offset points outside, or there is more than MOST_PARTS of it.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise ValueError("it is not a plain file")
        return list(_CallReader(np.memmap(file, np.uint8, "r")).calls())
    except UNREADABLE as error:
        raise damaged(file, error) from None


def damaged(file: Path, error: Exception) -> InputError:
    """What is said of a file that cannot be read to its end."""
    return InputError(f"{file} is not a whole .tflite file ({error}); export it again.")


class TfliteReader:
    """A mapped .tflite file, and how much of it may still be read.

    Attributes:
        model: the root of the flatbuffer.
    """

    def __init__(self, content: NDArray[np.uint8], most: int = MOST_PARTS):
        """Takes a file of which at most so many parts are read. Raises ValueError where it does not begin as one."""
        if not schema.Model.ModelBufferHasIdentifier(content[:8].tobytes(), 0):
            raise ValueError("it does not begin as one")
        self.model = schema.Model.GetRootAs(content)
        self.most = self.left = most

    def places(self, count: int) -> range:
        """The places of so many tables."""
        self.spend(count * TABLE_PARTS)
        return range(count)

    def spend(self, parts: int) -> int:
        """Counts parts that are read. Raises ValueError where the file has too many."""
        self.left -= parts
        if self.left < 0:
            raise ValueError(f"it has more than the {self.most:,} tensors, operators and operands that are allowed")
        return parts

    def text(self, name: bytes | None) -> str:
        """A name; empty where there is none."""
        return "" if name is None else name[: self.spend(len(name))].decode()

    def operator(self, stored: Any) -> tuple[str, int]:
        """An operator's name and version. Raises ValueError where the file's list of them has no such place."""
        if stored.OpcodeIndex() >= self.model.OperatorCodesLength():
            raise ValueError("an operator has a code that is not there")
        code = self.model.OperatorCodes(stored.OpcodeIndex())
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())  # old files have the narrow field only
        return OPERATORS.get(number, f"operator {number}"), code.Version()


class _CallReader(TfliteReader):
    def calls(self) -> Iterator[Call]:
        signatures = self._signatures()
        if not self.model.SubgraphsLength():
            raise ValueError("it has no graph")
        for number in self.places(self.model.SubgraphsLength()):
            graph = self.model.Subgraphs(number)
            name = signatures.get(number) or self.text(graph.Name()) or f"subgraph {number}"
            tensors = [self._operand(graph.Tensors(place)) for place in self.places(graph.TensorsLength())]
            for index in self.places(graph.OperatorsLength()):
                yield self._call(name, index, graph.Operators(index), tensors)

    def _signatures(self) -> dict[int, str]:
        found = dict[int, str]()
        for each in map(self.model.SignatureDefs, self.places(self.model.SignatureDefsLength())):
            found.setdefault(each.SubgraphIndex(), self.text(each.SignatureKey()))
        return found

    def _operand(self, tensor: Any) -> Operand:
        if tensor.Buffer() >= self.model.BuffersLength():
            raise ValueError("a tensor has a buffer that is not there")
        buffer, quantization = self.model.Buffers(tensor.Buffer()), tensor.Quantization()
        scales = 0 if quantization is None else quantization.ScaleLength()
        return Operand(
            TYPES.get(tensor.Type(), f"type {tensor.Type()}"),
            tuple(map(tensor.Shape, range(self.spend(tensor.ShapeLength())))),
            buffer.DataLength() > 0 or buffer.Offset() > IN_FLATBUFFER,
            scales,
            quantization.Scale(0) if scales else 0.0,
            quantization.ZeroPoint(0) if scales and quantization.ZeroPointLength() else 0,
        )

    def _call(self, graph: str, index: int, stored: Any, tensors: list[Operand]) -> Call:
        operator, version = self.operator(stored)
        places = range(self.spend(stored.InputsLength())), range(self.spend(stored.OutputsLength()))
        inputs, outputs = map(stored.Inputs, places[0]), map(stored.Outputs, places[1])
        activated = options_of(stored, ACTIVATED.get(operator))
        connected = options_of(stored, schema.FullyConnectedOptions if operator == "FULLY_CONNECTED" else None)
        return Call(
            graph,
            index,
            operator,
            version,
            tuple(None if place == LEFT_OUT else _at(tensors, place) for place in inputs),
            tuple(_at(tensors, place) for place in outputs),
            activated is not None and activated.FusedActivationFunction() != NO_ACTIVATION,
            connected is not None and connected.KeepNumDims(),
        )


def options_of(stored: Any, kind: Any) -> Any:
    """An operator's options as those of this kind; None where it has none."""
    table = None if kind is None else stored.BuiltinOptions()
    if table is None:
        return None
    made = kind()
    made.Init(table.Bytes, table.Pos)
    return made


def _at(tensors: list[Operand], place: int) -> Operand:
    if not 0 <= place < len(tensors):
        raise ValueError("an operator has an operand that is not there")
    return tensors[place]
