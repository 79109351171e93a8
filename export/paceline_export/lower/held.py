"""Weights for the torch lowering that are too large to be float32 in memory: held in fewer bits, or read when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paceline_export.lower.torch import TorchOps
from paceline_export.quantize import quantize
from paceline_export.recipes import Schemes
from paceline_export.weights import Weight, Weights


class Tensors(Protocol):
    """Named float32 tensors, and single rows of them."""

    def __getitem__(self, name: str, /) -> Tensor: ...

    def rows(self, name: str, tokens: Tensor) -> Tensor:
        """Rows of a table for `tokens` [..] -> float32 [.., D]."""


class Held(Mapping[str, Tensor]):
    """Tensors in memory, of whatever float type; computed with as float32, one at a time."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.tensors[name]
        return tensor.float() if tensor.is_floating_point() else tensor

    def rows(self, name: str, tokens: Tensor) -> Tensor:
        """See `Tensors`."""
        return F.embedding(tokens, self.tensors[name]).float()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


class Streamed(Mapping[str, Tensor]):
    """Weights that are read whenever they are asked for, and kept by nobody.

    Attributes:
        weights: where they are.
        schemes: of those that are rounded as an export rounds them.
    """

    def __init__(self, weights: Weights, schemes: Schemes):
        self.weights, self.schemes = weights, schemes

    def __getitem__(self, name: str) -> Tensor:
        return torch.from_numpy(self._rounded(name, self.weights[name].read()))

    def rows(self, name: str, tokens: Tensor) -> Tensor:
        """See `Tensors`; only these rows are read."""
        read = self.weights[name].read_rows
        assert read is not None
        found = np.concatenate([read(token, token + 1) for token in tokens.reshape(-1).tolist()])
        return torch.from_numpy(self._rounded(name, found)).view(*tokens.shape, -1)

    def _rounded(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return quantize(values, self.schemes[name]).dequantized() if name in self.schemes else values

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def read_into_memory(weights: Weights, schemes: Schemes, dtype: torch.dtype, device: str) -> Held:
    """Reads all weights, some rows at a time, and rounds those of `schemes` as an export does.

    Raises:
        InputError: a value is not finite.
    """
    return Held({name: _read(weight, schemes, dtype).to(device) for name, weight in weights.items()})


def _read(weight: Weight, schemes: Schemes, dtype: torch.dtype) -> Tensor:
    filled, values = 0, torch.empty(weight.shape, dtype=dtype)
    for piece in weight.pieces():
        scheme = schemes.get(weight.name)
        known = quantize(piece, scheme).dequantized() if scheme else piece
        values[filled : filled + len(piece)] = torch.from_numpy(known)
        filled += len(piece)
    return values


@dataclass
class HeldOps(TorchOps):
    """`TorchOps` that looks single rows up: the tables of E2B have 11 GB as float32."""

    tensors: Held | Streamed

    def embedding(self, table: Weight, tokens: Tensor) -> Tensor:
        return self.tensors.rows(table.name, tokens)
