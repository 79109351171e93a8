"""Trains the small drafter against the frozen target: rounds start at every token, and states are fed back."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path

import data
import drafter_start
import pair
import torch
import torch.nn.functional as F
from optimizer import Optimizer
from rounds import Observed, Rounds, observe
from torch import Tensor
from train_target import LONG, SHORT

CENTROID_WEIGHT = 0.3  # of the loss on clusters, beside 1 for the loss on tokens
STEP_DECAY = 0.8  # a later step counts less, since it is reached only when the earlier ones are accepted
REPORTED_STEPS = 4


@dataclass(frozen=True)
class Phase:
    """A part of the time budget: sequences of `length` tokens, `steps` draft steps in a round."""

    until: float  # fraction of the budget
    length: int
    steps: int


# In equal time, rounds of one step took the first step further than rounds of three, which the later steps need;
# where to change over is a guess. Long sequences come last, so that far positions are learned.
PHASES = (Phase(1 / 3, SHORT, 1), Phase(0.8, SHORT, 3), Phase(1.0, LONG, 4))


@dataclass(frozen=True)
class Agreement:
    """How often the drafter's token is the target's likeliest, at draft steps 1..4 of teacher-forced rounds."""

    rounds: int
    dense: list[float]
    clustered: list[float]


def loss(drafter: dict[str, Tensor], observed: Observed, steps: int) -> Tensor:
    """Mean over all rounds of the cross-entropy with the target's distributions, in nats."""
    tokens = observed.tokens.shape[1]
    starts = torch.arange(1, tokens - steps + 1)
    wanted = observed.logits.softmax(-1)  # [B, T, V]
    wanted_clusters = wanted @ membership(drafter["masked_embedding.token_ordering"])
    weights = STEP_DECAY ** torch.arange(steps)
    total = torch.zeros(())
    for step, state in enumerate(Rounds(drafter, observed, starts).teacher_forced(steps)):
        rows = slice(1 + step, 1 + step + len(starts))  # row n + step of the target judges this step
        value = soft_cross_entropy(F.linear(state, drafter["model.embed_tokens.weight"]), wanted[:, rows])
        clusters = F.linear(state, drafter["masked_embedding.centroids.weight"])
        value = value + CENTROID_WEIGHT * soft_cross_entropy(clusters, wanted_clusters[:, rows])
        total = total + weights[step] / weights.sum() * value
    return total


def soft_cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Mean of -sum(wanted * log softmax(logits)) over [B, N, classes]."""
    return -(wanted * logits.log_softmax(-1)).sum(-1).mean()


def membership(ordering: Tensor) -> Tensor:
    """One-hot clusters of the tokens, float32 [V, C]."""
    assert pair.DRAFTER.head is not None
    clusters = pair.DRAFTER.head.clusters
    cluster = torch.empty_like(ordering)
    cluster[ordering] = torch.arange(len(ordering)) // (len(ordering) // clusters)
    return F.one_hot(cluster, clusters).float()


@torch.no_grad()
def agreement(drafter: dict[str, Tensor], target: dict[str, Tensor], folder: Path, count: int | None = None) -> Agreement:
    """On windows of held-out text."""
    right = torch.zeros(2, REPORTED_STEPS)  # dense, clustered
    seen = 0
    for tokens in data.windows(data.read(folder, "held_out"), SHORT, count):
        observed = observe(target, tokens[:, :-1])
        starts = torch.arange(1, SHORT - REPORTED_STEPS + 1)
        rounds, likeliest = Rounds(drafter, observed, starts), observed.logits.argmax(-1)
        for step, state in enumerate(rounds.teacher_forced(REPORTED_STEPS)):
            for row, head in enumerate((None, pair.DRAFTER.head)):
                right[row, step] += (rounds.choose(state, head) == likeliest[:, starts + step]).sum()
        seen += len(tokens) * len(starts)
    dense, clustered = ([round(count / seen, 4) for count in row] for row in right.tolist())
    return Agreement(seen, dense, clustered)


def train(folder: Path, minutes: float, seed: int = 0) -> dict[str, Tensor]:
    """Trains for `minutes` and returns the tensors; a snapshot is kept in `folder` at every report.

    The target's values are the rounded ones that are published. Nothing is compiled: for the target that gained a
    tenth, and here every pair of length and steps would be compiled anew.
    """
    target = pair.rounded(torch.load(folder / "target.pt"))
    drafter = drafter_start.start(target["model.embed_tokens.weight"], seed)
    optimizer = Optimizer(pair.trainable(drafter), matrix_rate=5e-3, table_rate=3e-3, vector_rate=2e-3)
    batches = data.batches(folder, seed + 2)
    budget, steps, running, reported = minutes * 60, 0, 0.0, 0.0
    start = time.monotonic()
    while (elapsed := time.monotonic() - start) < budget:
        phase = next(phase for phase in PHASES if elapsed < phase.until * budget)
        value = loss(drafter, observe(target, batches.next(phase.length)[:, :-1]), phase.steps)
        value.backward()
        norm = optimizer.step(elapsed / budget)
        steps += 1
        running = value.item() if steps == 1 else 0.98 * running + 0.02 * value.item()
        if elapsed - reported > min(300, budget / 6):
            reported = elapsed
            row = {"seconds": round(elapsed), "steps": steps, "train": running, "gradient": norm}
            found = agreement(drafter, target, folder, 16)
            print(json.dumps(row | dataclasses.asdict(found)), flush=True)
            torch.save(drafter, folder / "drafter.partial.pt")
    torch.save(drafter, folder / "drafter.pt")
    found = agreement(pair.rounded(drafter), target, folder, 40)
    print(json.dumps({"steps": steps} | dataclasses.asdict(found)), flush=True)
    return drafter
