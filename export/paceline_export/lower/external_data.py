"""The weight file beside an ONNX graph: tensors appended one at a time, so only a piece of one is in memory.

Spec: https://github.com/onnx/onnx/blob/main/docs/ExternalData.md
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from paceline.signatures import in_steps
from paceline_export.weights import Progress

PAGE_BYTES = 4096  # big tensors start on a page, so that the runtime can map them in place
LINE_BYTES = 64


class ExternalData:
    """Appends tensors to `folder / location`; used as a context manager."""

    def __init__(self, folder: Path, location: str, progress: Progress):
        self.folder, self.location, self.progress = folder, location, progress

    def __enter__(self) -> ExternalData:
        self._file = open(self.folder / self.location, "xb")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, name: str, shape: Sequence[int], dtype: ir.DataType, pieces: Iterable[NDArray[Any]]) -> ir.ExternalTensor:
        """Appends one tensor, piece by piece, and returns a reference to its bytes; int4 come packed."""
        size = ceil(prod(shape) * dtype.itemsize)
        offset = in_steps(self._file.tell(), PAGE_BYTES if size >= PAGE_BYTES else LINE_BYTES)
        self._file.seek(offset)
        for piece in pieces:
            self._file.write(np.ascontiguousarray(piece).data)
            self.progress(name, piece.nbytes)
        assert self._file.tell() - offset == size, f"{name} has another size than it announced"
        return ir.ExternalTensor(self.location, offset, size, dtype, shape=ir.Shape(shape), name=name, base_dir=self.folder)
