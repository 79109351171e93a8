"""A weight is a handle: a name, a shape and a way to read it. Nothing is in memory until a lowering asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


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
