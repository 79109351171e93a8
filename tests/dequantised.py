"""Weights as they are in an exported file, turned back into float32 by the formats' own rules, not by our packing code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

Floats = NDArray[np.float32]
BY_CLUSTER = ".by_cluster"


def nibbles(packed: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Unsigned halves of bytes, the low one first; flat."""
    return np.stack([packed & 15, packed >> 4], -1).reshape(-1).astype(np.int16)


def of_tflite(file: Path, count: int) -> dict[str, Floats]:
    """Every integer weight of a .tflite file; a clustered table as [C, size, D], its clusters having `count` tokens."""
    content = file.read_bytes()
    model = schema.ModelT.InitFromPackedBuf(content)
    tensors = {t.name.decode(): t for graph in model.subgraphs for t in graph.tensors}

    def stored(name: str) -> NDArray[np.uint8]:
        buffer = model.buffers[tensors[name].buffer]
        return np.frombuffer(content, np.uint8, buffer.size, buffer.offset)

    found = {}
    for name, tensor in tensors.items():
        if tensor.type not in (schema.TensorType.INT4, schema.TensorType.INT8) or tensor.quantization is None:
            continue
        raw = stored(name)
        signed = (nibbles(raw) ^ 8) - 8 if tensor.type == schema.TensorType.INT4 else raw.view(np.int8)
        integers = signed.astype(np.float32)
        if isinstance(tensor.quantization.details, schema.BlockwiseQuantizationT):
            scales = stored(f"{name}.scales").view(np.float16).astype(np.float32)
        else:
            scales = np.array(tensor.quantization.scale, np.float32)
            if name.endswith(BY_CLUSTER):
                assert set(scales) == {1}
                scales = stored(f"{name}.scales").view(np.float32)
        values = integers.reshape(scales.size, -1) * scales[:, None]
        found[name] = values.reshape(tensor.shape[0], count, -1) if name.endswith(BY_CLUSTER) else values.reshape(tensor.shape)
    return found


def of_onnx(file: Path) -> dict[str, Floats]:
    """Every integer weight of an .onnx file, as `of_tflite` gives them; what fills blocks up must be zero."""
    model = onnx.load(file)
    tensors = {t.name: t for t in model.graph.initializer}
    nodes = [*model.graph.node, *(n for node in model.graph.node for a in node.attribute for n in a.g.node)]
    found = {}
    for node in nodes:
        if node.op_type != "MatMulNBits":
            continue
        bits, block, rows, columns = (
            next(a.i for a in node.attribute if a.name == name) for name in ("bits", "block_size", "N", "K")
        )
        packed, scales = (numpy_helper.to_array(tensors[name]) for name in node.input[1:3])
        unsigned = nibbles(packed.reshape(-1)) if bits == 4 else packed.reshape(-1).astype(np.int16)
        values = (unsigned - (1 << (bits - 1))).reshape(rows, -1, block) * scales[:, :, None]
        values = values.reshape(rows, -1).astype(np.float32)
        assert not values[:, columns:].any()
        found[node.input[1]] = values[:, :columns]
    for name, tensor in tensors.items():
        if name.endswith(BY_CLUSTER) and tensor.data_type != TensorProto.FLOAT:
            integers = numpy_helper.to_array(tensor).astype(np.float32)  # [C, G, group, size]
            integers -= 128 if tensor.data_type == TensorProto.UINT8 else 0
            values = integers * numpy_helper.to_array(tensors[f"{name}.scales"])
            clusters, _, _, size = values.shape
            found[name] = np.ascontiguousarray(values.reshape(clusters, -1, size).transpose(0, 2, 1))
    return found
