"""A weight is a handle: a name, a shape and ways to read it. Nothing is in memory until a lowering asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError

Pieces = Callable[[], Iterable[NDArray[Any]]]  # a tensor's values in order, some at a time
Progress = Callable[[str, int], None]  # tensor name, bytes written
PIECE_BYTES = 64 << 20  # of float32; what writing one tensor holds in memory


@dataclass(frozen=True)
class Weight:
    """One checkpoint tensor.

    Attributes:
        name: the tensor's name in a text-only checkpoint, e.g. `model.layers.0.mlp.up_proj.weight`.
        shape: as stored, linear weights `[out, in]`.
        read: reads the values as float32 (integer tensors as int64), shape `shape`.
        read_rows: reads rows start to stop of the first axis; None where the tensor is in memory anyway.
    """

    name: str
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]
    read_rows: Callable[[int, int], NDArray[Any]] | None = None

    def pieces(self) -> Iterator[NDArray[Any]]:
        """The values in order, some rows of at most PIECE_BYTES at a time.

        Raises:
            InputError: a value is not finite; no graph could compute with it.
        """
        rows = self.shape[0]
        step = max(1, PIECE_BYTES * rows // (4 * prod(self.shape))) if self.read_rows else rows
        for start in range(0, rows, step):
            piece = self.read_rows(start, min(rows, start + step)) if self.read_rows else self.read()
            if not np.isfinite(piece).all():
                raise InputError(f"{self.name} holds values that are not finite; train or download the checkpoint again.")
            yield piece


Weights = Mapping[str, Weight]
Shapes = dict[str, tuple[int, ...]]


def read_permutation(weight: Weight) -> NDArray[np.int64]:
    """Reads a tensor that must hold every index below its length once.

    Raises:
        InputError: it does not; as indices its values would point outside a table, or at the wrong rows.
    """
    values: NDArray[np.int64] = weight.read()
    if not np.array_equal(np.sort(values), np.arange(len(values))):
        raise InputError(
            f"{weight.name} holds values from {values.min()} to {values.max()}, which are not 0 to {len(values) - 1} "
            "in some order; download the checkpoint again."
        )
    return values


def pieces_by_cluster(table: Weight, members: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
    """The rows of a table [V, D] in the order of `members` [C, V / C], whole clusters at a time: [.., D]."""
    rows, filled = np.empty(table.shape, np.float32), 0
    for piece in table.pieces():
        rows[filled : filled + len(piece)] = piece
        filled += len(piece)
    step = max(1, PIECE_BYTES // (4 * members.shape[1] * table.shape[1]))
    for start in range(0, len(members), step):
        yield rows[members[start : start + step].reshape(-1)]
