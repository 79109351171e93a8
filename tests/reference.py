"""The torch lowering of a checkpoint on disk: what the graphs are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline_export.checkpoint import Drafter, Target, open_pair
from paceline_export.lower.torch import KV, TorchOps, load
from paceline_export.model.drafter import draft_choice, draft_state
from paceline_export.model.ops import DraftChoice
from paceline_export.model.target import fill, finish_rows
from paceline_export.quantize import quantize
from paceline_export.recipes import F32, Recipe
from paceline_export.weights import Weight

TARGET_TABLE = Weight("target table", (), lambda: np.zeros(0))


@dataclass
class TargetPass:
    """A from-scratch pass over some tokens."""

    logits: NDArray[np.float32]  # [T, V]
    activations: Tensor  # [1, T, D]
    kv: dict[int, KV]


class Reference:
    """Both models in memory, float32; with a recipe, the values that its integers stand for."""

    def __init__(self, target_folder: Path, drafter_folder: Path, recipe: Recipe = F32):
        self.target: Target
        self.drafter: Drafter
        self.target, self.drafter = open_pair(target_folder, drafter_folder)
        self.target_tensors, self.drafter_tensors = load(self.target.weights), load(self.drafter.weights)
        for tensors, schemes in (
            (self.target_tensors, recipe.target(self.target.weights)),
            (self.drafter_tensors, recipe.drafter(self.drafter.weights)),
        ):
            for name, scheme in schemes.items():
                tensors[name] = torch.from_numpy(quantize(tensors[name].numpy(), scheme).dequantized())
        self.drafter_tensors[TARGET_TABLE.name] = self.target_tensors["model.embed_tokens.weight"]

    @torch.no_grad()
    def run(self, tokens: Sequence[int]) -> TargetPass:
        """One pass over all tokens from an empty cache."""
        positions = torch.arange(len(tokens))
        op = TorchOps(self.target_tensors, positions, positions + 1)
        config, weights = self.target.config, self.target.weights
        filled = fill(op, config, weights, torch.tensor([list(tokens)]))
        logits, activations = finish_rows(op, config, weights, filled)
        return TargetPass(logits[0].numpy(), activations, op.kv)

    @torch.no_grad()
    def draft(self, past: TargetPass, length: int, token: int, hidden: Tensor) -> tuple[DraftChoice, Tensor]:
        """One draft step over the first `length` rows of `past`; hidden [D]. Returns the choice and the state [D]."""
        position = torch.tensor([length])
        op = TorchOps(self.drafter_tensors, position, position, dict(past.kv))
        config, weights = self.drafter.config, self.drafter.weights
        inputs = (torch.tensor([[token]]), hidden[None, None])
        state, projected = draft_state(op, config, weights, TARGET_TABLE, *inputs)
        return draft_choice(op, config, weights, state), projected[0, 0]

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Plain greedy continuation, every token from a from-scratch pass."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.run(tokens).logits[-1].argmax()))
        return tokens[len(prompt) :]
