"""Operators of a subgraph, each given its shape: what the op vocabulary is built of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from paceline_export.lower.flatbuffer import Builtin, Subgraph, Tensor
from paceline_export.lower.tflite_weights import IntegerWeight
from paceline_export.rounding import Rounding
from paceline_export.weights import Pieces, Weight


@dataclass
class Nodes:
    """Adds operators to a subgraph.

    Attributes:
        rounding: of the weights that are not float32.
        integers: those that the file already has, shared by its subgraphs.
    """

    graph: Subgraph
    rounding: Rounding
    integers: dict[str, IntegerWeight]

    def node(
        self,
        builtin: int,
        inputs: Sequence[Tensor | None],
        shape: Sequence[int],
        options: Any = None,
        dtype: str = "float32",
        version: int = 1,
    ) -> Tensor:
        """Adds an operator with one output and returns that."""
        made = self.graph.tensor(shape, dtype)
        self.graph.operator(builtin, inputs, [made], options, version)
        return made

    def constant(self, values: Any, dtype: Any = np.float32) -> Tensor:
        return self.graph.constant(np.asarray(values, dtype))

    def weight(self, weight: Weight) -> Tensor:
        """A weight as its scheme has it."""
        if self.rounding.scheme(weight.name) is None:
            return self.stored(weight.name, weight.shape, "float32", weight.pieces)
        return self.integer(weight.name, weight, weight.pieces).tensor(self.graph)

    def integer(self, name: str, weight: Weight, pieces: Pieces, together: int = 1) -> IntegerWeight:
        """Integers stored under `name` by the scheme of `weight`; `pieces` makes its rows in the order they are stored in."""
        if name not in self.integers:
            rows, columns = weight.shape
            made = IntegerWeight(self.graph.file, name, weight.name, (rows, columns), self.rounding, pieces, together)
            self.integers[name] = made
        return self.integers[name]

    def stored(self, name: str, shape: Sequence[int], dtype: str, pieces: Pieces) -> Tensor:
        """Weights behind the flatbuffer; `pieces` makes their values."""
        return self.graph.tensor(shape, dtype, self.graph.file.stored(name, shape, dtype, pieces), name)

    def reshape(self, x: Tensor, *shape: int, dtype: str = "float32") -> Tensor:
        if x.shape == shape:
            return x
        options = schema.ReshapeOptionsT()
        options.newShape = list(shape)
        return self.node(Builtin.RESHAPE, [x, self.constant(shape, np.int32)], shape, options, dtype)

    def join(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Joins tensors along one axis."""
        if len(parts) == 1:
            return parts[0]
        options = schema.ConcatenationOptionsT()
        options.axis = axis
        first = parts[0].shape
        shape = (*first[:axis], sum(part.shape[axis] for part in parts), *first[axis + 1 :])
        return self.node(Builtin.CONCATENATION, parts, shape, options)

    def slice(self, x: Tensor, axis: int, start: int, size: int) -> Tensor:
        """Part of one axis."""
        begin = [start if i == axis else 0 for i in range(len(x.shape))]
        shape = [size if i == axis else whole for i, whole in enumerate(x.shape)]
        inputs = [x, self.constant(begin, np.int32), self.constant(shape, np.int32)]
        return self.node(Builtin.SLICE, inputs, shape, schema.SliceOptionsT())

    def product(self, x: Tensor, y: Tensor, shape: Sequence[int], transposed: bool) -> Tensor:
        """A product of two computed matrices; unlike FULLY_CONNECTED it reads the second one where it is."""
        options = schema.BatchMatMulOptionsT()
        options.adjY = transposed
        return self.node(Builtin.BATCH_MATMUL, [x, y], shape, options)
