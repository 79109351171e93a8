"""Muon for the matrices, AdamW for tables and vectors, and a schedule over elapsed time.

Muon: K. Jordan and others, "Muon: An optimizer for hidden layers in neural networks" (2024).
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

WARM_UP, DECAY = 0.02, 0.6  # fractions of the time budget: warm up, hold, then fall linearly to 0


class Optimizer:
    """One step over named parameters; tables are the embeddings and centroids."""

    def __init__(self, parameters: dict[str, Tensor], matrix_rate: float, table_rate: float, vector_rate: float):
        self.parameters = list(parameters.values())
        tables = [p for n, p in parameters.items() if p.ndim == 2 and ("embed" in n or "centroid" in n)]
        vectors = [p for p in self.parameters if p.ndim < 2]
        matrices = [p for p in self.parameters if p.ndim == 2 and not any(p is t for t in tables)]
        self.muon = Muon(matrices)
        self.matrix_rate = matrix_rate
        groups = [
            {"params": tables, "lr": table_rate, "base": table_rate},
            {"params": vectors, "lr": vector_rate, "base": vector_rate},
        ]
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step(self, elapsed: float) -> float:
        """Applies the gradients at `elapsed` (0..1) of the time budget; returns the gradient's norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        rate = schedule(elapsed)
        self.muon.step(self.matrix_rate * rate)
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * rate
        self.adam.step()
        for parameter in self.parameters:
            parameter.grad = None
        return float(norm)


class Muon:
    """Momentum, orthogonalised. In float32, since torch.optim.Muon's bfloat16 is some 40 times slower on AVX2."""

    momentum, weight_decay = 0.95, 0.05

    def __init__(self, matrices: list[Tensor]):
        self.groups: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            self.groups[tuple(matrix.shape)].append(matrix)
        self.averages = {shape: torch.zeros(len(group), *shape) for shape, group in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, group in self.groups.items():
            if all(matrix.grad is None for matrix in group):
                continue  # the drafter's post_projection, while no state is fed back
            gradients = torch.stack([matrix.grad for matrix in group])  # type: ignore[misc]
            average = self.averages[shape].lerp_(gradients, 1 - self.momentum)
            updates = orthogonalise(gradients.lerp(average, self.momentum)) * (0.2 * max(shape) ** 0.5)
            for matrix, update in zip(group, updates, strict=True):
                matrix.mul_(1 - rate * self.weight_decay).add_(update, alpha=-rate)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Newton-Schulz iteration on a stack [n, rows, columns]: singular values go towards 1."""
    x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT.contiguous()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * (gram @ gram)) @ x
    return x.mT if tall else x


def schedule(elapsed: float) -> float:
    """The learning rate's factor at a fraction of the time budget."""
    if elapsed < WARM_UP:
        return max(elapsed / WARM_UP, 0.02)
    return min(1.0, max((1 - elapsed) / DECAY, 0.0))
