"""Reads back what a .tflite file of ours stores behind its flatbuffer: packed weights and their scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from paceline.errors import InputError

PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class StoredTensor:
    """Bytes of a tensor behind a flatbuffer, and its scales if it has one for each row."""

    content: NDArray[np.uint8]
    scales: NDArray[np.float32] | None

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """The bytes, some at a time."""
        for start in range(0, len(self.content), PIECE_BYTES):
            yield self.content[start : start + PIECE_BYTES]


StoredTensors = Mapping[str, StoredTensor]


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """What a .tflite file holds behind its flatbuffer, by tensor name; the file is mapped and not read.

    Raises:
        InputError: an offset points outside the file.
    """
    content = np.memmap(file, np.uint8, "r")
    model, found = schema.Model.GetRootAs(content), dict[str, StoredTensor]()
    for graph in map(model.Subgraphs, range(model.SubgraphsLength())):
        for tensor in map(graph.Tensors, range(graph.TensorsLength())):
            buffer, name = model.Buffers(tensor.Buffer()), tensor.Name().decode()
            start, size = buffer.Offset(), buffer.Size()
            if start == 0 or name in found:
                continue
            if start + size > len(content):
                raise InputError(f"{file}: {name} ends outside the file; export the bundle again.")
            quantization = tensor.Quantization()
            scales = quantization.ScaleAsNumpy() if quantization is not None and quantization.ScaleLength() else None
            found[name] = StoredTensor(content[start : start + size], scales)
    return found
