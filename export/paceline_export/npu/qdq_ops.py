"""What each TFLite operator is in the ONNX twin: one node, or a few where Qualcomm's provider refuses that one.

Everything that is refused was tried on onnxruntime-qnn 2.7.0; onnxruntime's CPU provider takes all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from ai_edge_litert import schema_py_generated as schema

from paceline_export.npu.operators import NO_ACTIVATION
from paceline_export.npu.qdq_weights import settled_scale
from paceline_export.npu.tflite_graphs import GraphOperator

if TYPE_CHECKING:
    from paceline_export.npu.qdq import Twin

Translate = Callable[["Twin", GraphOperator], Sequence[ir.Value]]
MIDDLE = 1 << 15  # zero of int16 as uint16


class UnknownOperatorError(Exception):
    """An operator that has no form in the twin; the text says which."""


def translated(twin: Twin, op: GraphOperator) -> Sequence[ir.Value]:
    """What an operator makes, one value for each output.

    Raises:
        UnknownOperatorError: there is no form for it, or not for one of its options.
        ValueError: its operands cannot be.
    """
    if op.name not in OPERATORS:
        raise UnknownOperatorError(op.name)
    return OPERATORS[op.name](twin, op)


def _plain(kind: str, **attributes: str | int) -> Translate:
    """One node of one input."""
    return lambda twin, op: [twin.node(kind, twin.number(op.input(0)), **attributes)]


def _of_two(kind: str, options: type) -> Translate:
    def made(twin: Twin, op: GraphOperator) -> list[ir.Value]:
        _require_plain(op.options(options).FusedActivationFunction() == NO_ACTIVATION, op, "an activation function")
        return [twin.node(kind, twin.number(op.input(0)), twin.number(op.input(1)))]

    return made


def _fully_connected(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    options = op.options(schema.FullyConnectedOptions)
    _require_plain(options.FusedActivationFunction() == NO_ACTIVATION, op, "an activation function")
    _require_plain(all(place is None for place in op.inputs[2:]), op, "a bias")
    x, made = twin.tensor(op.input(0)), twin.tensor(op.outputs[0])
    _require_plain(len(x.shape) == len(made.shape), op, "an output of fewer dimensions")
    return [twin.node("MatMul", twin.number(op.input(0)), twin.matrix(op.input(1)))]


def _batch_matmul(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    """The provider's MatMul takes a transposed factor, and Einsum is the ONNX operator that becomes one."""
    options, shapes = op.options(schema.BatchMatMulOptions), [twin.tensor(op.input(place)).shape for place in (0, 1)]
    _require_plain(not options.AdjX(), op, "a transposed first factor")
    factors = twin.number(op.input(0)), twin.number(op.input(1))
    if not options.AdjY():
        return [twin.node("MatMul", *factors)]
    batch = "abcdefgh"[: len(shapes[0]) - 2]
    _require_plain(shapes[0][:-2] == shapes[1][:-2], op, "factors of different batches")
    return [twin.node("Einsum", *factors, equation=f"{batch}ij,{batch}kj->{batch}ik")]


