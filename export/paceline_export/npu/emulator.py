"""Runs the bytes that a compiler made for Qualcomm's HTP on an emulator of it, which onnxruntime-qnn carries for x86-64.

A compiled .tflite has one operator in a signature, DISPATCH_OP, whose options say where in the file the chip's program lies and
which graph of it is meant. The program becomes the one node of an ONNX model (EPContext), and onnxruntime is forbidden to
compute anything itself. Sources: LiteRT's `litert/core/dispatch_op_schema.h`; onnxruntime's "EPContext design".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.npu.qnn import PROVIDER, hexagon_session
from paceline.signatures import Port
from paceline_export.npu.compiled import Program, programs


@dataclass
class HexagonEmulator:
    """Runs compiled files, by part. Implements `paceline.npu.runners.Runner`.

    Attributes:
        soc: the chip that the files were compiled for.
    """

    files: Mapping[str, Path]
    soc: str
    _programs: dict[str, dict[str, Program]] = field(default_factory=dict)
    _sessions: dict[tuple[str, str], ort.InferenceSession] = field(default_factory=dict)

    def bind(self, part: str, signature: str, arrays: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        """See `Runner`."""
        program, session = self._program(part, signature), self._session(part, signature)
        inputs = {port.name: arrays[name] for name, port in program.inputs.items()}
        outputs = [(arrays[name], port.name) for name, port in program.outputs.items()]

        def run() -> None:
            found = session.run([tensor for _, tensor in outputs], inputs)
            for (array, _), values in zip(outputs, found, strict=True):
                array[:] = values

        return run

    def describe(self) -> str:
        """See `Runner`."""
        return f"the program for {self.soc}, emulated by onnxruntime-qnn on the CPU"

    def _program(self, part: str, signature: str) -> Program:
        if part not in self._programs:
            self._programs[part] = programs(self.files[part])
        return self._programs[part][signature]

    def _session(self, part: str, signature: str) -> ort.InferenceSession:
        if (part, signature) not in self._sessions:
            self._sessions[part, signature] = hexagon_session(wrapped(self._program(part, signature)), self.soc)
        return self._sessions[part, signature]


def wrapped(program: Program) -> bytes:
    """An ONNX model of one node that is the chip's program.

    Raises:
        InputError: the program does not know a tensor; the emulator would end this process.
    """
    for port in (*program.inputs.values(), *program.outputs.values()):
        if port.name.encode() not in program.content:
            raise InputError(f"the program {program.name} has no tensor {port.name}; compile the bundle again.")
    given, made = ([_value(port) for port in ports.values()] for ports in (program.inputs, program.outputs))
    attributes: dict[str, int | str] = {
        "main_context": 1,
        "embed_mode": 1,
        "source": PROVIDER,
        "partition_name": program.name,
        # Otherwise tensors would be matched by their order.
        "io_name_overrides": ";".join(f"{value.name}={value.name}" for value in (*given, *made)),
    }
    converted = ir.convenience.convert_attributes(attributes)
    node = ir.Node("com.microsoft", "EPContext", given, converted, outputs=made, name=program.name)
    graph = ir.Graph(given, made, nodes=[node], opset_imports={"": 21, "com.microsoft": 1}, name="compiled")
    model = ir.to_proto(ir.Model(graph, ir_version=10))
    model.graph.node[0].attribute.add(name="ep_cache_context", type=ir.AttributeType.STRING, s=program.content)  # no text
    content: bytes = model.SerializeToString()
    return content


def _value(port: Port) -> ir.Value:
    kind = ir.TensorType(ir.DataType.from_numpy(np.dtype(port.dtype)))
    return ir.Value(name=port.name, type=kind, shape=ir.Shape(port.shape))
