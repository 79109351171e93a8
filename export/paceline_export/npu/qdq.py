"""The ONNX twin of the graphs for a neural processor: the same operators on the same integers, each between QDQ nodes.

A quantised tensor is float32 between its DequantizeLinear and the QuantizeLinear that made it, both with the scale and zero
point of the .tflite; a provider for integers takes these nodes together with the operator in between as one. Inputs and
outputs are the integers themselves. Source: onnxruntime, "Quantize ONNX models" and "QNN Execution Provider".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from paceline.errors import InputError, printable
from paceline_export.lower.external_data import ExternalData
from paceline_export.lower.tflite_read import UNREADABLE
from paceline_export.npu.operators import damaged
from paceline_export.npu.qdq_ops import UnknownOperatorError, translated
from paceline_export.npu.qdq_weights import TwinWeights, settled_scale
from paceline_export.npu.tflite_graphs import GraphTensor, SignatureGraph, read_graphs
from paceline_export.weights import Progress

OPSETS = {"": 21}  # the first whose QuantizeLinear has integers of 16 bits
IR_VERSION = 10
PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")  # of a signature, which becomes part of a file's name


def write_twin(folder: Path, part: str, tflite_file: Path, progress: Progress) -> dict[str, str]:
    """Writes every signature of a part as an ONNX model into `folder`, and beside them one file with the weights of all.

    Args:
        part: target or drafter.
        tflite_file: its integer graphs, before any compiler.
        progress: called after every piece of a tensor that is written.

    Returns:
        signature -> its file's name.

    Raises:
        InputError: it is not a whole .tflite file, or has an operator that the twin has no form for.
    """
    graphs, files = read_graphs(tflite_file), dict[str, str]()
    with ExternalData(folder, data_file(part), progress) as data:
        weights = TwinWeights(data, tflite_file.stat().st_size)
        for graph in graphs:
            if not PLAIN_NAME.fullmatch(graph.name) or graph.name in files:
                raise InputError(f"{tflite_file} has a signature {printable(graph.name)!r}, whose name no file can have.")
            files[graph.name] = f"{part}.npu.{graph.name}.onnx"
            try:
                model = Twin(graph, weights).model()
            except UNREADABLE as error:
                raise damaged(tflite_file, error) from None
            except UnknownOperatorError as unknown:
                raise InputError(f"{tflite_file}: signature {graph.name} has {unknown}, which the ONNX twin lacks.") from None
            ir.save(model, folder / files[graph.name])
    return files


def data_file(part: str) -> str:
    """The name of the file with the weights of all models of a part."""
    return f"{part}.npu.onnx.data"


@dataclass
class Twin:
    """One signature under translation.

    Attributes:
        numbers: tensor -> its values, float32 where it is quantised.
        integers: tensor -> what its QuantizeLinear made.
        dequantised: tensor of DEQUANTIZE -> the tensor with its integers.
    """

    graph: SignatureGraph
    weights: TwinWeights
    tape: ir.tape.Tape = field(default_factory=ir.tape.Tape)
    numbers: dict[int, ir.Value] = field(default_factory=dict)
    integers: dict[int, ir.Value] = field(default_factory=dict)
    dequantised: dict[int, int] = field(default_factory=dict)
    _initializers: dict[str, ir.Value] = field(default_factory=dict)
    _count: int = 0

    def model(self) -> ir.Model:
        """The whole of it."""
        inputs = [self._input(name, place) for name, place in self.graph.inputs.items()]
        for operator in self.graph.operators:
            for place, value in zip(operator.outputs, translated(self, operator), strict=True):
                self._define(place, value)
        outputs = [self._output(name, place) for name, place in self.graph.outputs.items()]
        if len({id(value) for value in (*inputs, *outputs)}) < len(inputs) + len(outputs):
            raise ValueError("a tensor is an output twice, or an input as well")
        initializers = list(self._initializers.values())
        graph = ir.Graph(
            inputs, outputs, nodes=self.tape.nodes, initializers=initializers, opset_imports=OPSETS, name=self.graph.name
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="paceline")

    def tensor(self, place: int) -> GraphTensor:
        """What the .tflite says of a tensor."""
        return self.graph.tensors[place]

    def number(self, place: int) -> ir.Value:
        """The values of a tensor: float32 where it is quantised. Raises ValueError where nothing has made it yet."""
        if place not in self.numbers:
            tensor = self.tensor(place)
            stored = self._initializer(self.weights.tensor(tensor))
            self.numbers[place] = self.dequantised_value(stored, tensor) if tensor.quantised else stored
        return self.numbers[place]

    def matrix(self, place: int) -> ir.Value:
        """Weights [N, K] as float32 [K, N], which is how MatMul has them."""
        weight = self.tensor(place)
        stored = self._initializer(self.weights.turned(weight))
        return self.dequantised_value(stored, weight, axis=1 - weight.axis)

    def node(self, kind: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Adds a node with one output and returns that."""
        return self.nodes(kind, *inputs, outputs=1, **attributes)[0]

    def nodes(self, kind: str, *inputs: ir.Value, outputs: int, **attributes: Any) -> list[ir.Value]:
        """Adds a node with several outputs and returns them."""
        self._count += 1
        name = f"{kind}_{self._count}"
        made = self.tape.op_multi_out(kind, list(inputs), attributes, num_outputs=outputs, name=name)
        for index, value in enumerate(made):
            value.name = f"{name}.{index}"
        return list(made)

    def constant(self, values: Any, dtype: Any = np.int64) -> ir.Value:
        """A small constant; the same one is there once."""
        array = np.asarray(values, ml_dtypes.int4 if dtype == "int4" else dtype)
        name = f"constant.{array.dtype}.{list(array.shape)}.{sha256(array.tobytes()).hexdigest()[:16]}"
        return self._initializers.get(name) or self._initializer(ir.tensor(array, name=name))

    def quantised_value(self, value: ir.Value, scale: np.float32, zero_point: int, dtype: str) -> ir.Value:
        """Integers of these numbers."""
        return self.node("QuantizeLinear", value, self.constant(scale, np.float32), self.constant(zero_point, dtype))

    def dequantised_value(self, value: ir.Value, like: GraphTensor, axis: int | None = None) -> ir.Value:
        """The numbers of integers that have the scale of a tensor, or the scales that it has along `axis`."""
        # ONNX lets a zero point of 0 be left out, but Qualcomm's provider then takes int4 for other numbers.
        if len(like.scales) == 1:
            scale, zero_point = self.constant(settled_scale(like), np.float32), self.constant(like.zero_point, like.dtype)
            return self.node("DequantizeLinear", value, scale, zero_point)
        scales, zeros = self._initializer(self.weights.scales(like)), self.constant(np.zeros(len(like.scales)), like.dtype)
        return self.node("DequantizeLinear", value, scales, zeros, axis=like.axis if axis is None else axis)

    def through_integers(self, value: ir.Value, scale: np.float32, zero_point: int, dtype: str) -> ir.Value:
        """The same numbers, by way of integers."""
        integers = self.quantised_value(value, scale, zero_point, dtype)
        return self.node("DequantizeLinear", integers, self.constant(scale, np.float32), self.constant(zero_point, dtype))

    def settled(self, value: ir.Value, like: GraphTensor) -> ir.Value:
        """A value between two operators that stand for one of the .tflite: it has the scale of a tensor, too."""
        if not like.quantised:
            return value
        return self.through_integers(value, settled_scale(like), like.zero_point, like.dtype)

    def _define(self, place: int, value: ir.Value) -> None:
        tensor = self.tensor(place)
        if place in self.numbers:
            raise ValueError(f"{tensor.name} is made twice")
        if tensor.quantised:
            self.integers[place] = self.quantised_value(value, settled_scale(tensor), tensor.zero_point, tensor.dtype)
            value = self.dequantised_value(self.integers[place], tensor)
        self.numbers[place] = value

    def _input(self, name: str, place: int) -> ir.Value:
        tensor = self.tensor(place)
        if place in self.numbers:
            raise ValueError(f"{tensor.name} is an input twice")
        value = _described(ir.Value(name=name), tensor)
        self.numbers[place] = self.dequantised_value(value, tensor) if tensor.quantised else value
        return value

    def _output(self, name: str, place: int) -> ir.Value:
        tensor = self.tensor(place)
        if place not in (self.integers if tensor.quantised else self.numbers):
            raise ValueError(f"{tensor.name} is an output that nothing makes")
        value = _described(self.integers[place] if tensor.quantised else self.numbers[place], tensor)
        value.name = name
        return value

    def _initializer(self, tensor: ir.TensorProtocol) -> ir.Value:
        name = str(tensor.name)
        if name not in self._initializers:
            kind = ir.TensorType(tensor.dtype)
            self._initializers[name] = ir.Value(name=name, type=kind, shape=tensor.shape, const_value=tensor)  # type: ignore[arg-type]
        return self._initializers[name]


def _described(value: ir.Value, tensor: GraphTensor) -> ir.Value:
    value.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(tensor.dtype)))
    value.shape = ir.Shape(tensor.shape)
    return value
