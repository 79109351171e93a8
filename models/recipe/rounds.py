"""Draft steps over text that the target has read: what training and measuring have in common.

One pass of the target gives every KV row and activation that rounds anywhere in the text would see, so all rounds
run at once. A round that starts at n has token n pending, sees the KV rows below n, and keeps rotary position n.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pair
import torch
import torch.nn.functional as F
import train_target
from torch import Tensor

from paceline_export.config import ClusteredHead
from paceline_export.lower.torch import KV, TorchOps
from paceline_export.model.drafter import draft_state
from paceline_export.weights import Weight

TABLE = "target.embed_tokens"  # the target's token embedding, beside the drafter's own tensors


@dataclass(frozen=True)
class Observed:
    """What the frozen target computed for a text: all that a drafter may use."""

    tokens: Tensor  # [B, T]
    table: Tensor  # [V, D] the target's token embedding
    activations: Tensor  # [B, T, D]
    logits: Tensor  # [B, T, V] row t scores token t + 1
    kv: dict[int, KV]


@torch.no_grad()
def observe(target: dict[str, Tensor], tokens: Tensor) -> Observed:
    """One pass of the target over tokens [B, T]."""
    logits, activations, op = train_target.run(target, tokens)
    return Observed(tokens, target["model.embed_tokens.weight"], activations, logits, op.kv)


class Rounds:
    """Rounds that start at every n of `starts` [N], 1 <= n < T."""

    def __init__(self, drafter: dict[str, Tensor], observed: Observed, starts: Tensor):
        self.drafter, self.observed, self.starts = drafter, observed, starts
        self.op = TorchOps(drafter | {TABLE: observed.table}, positions=starts, end=starts, kv=observed.kv)
        self.weights = pair.handles(drafter)
        self.table = Weight(TABLE, tuple(observed.table.shape), observed.table.numpy)

    def teacher_forced(self, steps: int) -> Iterator[Tensor]:
        """The states [B, N, D'] of steps 1..steps; each step is given the text's token, whatever was drafted."""
        hidden = self.observed.activations[:, self.starts - 1]
        for step in range(steps):
            state, hidden = self._state(self.observed.tokens[:, self.starts + step], hidden)
            yield state

    def drafts(self, steps: int, head: ClusteredHead | None) -> Tensor:
        """The tokens [B, N, steps] that the drafter proposes when it is given its own."""
        token = self.observed.tokens[:, self.starts]
        hidden = self.observed.activations[:, self.starts - 1]
        proposed = []
        for _ in range(steps):
            state, hidden = self._state(token, hidden)
            token = self.choose(state, head)
            proposed.append(token)
        return torch.stack(proposed, -1)

    def choose(self, state: Tensor, head: ClusteredHead | None) -> Tensor:
        """The drafter's token [B, N] for a state [B, N, D'], of `head` or of the whole vocabulary.

        The token of `model.drafter.draft_choice`. Over thousands of rounds it is far cheaper to score the whole
        vocabulary and pick the clusters' logits than to gather the clusters' rows of the table for each round.
        """
        logits = F.linear(state, self.drafter["model.embed_tokens.weight"])
        if head is None:
            return logits.argmax(-1)
        best = F.linear(state, self.drafter["masked_embedding.centroids.weight"]).topk(head.top_k, -1).indices
        tokens = self.drafter["masked_embedding.token_ordering"].view(head.clusters, -1)[best].flatten(-2)
        return tokens.gather(-1, logits.gather(-1, tokens).argmax(-1, keepdim=True))[..., 0]

    def _state(self, token: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        state, projected = draft_state(self.op, pair.DRAFTER, self.weights, self.table, token, hidden)
        return state, projected
