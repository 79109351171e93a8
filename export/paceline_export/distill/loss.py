"""What a drafter learns: the frozen target's own distribution of the next token, at every step of every round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline_export.config import DrafterConfig
from paceline_export.distill.observed import FrozenTarget, Observed, observe
from paceline_export.distill.rounds import CENTROIDS, HEAD_TABLE, ORDERING, Rounds, choose, chunk_rows

CLUSTER_WEIGHT = 0.3  # of the loss on clusters, beside 1 for the loss on tokens
STEP_DECAY = 0.8  # a later step counts less, since it is reached only when the earlier ones are accepted
STEPS = 4  # of which agreement is told


def learn(config: DrafterConfig, drafter: Mapping[str, Tensor], target: FrozenTarget, observed: Observed, steps: int) -> float:
    """Adds the loss's gradients to all that `drafter` was computed from, and returns the loss in nats.

    The loss is the mean over all rounds of the cross-entropy with the target's distributions, of tokens and of clusters.
    A round's steps are fed their own projected states. Scores of a large vocabulary are there for some rows at a time
    only: the gradients of these rows wait in leaves, and then go through the drafter's layers once.
    """
    observed_rows = observed.tokens.shape[1]
    starts = torch.arange(1, observed_rows - steps + 1)
    states = list(Rounds(config, drafter, target, observed, starts).teacher_forced(steps))
    joints = [*states, drafter[HEAD_TABLE], *([drafter[CENTROIDS]] if config.head else [])]
    leaves = [joint.detach().requires_grad_() for joint in joints]
    weights = (STEP_DECAY ** torch.arange(steps)).tolist()
    shares = [weight / sum(weights) / states[0][..., 0].numel() for weight in weights]
    total, chunk = 0.0, chunk_rows(len(observed.tokens), config.vocab_size)
    for begin in range(1, observed_rows, chunk):  # rows of the target, which judge step j of the rounds from j rows before
        end = min(begin + chunk, observed_rows)
        wanted = target.logits(observed.activations[:, begin:end]).softmax(-1)
        value = torch.zeros((), device=wanted.device)
        for step, state in enumerate(leaves[:steps]):
            low, high = max(0, begin - 1 - step), min(len(starts), end - 1 - step)
            if low < high:
                judged = wanted[:, low + 1 + step - begin : high + 1 + step - begin]
                value = value + shares[step] * _cross_entropy(config, drafter, state[:, low:high], leaves[steps:], judged)
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        total += float(value.detach())
    torch.autograd.backward(joints, [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves])
    return total


def _cross_entropy(
    config: DrafterConfig, drafter: Mapping[str, Tensor], state: Tensor, head: list[Tensor], wanted: Tensor
) -> Tensor:
    """Summed over rows: states [B, N, D'], the table and maybe the centroids, the target's probabilities [B, N, V]."""
    value: Tensor = -(wanted * F.linear(state, head[0]).log_softmax(-1)).sum()
    if config.head is None:
        return value
    marginal = wanted[..., drafter[ORDERING]].view(*wanted.shape[:-1], config.head.clusters, -1).sum(-1)
    clusters: Tensor = (marginal * F.linear(state, head[1]).log_softmax(-1)).sum()
    return value - CLUSTER_WEIGHT * clusters


@dataclass(frozen=True)
class Agreement:
    """How often the drafter's token is the target's likeliest, at draft steps 1..STEPS of teacher-forced rounds.

    Attributes:
        rounds: how many were looked at.
        own: of the drafter's own head.
        dense: if every token were scored.
    """

    rounds: int
    own: list[float]
    dense: list[float]

    @property
    def mean(self) -> float:
        """Over the steps, of the drafter's own head."""
        return sum(self.own) / len(self.own)


@dataclass(frozen=True)
class HeldOut:
    """Text that is not learned from, longer than STEPS tokens, and the target's greedy choice after every row: [B, T]."""

    observed: Observed
    likeliest: Tensor


def hold_out(target: FrozenTarget, tokens: Tensor) -> HeldOut:
    """Lets the target read tokens [B, T]."""
    observed = observe(target, tokens)
    rows = chunk_rows(len(tokens), target.config.vocab_size)
    likeliest = [target.logits(piece).argmax(-1) for piece in torch.split(observed.activations, rows, dim=1)]
    return HeldOut(observed, torch.cat(likeliest, 1))


@torch.no_grad()
def agreement(
    config: DrafterConfig, drafter: Mapping[str, Tensor], target: FrozenTarget, texts: Iterable[HeldOut]
) -> Agreement:
    """On held-out texts."""
    right, seen = torch.zeros(2, STEPS), 0
    for text in texts:
        starts = torch.arange(1, text.likeliest.shape[1] - STEPS + 1, device=target.device)
        for step, state in enumerate(Rounds(config, drafter, target, text.observed, starts).teacher_forced(STEPS)):
            for kind, token in enumerate(choose(config, drafter, state)):
                right[kind, step] += (token == text.likeliest[:, starts + step]).sum().cpu()
        seen += len(text.likeliest) * len(starts)
    own, dense = ([round(count / seen, 4) for count in row] for row in right.tolist())
    return Agreement(seen, own, dense)
