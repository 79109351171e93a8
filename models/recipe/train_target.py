"""Trains the small target on next-token prediction."""

from __future__ import annotations

import json
import time
from pathlib import Path

import data
import pair
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline_export.distill.optimizer import Optimizer, Rates
from paceline_export.lower.torch import TorchOps, handles
from paceline_export.model.target import fill, finish_rows

SHORT, LONG = 256, 1024  # training lengths; the last part of the budget runs LONG, so that far positions are learned
LONG_FROM = 0.8


def run(tensors: dict[str, Tensor], tokens: Tensor) -> tuple[Tensor, Tensor, TorchOps]:
    """logits [B, T, V], activations [B, T, D], and the ops, which hold the KV rows."""
    positions = torch.arange(tokens.shape[1])
    op = TorchOps(tensors, positions, positions + 1)
    weights = handles(tensors)
    return *finish_rows(op, pair.TARGET, weights, fill(op, pair.TARGET, weights, tokens)), op


def loss(tensors: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Mean cross-entropy in nats; tokens [B, T + 1]."""
    logits, _, _ = run(tensors, tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def held_out(tensors: dict[str, Tensor], folder: Path, count: int | None = None) -> tuple[float, float]:
    """Mean nats per token and top-1 accuracy on windows of held-out text."""
    total = right = seen = 0.0
    for tokens in data.windows(data.read(folder, "held_out"), SHORT, count):
        logits, _, _ = run(tensors, tokens[:, :-1])
        logits, wanted = logits.flatten(0, 1), tokens[:, 1:].flatten()
        total += float(F.cross_entropy(logits, wanted, reduction="sum"))
        right += float((logits.argmax(-1) == wanted).sum())
        seen += len(wanted)
    return total / seen, right / seen


def train(folder: Path, minutes: float, seed: int = 0) -> dict[str, Tensor]:
    """Trains for `minutes` and returns the tensors; a snapshot is kept in `folder` at every report."""
    tensors = {name: tensor.requires_grad_() for name, tensor in pair.fresh_target(seed).items()}
    optimizer = Optimizer(tensors, Rates(5e-3, 4e-3, 2e-3))
    batches, compiled = data.batches(folder, seed + 1), torch.compile(loss, dynamic=False)
    budget, steps, running, reported = minutes * 60, 0, 0.0, 0.0
    compiled(tensors, batches.at(0, SHORT + 1)).backward()  # compiling is not part of the budget
    for tensor in optimizer.parameters:
        tensor.grad = None
    start = time.monotonic()
    while (elapsed := time.monotonic() - start) < budget:
        length = SHORT if elapsed < LONG_FROM * budget else LONG
        value = compiled(tensors, batches.at(steps, length + 1))
        value.backward()
        norm = optimizer.step(elapsed / budget)
        steps += 1
        running = float(value) if steps == 1 else 0.98 * running + 0.02 * float(value)
        if elapsed - reported > min(300, budget / 6):
            reported = elapsed
            nats, top1 = held_out(tensors, folder, 40)
            row = {"seconds": round(elapsed), "steps": steps, "tokens": steps * data.BATCH_TOKENS, "train": running}
            print(json.dumps(row | {"held_out": nats, "top1": top1, "gradient": norm}), flush=True)
            torch.save(tensors, folder / "target.partial.pt")
    torch.save(tensors, folder / "target.pt")
    nats, top1 = held_out(pair.rounded(tensors), folder)
    print(json.dumps({"steps": steps, "tokens": steps * data.BATCH_TOKENS, "held_out": nats, "top1": top1}), flush=True)
    return tensors
