"""What the frozen target computes for a text: all that a drafter may learn from or use."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_export.config import TargetConfig
from paceline_export.lower.held import Held, HeldOps, Streamed
from paceline_export.lower.torch import KV
from paceline_export.model.target import TABLE, activate_rows, fill, score_rows
from paceline_export.weights import Weights


@dataclass(frozen=True)
class FrozenTarget:
    """A target that runs and does not learn.

    Attributes:
        weights: handles, for the model definition.
        tensors: their values, as an export rounds them if the drafter is to learn from the rounded target.
        device: torch's name of where the tensors are.
    """

    config: TargetConfig
    weights: Weights
    tensors: Held | Streamed
    device: str

    def ops(self, positions: Tensor, end: Tensor, kv: dict[int, KV], first: Tensor | None = None) -> HeldOps:
        """See `TorchOps`."""
        return HeldOps(self.tensors, positions, end, kv, first=first)

    @torch.no_grad()
    def logits(self, activations: Tensor) -> Tensor:
        """Scores of the token after each row: [B, T, D] -> [B, T, V]."""
        rows = torch.arange(activations.shape[1], device=self.device)
        return score_rows(self.ops(rows, rows, {}), self.config, self.weights, activations)  # type: ignore[no-any-return]

    def embedded(self, tokens: Tensor) -> Tensor:
        """Rows of the token table, not scaled: [..] -> [.., D]."""
        return self.tensors.rows(TABLE, tokens)


@dataclass(frozen=True)
class Observed:
    """One pass of the target.

    Attributes:
        tokens: [B, T].
        activations: [B, T, D]; row t scores token t + 1.
        kv: the rows of each layer that owns KV.
        first: see `TorchOps`.
    """

    tokens: Tensor
    activations: Tensor
    kv: dict[int, KV]
    first: Tensor | None = None


@torch.no_grad()
def observe(target: FrozenTarget, tokens: Tensor) -> Observed:
    """Runs the target over tokens [B, T]."""
    tokens = tokens.to(target.device)
    positions = torch.arange(tokens.shape[1], device=target.device)
    op = target.ops(positions, positions + 1, {})
    filled = fill(op, target.config, target.weights, tokens)
    return Observed(tokens, activate_rows(op, target.config, target.weights, filled), op.kv)
