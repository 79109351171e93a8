"""A weight is a handle: a name, a shape and a way to read it. Nothing is in memory until a lowering asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError


@dataclass(frozen=True)
class Weight:
    """One checkpoint tensor.

    Attributes:
        name: the tensor's name in a text-only checkpoint, e.g. `model.layers.0.mlp.up_proj.weight`.
        shape: as stored, linear weights `[out, in]`.
        read: reads the values as float32 (integer tensors as int64), shape `shape`.
    """

    name: str
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]


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