def _mean(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    axes = twin.tensor(op.input(1)).values().reshape(-1)
    keeps = bool(op.options(schema.ReducerOptions).KeepDims())
    return [twin.node("ReduceMean", twin.number(op.input(0)), twin.constant(axes), keepdims=int(keeps))]


def _rsqrt(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    """A power, since ONNX has no such operator. The exponent is unsigned: the provider refuses int16 there."""
    half = twin.node(
        "DequantizeLinear", twin.constant([0], np.uint16), twin.constant(0.5, np.float32), twin.constant(1, np.uint16)
    )
    return [twin.node("Pow", twin.number(op.input(0)), half)]


def _gelu(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    form = "tanh" if op.options(schema.GeluOptions).Approximate() else "none"
    return [twin.node("Gelu", twin.number(op.input(0)), approximate=form)]


def _softmax(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    _require_plain(op.options(schema.SoftmaxOptions).Beta() == 1, op, "a beta")
    return [twin.node("Softmax", twin.number(op.input(0)), axis=-1)]


def _reshape(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    return [twin.node("Reshape", twin.number(op.input(0)), twin.constant(twin.tensor(op.outputs[0]).shape))]


def _transpose(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    """Without axes of size 1 and between two Reshapes.

    onnxruntime moves a Transpose towards the graph's end for the provider, and one that it moves behind the last
    QuantizeLinear has no scale, which the provider refuses. It moves none across a Reshape.
    """
    x, made = twin.tensor(op.input(0)), twin.tensor(op.outputs[0])
    order = [int(axis) for axis in twin.tensor(op.input(1)).values()]
    if sorted(order) != list(range(len(x.shape))):
        raise ValueError(f"{op.name} has the order {order}")
    kept = [axis for axis, size in enumerate(x.shape) if size > 1]
    turned = [kept.index(axis) for axis in order if axis in kept]
    value = twin.number(op.input(0))
    if turned != sorted(turned):
        flat = twin.node("Reshape", value, twin.constant([x.shape[axis] for axis in kept]))
        value = twin.settled(twin.node("Transpose", twin.settled(flat, made), perm=turned), made)
    return [twin.node("Reshape", value, twin.constant(made.shape))]


def _slice(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    sizes, made = twin.tensor(op.input(0)).shape, twin.tensor(op.outputs[0]).shape
    starts = twin.tensor(op.input(1)).values().astype(np.int64).reshape(-1)
    if not len(starts) == len(sizes) == len(made):
        raise ValueError(f"{op.name} has {len(starts)} starts")
    axes = [axis for axis in range(len(sizes)) if sizes[axis] != made[axis]] or [0]
    ends = [starts[axis] + made[axis] for axis in axes]
    return [twin.node("Slice", twin.number(op.input(0)), *map(twin.constant, (starts[axes], ends, axes)))]


def _concatenation(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    options = op.options(schema.ConcatenationOptions)
    _require_plain(options.FusedActivationFunction() == NO_ACTIVATION, op, "an activation function")
    parts = [twin.number(op.input(place)) for place in range(len(op.inputs))]
    return [twin.node("Concat", *parts, axis=int(options.Axis()))]


def _quantize(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    return [twin.number(op.input(0))]


def _dequantize(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    twin.dequantised[op.outputs[0]] = op.input(0)
    return [twin.number(op.input(0))]


def _gather(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    options = op.options(schema.GatherOptions)
    _require_plain(not options.BatchDims(), op, "batches")
    return [twin.node("Gather", twin.number(op.input(0)), twin.number(op.input(1)), axis=int(options.Axis()))]


def _topk(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    """Of integers where a DEQUANTIZE stands in front: the chip's float32 has only 11 bits of a number."""
    count = twin.constant(twin.tensor(op.input(1)).values().reshape(1))
    values, places = twin.nodes("TopK", twin.number(op.input(0)), count, outputs=2, axis=-1)
    if op.input(0) in twin.dequantised:
        values = twin.settled(values, twin.tensor(twin.dequantised[op.input(0)]))
    return [values, twin.node("Cast", places, to=ir.DataType.INT32)]


def _arg_max(twin: Twin, op: GraphOperator) -> list[ir.Value]:
    """Of integers, too, which have to be unsigned if they have 16 bits."""
    axis, x = twin.tensor(op.input(1)).values().reshape(-1), twin.number(op.input(0))
    _require_plain(op.options(schema.ArgMaxOptions).OutputType() == schema.TensorType.INT32, op, "int64 places")
    if len(axis) != 1:
        raise ValueError(f"{op.name} has {len(axis)} axes")
    if op.input(0) in twin.dequantised:
        source = twin.tensor(twin.dequantised[op.input(0)])
        if source.dtype == "int16":
            x = twin.through_integers(x, settled_scale(source), MIDDLE + source.zero_point, "uint16")
    return [twin.node("Cast", twin.node("ArgMax", x, axis=int(axis[0]), keepdims=0), to=ir.DataType.INT32)]


OPERATORS: dict[str, Translate] = {
    "ADD": _of_two("Add", schema.AddOptions),
    "ARG_MAX": _arg_max,
    "BATCH_MATMUL": _batch_matmul,
    "CONCATENATION": _concatenation,
    "DEQUANTIZE": _dequantize,
    "FULLY_CONNECTED": _fully_connected,
    "GATHER": _gather,
    "GELU": _gelu,
    "MEAN": _mean,
    "MUL": _of_two("Mul", schema.MulOptions),
    "QUANTIZE": _quantize,
    "RESHAPE": _reshape,
    "RSQRT": _rsqrt,
    "SLICE": _slice,
    "SOFTMAX": _softmax,
    "TANH": _plain("Tanh"),
    "TOPK_V2": _topk,
    "TRANSPOSE": _transpose,
}


def _require_plain(holds: bool, op: GraphOperator, what: str) -> None:
    if not holds:
        raise UnknownOperatorError(f"{op.name} with {what}")
