"""Reads back what a .tflite file of ours stores behind its flatbuffer: packed weights and their scales."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from paceline.errors import InputError

PIECE_BYTES = 16 << 20
MOST_TENSORS = 1 << 18  # of all subgraphs: E2B's target has some thousand in each of six, and a small file can claim billions


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
# What mapping a file and following its offsets may raise.
UNREADABLE = (OSError, ValueError, TypeError, AttributeError, IndexError, KeyError, OverflowError, struct.error)


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """What a .tflite file holds behind its flatbuffer, by tensor name; the file is mapped and not read.

    Nobody has checked the file. Python's flatbuffers read from wherever an offset points to, and raise where that is outside.

    Raises:
        InputError: the file cannot be mapped, or an offset points outside it.
    """
    try:
        return _stored(np.memmap(file, np.uint8, "r"))
    except UNREADABLE as error:
        raise InputError(f"{file} is not a whole .tflite file ({error}); export the bundle again.") from None


def _stored(content: NDArray[np.uint8]) -> dict[str, StoredTensor]:
    if not schema.Model.ModelBufferHasIdentifier(content[:8].tobytes(), 0):
        raise ValueError("it does not begin as one")
    model, found, seen = schema.Model.GetRootAs(content), dict[str, StoredTensor](), 0
    for graph in map(model.Subgraphs, range(model.SubgraphsLength())):
        seen += 1 + graph.TensorsLength()
        if seen > MOST_TENSORS:
            raise ValueError(f"it has more than {MOST_TENSORS} tensors")
        for tensor in map(graph.Tensors, range(graph.TensorsLength())):
            if tensor.Buffer() >= model.BuffersLength():
                raise ValueError("a tensor has a buffer that is not there")
            buffer, name = model.Buffers(tensor.Buffer()), tensor.Name().decode()
            start, size = buffer.Offset(), buffer.Size()
            if start == 0 or name in found:
                continue
            if start + size > len(content):
                raise ValueError(f"{name} ends outside the file")
            quantization = tensor.Quantization()
            scales = quantization.ScaleAsNumpy() if quantization is not None and quantization.ScaleLength() else None
            found[name] = StoredTensor(content[start : start + size], scales)
    return found
