"""Logits of the tokens of some clusters: the part of a clustered head whose form depends on what the table is stored as.

onnxruntime unpacks int4 slowly, and a draft step reads 4,096 rows of them. So int4 lies on disk, and a Cast of the
constant widens it to int8 once, when a session folds its constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from paceline_export.lower.onnx_weights import GraphWeights
from paceline_export.quantize import Scheme, pack_int4
from paceline_export.weights import Weight, pieces_by_cluster

if TYPE_CHECKING:
    from paceline_export.lower.onnx_ops import OnnxOps


def cluster_logits(op: OnnxOps, x: ir.Value, best: ir.Value, table: Weight, members: NDArray[np.int64]) -> ir.Value:
    """Logits [1, top_k * size] of the tokens of clusters `best` [top_k], in the order of `members` [C, size]; x is [1, D]."""
    weights, width = op.state.weights, table.shape[1]
    scheme = weights.rounding.scheme(table.name)
    if scheme is None:
        name, shape = f"{table.name}.by_cluster", (*members.shape, width)
        by_cluster = weights.stored(name, shape, ir.DataType.FLOAT, lambda: pieces_by_cluster(table, members))
        rows = op.reshape(op.node("Gather", by_cluster, best, axis=0), -1, width)
        return op.node("Gemm", x, rows, transB=1)
    group = scheme.group(width)
    integers, scales = _integers_by_cluster(weights, table, members, scheme)
    rounded, step, zero = op.nodes("DynamicQuantizeLinear", x, outputs=3)
    inputs = [op.reshape(rounded, 1, width // group, 1, group)]
    if scheme.bits == 4:
        widened = op.node("Cast", integers, to=ir.DataType.INT8)
        inputs += [op.node("Gather", widened, best, axis=0), zero]
    else:
        # As unsigned: on AVX2 a product of uint8 and int8 saturates, unless the latter are as small as an int4.
        inputs += [op.node("Gather", integers, best, axis=0), zero, op.constant(0x80, np.uint8)]
    sums = op.node("Cast", op.node("MatMulInteger", *inputs), to=ir.DataType.FLOAT)
    scaled = op.multiply(sums, op.node("Gather", scales, best, axis=0))
    summed = op.node("ReduceSum", scaled, op.constant([1]), keepdims=0)
    return op.multiply(op.reshape(summed, 1, -1), step)


def _integers_by_cluster(
    weights: GraphWeights, table: Weight, members: NDArray[np.int64], scheme: Scheme
) -> tuple[ir.Value, ir.Value]:
    """Integers [C, G, group, size] and scales [C, G, 1, size]: a cluster's tokens are the columns of its matrices."""
    (clusters, size), width = members.shape, table.shape[1]
    groups = width // scheme.group(width)
    scales: list[NDArray[np.float32]] = []

    def integers() -> Iterator[NDArray[np.uint8]]:
        for piece in weights.rounding.round(table.name, lambda: pieces_by_cluster(table, members)):
            scales.append(piece.scales.reshape(-1, size, groups).transpose(0, 2, 1))
            columns = np.ascontiguousarray(piece.integers.reshape(-1, size, groups, width // groups).transpose(0, 2, 3, 1))
            yield pack_int4(columns) if scheme.bits == 4 else columns.view(np.uint8) ^ np.uint8(0x80)

    name, shape = f"{table.name}.by_cluster", (clusters, groups, width // groups, size)
    dtype = ir.DataType.INT4 if scheme.bits == 4 else ir.DataType.UINT8
    return (
        weights.stored(name, shape, dtype, integers),
        weights.stored(f"{name}.scales", (clusters, groups, 1, size), ir.DataType.FLOAT, lambda: scales),
    )
