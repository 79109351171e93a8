"""Muon for the matrices, AdamW for tables and vectors, and a schedule over the budget.

Muon: K. Jordan and others, "Muon: An optimizer for hidden layers in neural networks" (2024).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

WARM_UP, DECAY = 0.02, 0.6  # fractions of the budget: warm up, hold, then fall linearly to 0


@dataclass(frozen=True)
class Rates:
    """Learning rates at the height of the schedule; tables are the embeddings and centroids."""

    matrices: float = 5e-3
    tables: float = 3e-3
    vectors: float = 2e-3

    def times(self, factor: float) -> Rates:
        """All of them larger or smaller."""
        return Rates(factor * self.matrices, factor * self.tables, factor * self.vectors)


class Optimizer:
    """One step over named parameters."""

    def __init__(self, parameters: Mapping[str, Tensor], rates: Rates):
        self.names, self.parameters = list(parameters), list(parameters.values())
        tables = {n: p for n, p in parameters.items() if p.ndim == 2 and ("embed" in n or "centroid" in n)}
        vectors = {n: p for n, p in parameters.items() if p.ndim < 2}
        matrices = {n: p for n, p in parameters.items() if p.ndim == 2 and n not in tables}
        self.muon, self.matrix_rate = Muon(matrices), rates.matrices
        groups = [
            {"params": [*tables.values()], "lr": rates.tables, "base": rates.tables},
            {"params": [*vectors.values()], "lr": rates.vectors, "base": rates.vectors},
        ]
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step(self, elapsed: float) -> float:
        """Applies the gradients at `elapsed` (0..1) of the budget; returns the gradient's norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        rate = schedule(elapsed)
        self.muon.step(self.matrix_rate * rate)
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * rate
        self.adam.step()
        self.forget_gradients()
        return float(norm)

    def forget_gradients(self) -> None:
        """Leaves the parameters as they are."""
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Everything that later steps depend on, by names of its own."""
        found = {f"muon.{name}": average for name, average in self.muon.named_averages().items()}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            for key, value in self.adam.state.get(parameter, {}).items():
                found[f"adam.{key}.{name}"] = value
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`, on parameters of the same names and shapes."""
        for name, average in self.muon.named_averages().items():
            average.copy_(state[f"muon.{name}"])
        for name, parameter in zip(self.names, self.parameters, strict=True):
            keys = {key: f"adam.{key}.{name}" for key in ("step", "exp_avg", "exp_avg_sq")}
            if keys["step"] in state:
                self.adam.state[parameter] = {key: state[full].to(parameter.device) for key, full in keys.items()}


class Muon:
    """Momentum, orthogonalised. In float32, since torch.optim.Muon's bfloat16 is some 40 times slower on AVX2."""

    momentum, weight_decay = 0.95, 0.05

    def __init__(self, matrices: Mapping[str, Tensor]):
        self.names: dict[tuple[int, ...], list[str]] = defaultdict(list)
        self.groups: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for name, matrix in matrices.items():
            self.names[tuple(matrix.shape)].append(name)
            self.groups[tuple(matrix.shape)].append(matrix)
        self.averages = {shape: torch.zeros(len(group), *shape, device=group[0].device) for shape, group in self.groups.items()}

    def named_averages(self) -> dict[str, Tensor]:
        """Views, by the matrices' names."""
        return {name: self.averages[shape][i] for shape, names in self.names.items() for i, name in enumerate(names)}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Moves the matrices; a group without gradients stays."""
        for shape, group in self.groups.items():
            if all(matrix.grad is None for matrix in group):
                continue  # the drafter's post_projection, while no state is fed back
            gradients = torch.stack([torch.zeros_like(each) if each.grad is None else each.grad for each in group])
            average = self.averages[shape].lerp_(gradients, 1 - self.momentum)
            updates = orthogonalise(gradients.lerp(average, self.momentum)) * (0.2 * max(shape) ** 0.5)
            for matrix, update in zip(group, updates, strict=True):
                matrix.mul_(1 - rate * self.weight_decay).add_(update, alpha=-rate)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Newton-Schulz iteration on a stack [n, rows, columns]: singular values go towards 1."""
    x: Tensor = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT.contiguous()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * (gram @ gram)) @ x
    return x.mT if tall else x


def schedule(elapsed: float) -> float:
    """The learning rate's factor at a fraction of the budget."""
    if elapsed < WARM_UP:
        return max(elapsed / WARM_UP, 0.02)
    return min(1.0, max((1 - elapsed) / DECAY, 0.0))
