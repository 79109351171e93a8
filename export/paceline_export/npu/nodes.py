"""Operators of a static graph, each tensor at its own scale: what the op vocabulary for a neural processor is built of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from paceline.npu.scales import Scale
from paceline.signatures import Port
from paceline_export.lower.flatbuffer import Builtin, Tensor
from paceline_export.lower.tflite_plain import PlainOps
from paceline_export.npu.numbers import MOVES, Floats, Numbers, quantization
from paceline_export.weights import Weight


@dataclass
class StaticNodes(PlainOps):
    """Adds operators to a subgraph.

    Attributes:
        numbers: what floating point values are written as.
    """

    numbers: Numbers = field(default_factory=Floats)
    _step: int = 0
    _count: int = 0

    def input(self, port: Port) -> Tensor:
        """An input of the signature, at the scale that has its name."""
        made = self.graph.input(port)
        if port.dtype == self.numbers.dtype:
            self._tensor(made).quantization = quantization(self.numbers.scale(port.name))
        return made

    def begin_step(self) -> None:
        """The tensors that follow are those of a new drafter step, and have the ranges of the others'."""
        self._step, self._count = self._step + 1, 0

    def node(
        self,
        builtin: int,
        inputs: Sequence[Tensor | None],
        shape: Sequence[int],
        options: Any = None,
        dtype: str = "float32",
        version: int = 1,
    ) -> Tensor:
        if dtype != "float32":
            return super().node(builtin, inputs, shape, options, dtype, version)
        if builtin in MOVES:
            assert inputs[0] is not None
            described, name = self._described(inputs[0]), ""
        else:
            name = self._next_name()
            described = quantization(self.numbers.fixed(builtin) or self.numbers.scale(name))
        made = self.graph.tensor(shape, self.numbers.dtype, name=self._label(name), quantization=described)
        self.graph.operator(builtin, inputs, [made], options, version)
        return made

    def unnamed(
        self,
        builtin: int,
        inputs: Sequence[Tensor | None],
        shape: Sequence[int],
        dtype: str,
        scale: Scale | None,
        options: Any,
        version: int = 1,
    ) -> Tensor:
        """An operator whose result's range is known, and which is not counted with those that are measured."""
        made = self.graph.tensor(shape, dtype, quantization=quantization(scale))
        self.graph.operator(builtin, inputs, [made], options, version)
        return made

    def constant(self, values: Any, dtype: Any = np.float32) -> Tensor:
        if np.dtype(dtype) != np.float32:
            return super().constant(values, dtype)
        stored, scale = self.numbers.written(np.asarray(values, np.float32))
        buffer = self.graph.file.constant(stored)
        return self.graph.tensor(stored.shape, self.numbers.dtype, buffer, quantization=quantization(scale))

    def weight(self, weight: Weight) -> Tensor:
        return super().weight(weight) if len(weight.shape) == 2 else self.constant(weight.read())

    def join(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Joins tensors along one axis; those of another scale than the result's are brought to it."""
        if len(parts) == 1:
            return parts[0]
        described = quantization(self.numbers.scale(name := self._next_name()))
        return self.joined_at(described, parts, axis, name)

    def joined_at(self, described: Any, parts: Sequence[Tensor], axis: int, name: str = "") -> Tensor:
        """`join` with a given scale, as the flatbuffer has it."""
        first, options = parts[0].shape, schema.ConcatenationOptionsT()
        options.axis = axis
        shape = (*first[:axis], sum(part.shape[axis] for part in parts), *first[axis + 1 :])
        joined = self.graph.tensor(shape, self.numbers.dtype, name=self._label(name), quantization=described)
        self.graph.operator(Builtin.CONCATENATION, [self._as(part, joined) for part in parts], [joined], options)
        return joined

    def table(self, name: str, rows: NDArray[np.float32]) -> Tensor:
        """Many constants, behind the flatbuffer."""
        stored, scale = self.numbers.written(rows)
        buffer = self.graph.file.stored(name, rows.shape, self.numbers.dtype, lambda: [stored])
        return self.graph.tensor(rows.shape, self.numbers.dtype, buffer, name, quantization(scale))

    def _zeros(self, shape: tuple[int, ...], described: Any) -> Tensor:
        """Zeros at a scale, as the flatbuffer has it."""
        zero = 0 if described is None else described.zeroPoint[0]
        buffer = self.graph.file.constant(np.full(shape, zero, self.numbers.dtype))
        return self.graph.tensor(shape, self.numbers.dtype, buffer, quantization=described)

    def _turned(self, x: Tensor, order: tuple[int, ...]) -> Tensor:
        shape = [x.shape[axis] for axis in order]
        return self.node(Builtin.TRANSPOSE, [x, self.constant(order, np.int32)], shape, schema.TransposeOptionsT())

    def _heads(self, x: Tensor) -> list[Tensor]:
        """The kv heads of a tensor, axis 1."""
        return [x] if x.shape[1] == 1 else [self.slice(x, 1, head, 1) for head in range(x.shape[1])]

    def _as(self, x: Tensor, wanted: Tensor) -> Tensor:
        """`x` at the scale of another tensor."""
        if _steps(self._described(x)) == _steps(self._described(wanted)):
            return x
        made = self.graph.tensor(x.shape, self.numbers.dtype, quantization=self._described(wanted))
        self.graph.operator(Builtin.QUANTIZE, [x], [made], schema.QuantizeOptionsT())
        return made

    def _described(self, x: Tensor) -> Any:
        return self._tensor(x).quantization

    def _tensor(self, x: Tensor) -> Any:
        return self.graph.graph.tensors[x.index]

    def _next_name(self) -> str:
        self._count += 1
        return f"a{self._count}"

    def _label(self, name: str) -> str:
        """Names of tensors are unique in a graph; those of a later step have its number behind them. QNN takes no dots."""
        return f"{name}_step_{self._step}" if name and self._step > 1 else name


def _steps(described: Any) -> tuple[float, int] | None:
    return None if described is None else (float(described.scale[0]), int(described.zeroPoint[0]))
