"""The tiny pair as the training code wants it, and windows of tokens for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline_export.checkpoint import Drafter, open_pair
from paceline_export.config import DrafterConfig
from paceline_export.distill.memory import Kept, freeze
from paceline_export.distill.observed import FrozenTarget
from paceline_export.lower.torch import load


@dataclass(frozen=True)
class Pair:
    """A frozen target and a drafter's tensors."""

    target: FrozenTarget
    checkpoint: Drafter
    drafter: dict[str, Tensor]

    @property
    def config(self) -> DrafterConfig:
        return self.checkpoint.config


@dataclass(frozen=True)
class RandomTokens:
    """`Batches` without any text."""

    vocabulary: int = 512
    rows: int = 2

    def at(self, step: int, length: int) -> Tensor:
        return torch.from_numpy(np.random.default_rng(step).integers(self.vocabulary, size=(self.rows, length)))


def opened(folders: tuple[Path, Path], kept: Kept = Kept.FLOAT32) -> Pair:
    target, drafter = open_pair(*folders)
    return Pair(freeze(target, {}, kept, "cpu"), drafter, load(drafter.weights))


def required(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies that want gradients."""
    return {n: t.clone().requires_grad_(t.is_floating_point()) for n, t in tensors.items()}
