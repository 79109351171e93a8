"""Draft steps over text that the target has read: what training and measuring have in common.

One pass of the target gives every KV row and activation that rounds anywhere in the text would see, so all rounds
run at once. A round that starts at n has token n pending, sees the KV rows below n, and keeps rotary position n.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline_export.config import DrafterConfig
from paceline_export.distill.observed import FrozenTarget, Observed
from paceline_export.lower.torch import TorchOps, handles
from paceline_export.model.drafter import draft_state
from paceline_export.model.target import TABLE
from paceline_export.weights import Weight

HEAD_TABLE, CENTROIDS, ORDERING = (
    "model.embed_tokens.weight",
    "masked_embedding.centroids.weight",
    "masked_embedding.token_ordering",
)
CHUNK_NUMBERS = 1 << 26  # of a vocabulary-wide array that are in memory at a time, 256 MiB as float32


@dataclass
class DraftOps(TorchOps):
    """A drafter looks tokens up in its target's table only."""

    target: FrozenTarget = field(kw_only=True)

    def embedding(self, table: Weight, tokens: Tensor) -> Tensor:
        return self.target.embedded(tokens)


class Rounds:
    """Rounds that start at every n of `starts` [N], 1 <= n < T."""

    def __init__(
        self, config: DrafterConfig, drafter: Mapping[str, Tensor], target: FrozenTarget, observed: Observed, starts: Tensor
    ):
        self.config, self.drafter, self.observed = config, drafter, observed
        self.starts = starts.to(target.device)
        first = observed.first
        positions = self.starts if first is None else self.starts - first[:, None]
        self.op = DraftOps(drafter, positions, end=self.starts, kv=observed.kv, first=first, target=target)
        self.weights, self.table = handles(drafter), target.weights[TABLE]

    def teacher_forced(self, steps: int) -> Iterator[Tensor]:
        """The states [B, N, D'] of steps 1..steps; each step is given the text's token, whatever was drafted."""
        hidden = self.observed.activations[:, self.starts - 1]
        for step in range(steps):
            state, hidden = self._state(self.observed.tokens[:, self.starts + step], hidden)
            yield state

    def drafts(self, steps: int) -> Tensor:
        """The tokens [B, N, steps] that the drafter proposes when it is given its own."""
        token = self.observed.tokens[:, self.starts]
        hidden = self.observed.activations[:, self.starts - 1]
        proposed = []
        for _ in range(steps):
            state, hidden = self._state(token, hidden)
            token, _ = choose(self.config, self.drafter, state)
            proposed.append(token)
        return torch.stack(proposed, -1)

    def _state(self, token: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        state, projected = draft_state(self.op, self.config, self.weights, self.table, token, hidden)
        return state, projected


def choose(config: DrafterConfig, drafter: Mapping[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """The drafter's tokens [B, N] for states [B, N, D']: of its head, and of the whole vocabulary.

    The first are those of `model.drafter.draft_choice`. Over thousands of rounds it is far cheaper to score the whole
    vocabulary and pick the clusters' logits than to gather the clusters' rows of the table for each round.
    """
    rows = chunk_rows(len(state), config.vocab_size)
    chosen = [_choose(config, drafter, piece) for piece in torch.split(state, rows, dim=1)]
    return torch.cat([own for own, _ in chosen], 1), torch.cat([dense for _, dense in chosen], 1)


def _choose(config: DrafterConfig, drafter: Mapping[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(state, drafter[HEAD_TABLE])
    dense = logits.argmax(-1)
    if config.head is None:
        return dense, dense
    best = F.linear(state, drafter[CENTROIDS]).topk(config.head.top_k, -1).indices
    tokens = drafter[ORDERING].view(config.head.clusters, -1)[best].flatten(-2)
    return tokens.gather(-1, logits.gather(-1, tokens).argmax(-1, keepdim=True))[..., 0], dense


def chunk_rows(batch: int, vocabulary: int) -> int:
    """How many rows of each text of a batch are scored at a time."""
    return max(1, CHUNK_NUMBERS // (batch * vocabulary))
