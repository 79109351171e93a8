"""A .tflite file: small things in a flatbuffer, and behind it the weights, appended one at a time.

A buffer of the flatbuffer names its weights by offset and size in the file, so a file may exceed the 2 GiB that a
flatbuffer itself can hold, and only a piece of one tensor is ever in memory. Schema: `ai_edge_litert.schema_py_generated`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools.flatbuffer_utils import update_packed_buffer
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.signatures import GROWTH_SLOTS, VARIES, Port, in_steps
from paceline_export.lower.tflite_read import StoredTensors
from paceline_export.weights import Pieces, Progress

FILE_IDENTIFIER = b"TFL3"
SCHEMA_VERSION = 3
ALIGNMENT_BYTES = 64  # XNNPACK reads weights in place with vector loads
NO_DATA = 0  # buffer 0 is empty by the schema's rule; tensors that are computed name it
TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "float16": schema.TensorType.FLOAT16,
    "int32": schema.TensorType.INT32,
    "int16": schema.TensorType.INT16,
    "int8": schema.TensorType.INT8,
    "int4": schema.TensorType.INT4,
}
Builtin = schema.BuiltinOperator


@dataclass(frozen=True)
class Tensor:
    """A tensor of one subgraph."""

    index: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """Weights behind the flatbuffer, read piece by piece when the file is written."""

    name: str
    buffer: int
    bytes: int
    pieces: Pieces


class TfliteFile:
    """Collects subgraphs and weights; `save` writes them. Weights and constants are shared by all subgraphs.

    Args:
        source: another file's tensors, which are taken as they are; None computes them.
    """

    def __init__(self, source: StoredTensors | None = None) -> None:
        self.source = source
        self.model = schema.ModelT()
        self.model.version = SCHEMA_VERSION
        self.model.description = b"paceline"
        self.model.operatorCodes, self.model.subgraphs, self.model.signatureDefs = [], [], []
        self.model.buffers = [schema.BufferT()]
        self._stored: dict[str, Stored] = {}
        self._constants: dict[tuple[str, bytes], int] = {}
        self._codes: dict[tuple[int, int], int] = {}

    def stored(self, name: str, shape: Sequence[int], dtype: str, pieces: Pieces) -> int:
        """The buffer of the weights called `name`; the same name is stored once.

        Raises:
            InputError: another file is the source, and has no such weights, or other ones.
        """
        if name not in self._stored:
            size = prod(shape) * np.dtype(dtype).itemsize
            buffer = schema.BufferT()
            buffer.offset = buffer.size = 1  # fields that are 0 have no place in the file that `save` could fill
            self.model.buffers.append(buffer)
            taken = pieces if self.source is None else _taken(self.source, name, size)
            self._stored[name] = Stored(name, len(self.model.buffers) - 1, size, taken)
        return self._stored[name].buffer

    def constant(self, values: NDArray[Any]) -> int:
        """The buffer of a small constant inside the flatbuffer."""
        key = (str(values.dtype), values.tobytes())
        if key not in self._constants:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(key[1], np.uint8)
            self.model.buffers.append(buffer)
            self._constants[key] = len(self.model.buffers) - 1
        return self._constants[key]

    def operator_code(self, builtin: int, version: int) -> int:
        """The index of an operator in the file's list."""
        if (builtin, version) not in self._codes:
            code = schema.OperatorCodeT()
            # Readers older than the wide field look at the byte, where 127 says: see the wide field.
            code.builtinCode, code.deprecatedBuiltinCode, code.version = builtin, min(builtin, 127), version
            self._codes[builtin, version] = len(self.model.operatorCodes)
            self.model.operatorCodes.append(code)
        return self._codes[builtin, version]

    def save(self, file: Path, progress: Progress) -> None:
        """Writes the file; weights are read one at a time, in pieces.

        The flatbuffer comes last, in the room left for it, because it holds the scales that are found on the way.
        """
        room = len(self._packed())
        with open(file, "xb") as stream:
            stream.seek(room)
            offsets = []
            for stored in self._stored.values():
                stream.seek(in_steps(stream.tell(), ALIGNMENT_BYTES))
                offsets.append(stream.tell())
                for piece in stored.pieces():
                    stream.write(np.ascontiguousarray(piece).data)
                    progress(stored.name, piece.nbytes)
                assert stream.tell() - offsets[-1] == stored.bytes, f"{stored.name} has another size than it announced"
            stream.truncate(in_steps(stream.tell(), ALIGNMENT_BYTES))
            head = self._packed()
            packed = schema.Model.GetRootAs(head)
            for stored, offset in zip(self._stored.values(), offsets, strict=True):
                update_packed_buffer(packed.Buffers(stored.buffer), offset=offset, size=stored.bytes)
            assert len(head) == room
            stream.seek(0)
            stream.write(head)

    def _packed(self) -> bytearray:
        builder = _SharingBuilder(1 << 20)
        builder.Finish(self.model.Pack(builder), file_identifier=FILE_IDENTIFIER)
        return bytearray(builder.Output())


