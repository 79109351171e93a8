"""The op vocabulary that the model is written in. A lowering implements it; values are opaque to the model.

Axes: B batch (only the torch lowering has more than one), T tokens, N query heads, K kv heads, H head dim, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from paceline_export.config import ClusteredHead, Rope
from paceline_export.weights import Weight

Value = Any  # a torch tensor, an ONNX graph value, ...


@dataclass(frozen=True)
class DraftChoice:
    """What the drafter's head decides: the token, its logit and the log-sum-exp over the scored tokens.

    Attributes:
        logits: of all scored tokens.
        scored: these tokens, in the order of `logits`; None where they are the whole vocabulary.
    """

    token: Value
    logit: Value
    logsumexp: Value
    logits: Value
    scored: Value | None


class Ops(Protocol):
    """High-level ops stay whole until the lowering, because each format has its own best form for them."""

    def embedding(self, table: Weight, tokens: Value) -> Value:
        """Rows of `table` [V, D] for `tokens` [B, T] -> [B, T, D]."""

    def linear(self, x: Value, weight: Weight) -> Value:
        """x [.., in] times weight [out, in] transposed -> [.., out]."""

    def rms_norm(self, x: Value, weight: Weight | None, epsilon: float) -> Value:
        """x / sqrt(mean(x^2) + epsilon), times the plain weight (no 1 + w) when there is one."""

    def gelu(self, x: Value) -> Value:
        """The tanh approximation of GELU."""

    def add(self, x: Value, y: Value) -> Value:
        """x + y."""

    def multiply(self, x: Value, y: Value) -> Value:
        """x * y."""

    def scale(self, x: Value, factor: float) -> Value:
        """x times a constant."""

    def scale_by(self, x: Value, weight: Weight) -> Value:
        """x times a learned scalar, weight [1]."""

    def softcap(self, x: Value, cap: float) -> Value:
        """cap * tanh(x / cap)."""

    def concat(self, x: Value, y: Value) -> Value:
        """Joins the last axes."""

    def fold(self, x: Value, groups: int) -> Value:
        """[B, T, groups * size] -> [B, T, groups, size]."""

    def pick(self, x: Value, group: int) -> Value:
        """[B, T, groups, size] -> [B, T, size] of one group."""

    def unfold_heads(self, x: Value) -> Value:
        """Attention's result [.., N, H] in the lowering's own layout -> [B, T, N * H]."""

    def rotate(self, x: Value, rope: Rope) -> Value:
        """Rotary embedding of [B, T, heads, H] at the positions that the lowering was given."""

    def cache_update(self, layer: int, k: Value, v: Value) -> Value:
        """Appends k, v [B, T, K, H] to the KV rows of target layer `layer`; returns a handle on all its rows."""

    def cache_read(self, layer: int) -> Value:
        """A handle on the KV rows of target layer `layer`, read-only."""

    def attention(self, q: Value, kv: Value, window: int | None) -> Value:
        """softmax(q k^T) v with scale 1.0 over the visible rows; q [B, T, N, H].

        A target row at position p sees rows 0..p, a drafter row sees the committed rows 0..n-1;
        with a window only the newest `window` of them.
        """

    def clustered_head(self, x: Value, centroids: Weight, ordering: Weight, table: Weight, head: ClusteredHead) -> DraftChoice:
        """Scores the tokens of the `top_k` clusters whose centroids fit x best.

        x [B, T, D], centroids [C, D], ordering [V] (row c of its [C, V / C] view lists the tokens of cluster c),
        table [V, D].
        """

    def dense_head(self, x: Value, table: Weight) -> DraftChoice:
        """Scores every token: x [B, T, D], table [V, D]."""
