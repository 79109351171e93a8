"""Who runs the graphs for a neural processor: a chip, an emulator of one, or the CPU's own kernels for integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.backends.litert.expected import require_signatures
from paceline.backends.litert.model import CompiledModel, Environment, TensorBuffer
from paceline.signatures import Signature

Arrays = Mapping[str, NDArray[Any]]  # inputs and outputs of a signature, by name


class Runner(Protocol):
    """Runs signatures on memory that is given once."""

    def bind(self, part: str, signature: str, arrays: Arrays) -> Callable[[], None]:
        """What runs a signature of a part, from its inputs into its outputs."""

    def describe(self) -> str:
        """What runs the graphs, in a few words."""


class TokenTables(Protocol):
    """The token tables, which stay on the CPU."""

    def look_up(self, tokens: NDArray[np.int64], rows: int) -> dict[str, NDArray[np.float32]]:
        """The embeddings of `tokens`, by the name of the input that wants them, padded to `rows`."""


class LiteRtKernels:
    """LiteRT's kernels on the CPU: slow, and what every chip and emulator is compared with."""

    def __init__(self, environment: Environment, files: Mapping[str, Path], threads: int):
        """Loads the graphs; `files` by part. Raises InputError where LiteRT refuses one."""
        self.environment = environment
        self.models = {part: CompiledModel(environment, file, threads) for part, file in files.items()}
        self.files = files

    def require(self, part: str, expected: Mapping[str, Signature]) -> None:
        """Raises InputError where a part lacks a signature, or has another one of that name."""
        require_signatures(self.files[part], self.models[part], dict(expected))

    def bind(self, part: str, signature: str, arrays: Arrays) -> Callable[[], None]:
        """See `Runner`."""
        call = self.models[part].bind(signature)
        call.set_buffers({name: TensorBuffer(self.environment, array) for name, array in arrays.items()})
        return call.run

    def describe(self) -> str:
        """See `Runner`."""
        return f"LiteRT {self.environment.library.version}'s kernels for integers, on the CPU"