def _taken(source: StoredTensors, name: str, size: int) -> Pieces:
    held = len(source[name].content) if name in source else 0
    if held != size:
        raise InputError(f"the bundle's graphs hold {held} bytes of {name}, which needs {size}; export the bundle again.")
    return source[name].pieces


class _SharingBuilder(flatbuffers.Builder):  # type: ignore[misc]
    """Writes an array that several tables name only once: every signature has the same scales."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._written: dict[int, tuple[NDArray[Any], int]] = {}  # the array is kept, so that no other gets its id

    def CreateNumpyVector(self, x: NDArray[Any]) -> int:  # noqa: N802 - the library's name
        if id(x) not in self._written:
            self._written[id(x)] = (x, super().CreateNumpyVector(x))
        return self._written[id(x)][1]


class Subgraph:
    """One signature's graph."""

    def __init__(self, file: TfliteFile, name: str):
        self.file, self.name = file, name
        self.graph = schema.SubGraphT()
        self.graph.name = name.encode()
        self.graph.tensors, self.graph.operators, self.graph.inputs, self.graph.outputs = [], [], [], []
        self._names: dict[str, list[tuple[str, int]]] = {"inputs": [], "outputs": []}

    def tensor(
        self, shape: Sequence[int], dtype: str = "float32", buffer: int = NO_DATA, name: str = "", quantization: Any = None
    ) -> Tensor:
        """A new tensor; a dimension that VARIES is written with the size that caches start with."""
        made = schema.TensorT()
        made.shape = np.array([GROWTH_SLOTS if size == VARIES else size for size in shape], np.int32)
        if VARIES in shape:
            made.shapeSignature = np.array(shape, np.int32)
        made.type, made.buffer, made.hasRank, made.quantization = TYPES[dtype], buffer, True, quantization
        made.name = (name or f"t{len(self.graph.tensors)}").encode()
        self.graph.tensors.append(made)
        return Tensor(len(self.graph.tensors) - 1, tuple(shape))

    def constant(self, values: NDArray[Any]) -> Tensor:
        """A small constant."""
        return self.tensor(values.shape, str(values.dtype), self.file.constant(values))

    def input(self, port: Port) -> Tensor:
        """An input of the signature."""
        made = self.tensor(port.sizes, port.dtype, name=port.name)
        self.graph.inputs.append(made.index)
        self._names["inputs"].append((port.name, made.index))
        return made

    def output(self, port: Port, tensor: Tensor) -> None:
        """Makes a tensor an output of the signature."""
        assert tensor.shape == port.sizes, f"{port.name}: {tensor.shape} is not {port.sizes}"
        self.graph.outputs.append(tensor.index)
        self._names["outputs"].append((port.name, tensor.index))

    def operator(
        self, builtin: int, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], options: Any = None, version: int = 1
    ) -> None:
        """Appends an operator; None stands for an optional input that is left out."""
        made = schema.OperatorT()
        made.opcodeIndex = self.file.operator_code(builtin, version)
        made.inputs = [-1 if tensor is None else tensor.index for tensor in inputs]
        made.outputs = [tensor.index for tensor in outputs]
        if options is not None:
            made.builtinOptions = options
            made.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T"))
        self.graph.operators.append(made)

    def finish(self) -> None:
        """Adds the graph and its signature to the file, without the operators whose results nobody reads."""
        needed, kept = set(self.graph.outputs), []
        for operator in reversed(self.graph.operators):
            if needed & set(operator.outputs):
                needed |= set(operator.inputs)
                kept.append(operator)
        self.graph.operators = kept[::-1]
        signature = schema.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = self.name.encode(), len(self.file.model.subgraphs)
        signature.inputs, signature.outputs = (
            [_tensor_map(name, index) for name, index in self._names[direction]] for direction in ("inputs", "outputs")
        )
        self.file.model.subgraphs.append(self.graph)
        self.file.model.signatureDefs.append(signature)


def _tensor_map(name: str, index: int) -> Any:
    made = schema.TensorMapT()
    made.name, made.tensorIndex = name.encode(), index
    return made
