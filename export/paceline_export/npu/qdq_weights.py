"""The constants of ONNX twins: large ones in the data file that all models of a part share, small ones in the models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil, prod

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from paceline_export.lower.external_data import PAGE_BYTES, ExternalData
from paceline_export.lower.onnx_weights import view
from paceline_export.npu.tflite_graphs import BITS, GraphTensor
from paceline_export.quantize import pack_int4, unpack_int4

PIECE_BYTES = 16 << 20
# A file names most of its bytes once. A strange one may name the same bytes as many tensors, and each would be written.
MOST_WRITTEN = 3
DTYPES = {
    "float32": ir.DataType.FLOAT,
    "int32": ir.DataType.INT32,
    "int16": ir.DataType.INT16,
    "int8": ir.DataType.INT8,
    "int4": ir.DataType.INT4,
}


@dataclass
class TwinWeights:
    """What the models of a part share.

    Attributes:
        source_bytes: the size of the .tflite, which bounds what is written.
    """

    data: ExternalData
    source_bytes: int
    _tensors: dict[str, ir.TensorProtocol] = field(default_factory=dict)
    _written: int = 0

    def tensor(self, tensor: GraphTensor) -> ir.TensorProtocol:
        """A constant as it is. Raises ValueError where it is none."""
        content = _content(tensor)
        stored = self._stored(tensor, "", tensor.dtype, tensor.shape, lambda: _in_pieces(content))
        return _of_scales(stored, tensor)

    def turned(self, weight: GraphTensor) -> ir.TensorProtocol:
        """Weights [N, K] of int8 or int4 as [K, N]. Raises ValueError where they are something else."""
        content = _content(weight)
        if len(weight.shape) != 2 or weight.dtype not in ("int8", "int4") or weight.zero_point or not weight.quantised:
            raise ValueError(f"{weight.name} is no matrix of symmetric int8 or int4")
        turned = _turned_int4 if weight.dtype == "int4" else _turned_int8
        shape = weight.shape[1], weight.shape[0]
        stored = self._stored(weight, ".turned", weight.dtype, shape, lambda: turned(content, weight.shape))
        return _of_scales(stored, weight)

    def scales(self, weight: GraphTensor) -> ir.TensorProtocol:
        """Scales of the rows of weights. Raises ValueError where one is no positive number."""
        scales = weight.scales
        if not (np.isfinite(scales).all() and (scales > 0).all()):
            raise ValueError(f"a scale of {weight.name} is no positive number")
        return self._stored(weight, f".scales.{_digest(weight)}", "float32", scales.shape, lambda: [scales])

    def _stored(
        self,
        tensor: GraphTensor,
        what: str,
        dtype: str,
        shape: tuple[int, ...],
        pieces: Callable[[], Iterable[NDArray[np.generic]]],
    ) -> ir.TensorProtocol:
        """What was made of a tensor's bytes; tensors of the same bytes share it, and it has the first one's name."""
        key = f"{tensor.buffer}{what}.{dtype}.{'x'.join(map(str, shape))}"
        if key not in self._tensors:
            size, name = ceil(prod(shape) * BITS[dtype] / 8), f"{tensor.name}.{key}"
            self._written += size
            if self._written > MOST_WRITTEN * self.source_bytes:
                raise ValueError("its tensors name the same bytes again and again")
            if size < PAGE_BYTES and dtype != "int4":
                (only,) = pieces()
                self._tensors[key] = ir.tensor(np.ascontiguousarray(only).view(dtype).reshape(shape), name=name)
            else:
                self._tensors[key] = self.data.add(name, shape, DTYPES[dtype], pieces())
        return self._tensors[key]


def _of_scales(stored: ir.TensorProtocol, tensor: GraphTensor) -> ir.TensorProtocol:
    """The same bytes under a name of their scales: Qualcomm's provider believes that what has one name has one scale."""
    if not tensor.quantised:
        return stored
    name = f"{stored.name}.{_digest(tensor)}"
    return view(stored, name) if isinstance(stored, ir.ExternalTensor) else ir.tensor(stored.numpy(), name=name)


def _digest(tensor: GraphTensor) -> str:
    return sha256(tensor.scales.tobytes() + bytes(str(tensor.zero_point), "ascii")).hexdigest()[:16]


def settled_scale(tensor: GraphTensor) -> np.float32:
    """The one scale of a tensor. Raises ValueError where it has others, or it is no positive number."""
    if len(tensor.scales) != 1 or not 0 < tensor.scales[0] < np.inf:
        raise ValueError(f"{tensor.name} has not one scale above 0")
    return np.float32(tensor.scales[0])


def _content(tensor: GraphTensor) -> NDArray[np.uint8]:
    if tensor.content is None:
        raise ValueError(f"{tensor.name} is read before it is made")
    return tensor.content


def _in_pieces(content: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


def _columns(rows: int, columns: int) -> Iterator[slice]:
    """So many columns that they are a piece, an even number of them."""
    step = max(2, PIECE_BYTES // rows // 2 * 2)
    for start in range(0, columns, step):
        yield slice(start, min(start + step, columns))


def _turned_int8(content: NDArray[np.uint8], shape: tuple[int, ...]) -> Iterator[NDArray[np.uint8]]:
    matrix = content.reshape(shape)
    for columns in _columns(*shape):
        yield np.ascontiguousarray(matrix[:, columns].T)


def _turned_int4(content: NDArray[np.uint8], shape: tuple[int, ...]) -> Iterator[NDArray[np.uint8]]:
    if shape[1] % 2:
        raise ValueError("the rows of int4 weights end within a byte")
    packed = content.reshape(shape[0], shape[1] // 2)
    for columns in _columns(*shape):
        both = packed[:, columns.start // 2 : columns.stop // 2]
        yield pack_int4(unpack_int4(both.reshape(-1), prod((shape[0], columns.stop - columns.start))).reshape(shape[0], -1).T)
