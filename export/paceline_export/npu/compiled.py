"""What a compiler has made of a .tflite: of every signature the programs for the chip, and the operators that stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers

from paceline.errors import InputError
from paceline.signatures import Port
from paceline_export.lower.flatbuffer import TYPES, Builtin
from paceline_export.lower.tflite_read import UNREADABLE
from paceline_export.npu.operators import damaged

DISPATCH = b"DISPATCH_OP"
MOST_OPERATORS = 1 << 20  # of all signatures; what no compiler has touched has some thousand in each
DTYPES = {code: name for name, code in TYPES.items()}
OPERATORS = {code: name for name, code in vars(Builtin).items() if isinstance(code, int)}


@dataclass(frozen=True)
class Placement:
    """Where the operators of one signature run.

    Attributes:
        partitions: programs for the chip; each time the CPU takes over in between costs a transfer.
        on_cpu: operators that are left, with their counts.
        program_bytes: of all programs, each counted once; signatures may share one.
    """

    signature: str
    partitions: int
    on_cpu: dict[str, int]
    program_bytes: int

    @property
    def whole(self) -> bool:
        """Whether all of it is one program."""
        return self.partitions == 1 and not self.on_cpu


@dataclass(frozen=True)
class Program:
    """A signature that is one program.

    Attributes:
        name: of the graph in it.
        content: the chip's program, which several graphs may share.
        inputs, outputs: the signature's names -> the tensors of the graph.
    """

    name: str
    content: bytes
    inputs: dict[str, Port]
    outputs: dict[str, Port]


def placements(file: Path) -> list[Placement]:
    """What became of every signature of a compiled file.

    Raises:
        InputError: it is not a whole .tflite file.
    """
    with _refusing(file):
        return [_placement(name, graph, model) for name, graph, model, _ in _signatures(_mapped(file))]


def programs(file: Path) -> dict[str, Program]:
    """The programs of a compiled file, by signature.

    Raises:
        InputError: it is not a whole .tflite file, or a signature is not one program.
    """
    with _refusing(file):
        return _programs(file, _mapped(file))


def _programs(file: Path, content: Any) -> dict[str, Program]:
    found = dict[str, Program]()
    for name, graph, model, signature in _signatures(content):
        placed = _placement(name, graph, model)
        if not placed.whole:
            left = ", ".join(f"{count} {operator}" for operator, count in placed.on_cpu.items()) or "nothing"
            raise InputError(f"{file}: {name} is {placed.partitions} programs, and {left} on the CPU; only whole ones can run.")
        options = _options(graph.Operators(0))
        start, size = options["bytecode_offset"].Value, options["bytecode_size"].Value
        if not 0 < start <= start + size <= len(content):
            raise InputError(f"{file}: the program of {name} ends outside the file; compile the bundle again.")
        inputs = _ports(graph, map(signature.Inputs, range(signature.InputsLength())))
        outputs = _ports(graph, map(signature.Outputs, range(signature.OutputsLength())))
        found[name] = Program(options["name"].Value, content[start : start + size].tobytes(), inputs, outputs)
    return found


def _signatures(content: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Name, graph, model and definition of every signature."""
    if not schema.Model.ModelBufferHasIdentifier(content[:8].tobytes(), 0):
        raise ValueError("it does not begin as one")
    model, seen = schema.Model.GetRootAs(content), 0
    for definition in map(model.SignatureDefs, range(model.SignatureDefsLength())):
        graph = model.Subgraphs(definition.SubgraphIndex())
        seen += 1 + graph.OperatorsLength()
        if seen > MOST_OPERATORS:
            raise ValueError(f"it has more than {MOST_OPERATORS} operators")
        yield definition.SignatureKey().decode(), graph, model, definition


@contextmanager
def _refusing(file: Path) -> Iterator[None]:
    """Nobody has checked the file: offsets lead anywhere, and counts may be billions."""
    try:
        yield
    except UNREADABLE as error:
        raise damaged(file, error) from None


def _placement(name: str, graph: Any, model: Any) -> Placement:
    dispatched, left, places = 0, Counter[str](), dict[int, int]()
    for operator in map(graph.Operators, range(graph.OperatorsLength())):
        code = model.OperatorCodes(operator.OpcodeIndex())
        if code.CustomCode() == DISPATCH:
            dispatched += 1
            options = _options(operator)
            places[options["bytecode_offset"].Value] = options["bytecode_size"].Value
        else:
            left[OPERATORS.get(code.BuiltinCode(), f"operator {code.BuiltinCode()}")] += 1
    return Placement(name, dispatched, dict(left), sum(places.values()))


def _options(operator: Any) -> Any:
    return flexbuffers.GetRoot(operator.CustomOptionsAsNumpy().tobytes()).AsMap


def _ports(graph: Any, maps: Iterable[Any]) -> dict[str, Port]:
    found = {}
    for each in maps:
        tensor = graph.Tensors(each.TensorIndex())
        shape = tuple(int(size) for size in tensor.ShapeAsNumpy())
        found[each.Name().decode()] = Port(tensor.Name().decode(), DTYPES[tensor.Type()], shape)
    return found


def _mapped(file: Path) -> Any:
    return np.memmap(file, np.uint8, "r")
