"""The weight file beside an ONNX graph: tensors appended one at a time, so only one is ever in memory.

Spec: https://github.com/onnx/onnx/blob/main/docs/ExternalData.md
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

PAGE_BYTES = 4096  # big tensors start on a page, so that the runtime can map them in place
LINE_BYTES = 64
Progress = Callable[[str, int], None]  # tensor name, bytes written


class ExternalData:
    """Appends tensors to `folder / location`; used as a context manager.

    Attributes:
        written: name -> tensor, for another graph that wants to point at the same bytes.
    """

    def __init__(self, folder: Path, location: str, progress: Progress):
        self.folder, self.location, self.progress = folder, location, progress
        self.written: dict[str, ir.ExternalTensor] = {}

    def __enter__(self) -> ExternalData:
        self._file = open(self.folder / self.location, "xb")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, name: str, values: NDArray[Any]) -> ir.ExternalTensor:
        """Appends one tensor and returns a reference to its bytes."""
        step = PAGE_BYTES if values.nbytes >= PAGE_BYTES else LINE_BYTES
        offset = -(-self._file.tell() // step) * step
        self._file.seek(offset)
        self._file.write(np.ascontiguousarray(values).data)
        self.progress(name, values.nbytes)
        tensor = ir.ExternalTensor(
            self.location,
            offset,
            values.nbytes,
            ir.DataType.from_numpy(values.dtype),
            shape=ir.Shape(values.shape),
            name=name,
            base_dir=self.folder,
        )
        self.written[name] = tensor
        return tensor
