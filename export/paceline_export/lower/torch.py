"""The torch lowering: eager tensors, for parity with transformers and for training.

It is differentiable, takes batches, and is the reference that the graph lowerings are measured against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline_export.config import ClusteredHead, Rope
from paceline_export.model.ops import DraftChoice
from paceline_export.weights import Weight, Weights

KV = tuple[Tensor, Tensor]  # keys and values, each [B, K, S, H]


def load(weights: Weights) -> dict[str, Tensor]:
    """Reads every weight into memory: name -> float32 tensor (int64 for integers)."""
    return {name: torch.from_numpy(weight.read()) for name, weight in weights.items()}


def handles(tensors: Mapping[str, Tensor]) -> Weights:
    """Tensors in memory as the model definition wants them."""
    return {
        name: Weight(name, tuple(tensor.shape), lambda tensor=tensor: tensor.detach().cpu().numpy())  # type: ignore[misc]
        for name, tensor in tensors.items()
    }


@dataclass
class TorchOps:
    """`Ops` on tensors.

    Attributes:
        tensors: name -> values, for the handles that the model passes.
        positions: int64 [T] or [B, T], the rotary positions of the rows.
        end: int64 [T]; row t sees cache rows of index below end[t]. A target row at position p has p + 1,
            a drafter row has the number of committed rows.
        kv: layer -> the KV rows before this pass; `cache_update` replaces the entry by all rows.
        extra_window: rows that a windowed layer sees beyond its window. 1 repeats transformers' drafter, whose
            sliding mask is one row too wide (`masking_utils.py`, bidirectional sliding mask on a flipped axis).
        first: int64 [B], the first cache row of each text of a batch, whose shorter ones are filled up in front;
            None where all begin at row 0.
    """

    tensors: Mapping[str, Tensor]
    positions: Tensor
    end: Tensor
    kv: dict[int, KV] = field(default_factory=dict)
    extra_window: int = 0
    first: Tensor | None = None
    _tables: dict[Rope, KV] = field(default_factory=dict)
    _masks: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)

    def embedding(self, table: Weight, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.tensors[table.name])

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        return F.linear(x, self.tensors[weight.name])

    def rms_norm(self, x: Tensor, weight: Weight | None, epsilon: float) -> Tensor:
        normed = x * torch.pow(x.pow(2).mean(-1, keepdim=True) + epsilon, -0.5)
        return normed if weight is None else normed * self.tensors[weight.name]

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def scale_by(self, x: Tensor, weight: Weight) -> Tensor:
        return x * self.tensors[weight.name]

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return torch.tanh(x / cap) * cap

    def concat(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], -1)

    def fold(self, x: Tensor, groups: int) -> Tensor:
        return x.view(*x.shape[:-1], groups, -1)

    def pick(self, x: Tensor, group: int) -> Tensor:
        return x[..., group, :]

    def unfold_heads(self, x: Tensor) -> Tensor:
        return x.flatten(-2)

    def rotate(self, x: Tensor, rope: Rope) -> Tensor:
        if rope not in self._tables:
            inverse = torch.from_numpy(rope.inverse_frequencies()).to(x.device)
            angles = self.positions.float()[..., None] * inverse
            angles = torch.cat([angles, angles], -1)[..., None, :]  # [T, 1, H] or [B, T, 1, H]
            self._tables[rope] = (angles.cos(), angles.sin())
        cos, sin = self._tables[rope]
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat([-high, low], -1) * sin

    def cache_update(self, layer: int, k: Tensor, v: Tensor) -> KV:
        rows = (k.transpose(1, 2), v.transpose(1, 2))
        if layer in self.kv:
            past = self.kv[layer]
            rows = (torch.cat([past[0], rows[0]], 2), torch.cat([past[1], rows[1]], 2))
        self.kv[layer] = rows
        return rows

    def cache_read(self, layer: int) -> KV:
        return self.kv[layer]

    def attention(self, q: Tensor, kv: KV, window: int | None) -> Tensor:
        groups = q.shape[2] // kv[0].shape[1]
        q = q.transpose(1, 2)  # [B, N, T, H]
        k, v = (x.repeat_interleave(groups, 1) for x in kv)
        # The order of operations is transformers' eager one: it keeps parity far below the tolerance.
        scores = (q @ k.mT).masked_fill(~self._visible(k.shape[2], window), torch.finfo(q.dtype).min)
        return (scores.softmax(-1) @ v).transpose(1, 2)

    def clustered_head(self, x: Tensor, centroids: Weight, ordering: Weight, table: Weight, head: ClusteredHead) -> DraftChoice:
        tokens, logits = self.clustered_logits(x, centroids, ordering, table, head)
        return _choose(logits, tokens)

    def clustered_logits(
        self, x: Tensor, centroids: Weight, ordering: Weight, table: Weight, head: ClusteredHead
    ) -> tuple[Tensor, Tensor]:
        """The scored tokens and their logits, each [B, T, top_k * V / clusters]."""
        best = self.linear(x, centroids).topk(head.top_k, -1).indices
        tokens = self.tensors[ordering.name].view(head.clusters, -1)[best].flatten(-2)
        return tokens, torch.einsum("btd,btcd->btc", x, self.tensors[table.name][tokens])

    def dense_head(self, x: Tensor, table: Weight) -> DraftChoice:
        logits = self.linear(x, table)
        return _choose(logits, torch.arange(logits.shape[-1], device=x.device).expand_as(logits))

    def _visible(self, rows: int, window: int | None) -> Tensor:
        """bool [T, S] or [B, 1, T, S]: which cache rows each query row sees."""
        if (rows, window) not in self._masks:
            index, end = torch.arange(rows, device=self.end.device), self.end[:, None]
            mask = index < end
            if window is not None:
                mask = mask & (index >= end - window - self.extra_window)
            if self.first is not None:
                mask = mask & (index >= self.first[:, None, None, None])
            self._masks[rows, window] = mask
        return self._masks[rows, window]


def _choose(logits: Tensor, tokens: Tensor) -> DraftChoice:
    logit, index = logits.max(-1)
    return DraftChoice(tokens.gather(-1, index[..., None])[..., 0], logit, logits.logsumexp(-1), logits, tokens)
