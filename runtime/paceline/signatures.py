"""Names, dtypes and axes of the inputs and outputs of every graph: emitters, manifest and runtime all ask here.

Axes: T tokens, D target width, V vocabulary, K kv heads, S cache slots or rows, H head dim.
A dimension is a number, or a letter where it varies from call to call.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class CacheKind(Enum):
    """What a KV tensor holds: the newest rows (LOCAL) or all rows (FULL)."""

    LOCAL = "local"
    FULL = "full"


@dataclass(frozen=True)
class CacheSpec:
    """The pair of KV tensors of one target layer."""

    layer: int
    kind: CacheKind
    kv_heads: int
    head_dim: int

    @property
    def key(self) -> str:
        """Name of the key tensor, [1, K, S, H] float32."""
        return f"kv_cache_k_{self.layer}"

    @property
    def value(self) -> str:
        """Name of the value tensor, [1, K, S, H] float32."""
        return f"kv_cache_v_{self.layer}"

    @property
    def slots_axis(self) -> str:
        """The letter of its slots axis: local and full caches differ in length."""
        return "S_local" if self.kind is CacheKind.LOCAL else "S"


@dataclass(frozen=True)
class Port:
    """One graph input or output."""

    name: str
    dtype: str  # numpy's name
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of one graph entry."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def to_json(self) -> dict[str, Any]:
        """Inputs and outputs, each name -> [dtype, shape]."""
        return {
            "inputs": {p.name: [p.dtype, list(p.shape)] for p in self.inputs},
            "outputs": {p.name: [p.dtype, list(p.shape)] for p in self.outputs},
        }


# Target.
TOKENS = "tokens"
INPUT_POS = "input_pos"
ROWS = "rows"  # rows in a full cache once this call has written its own
LOCAL_ROWS = "local_rows"  # the same in a local cache
EMIT = "emit"  # false: fill KV rows only (prefill); true: also logits and activations (decode, verify)
LOGITS = "logits"
ACTIVATIONS = "activations"
# Drafter.
TOKEN = "token"
DRAFT_TOKEN = "draft_token"
DRAFT_LOGIT = "draft_logit"
DRAFT_LOGSUMEXP = "draft_logsumexp"
PROJECTED_ACTIVATIONS = "projected_activations"


def present(cache_name: str) -> str:
    """ONNX needs two names for a tensor that is updated in place; both are bound to the same memory."""
    return f"present_{cache_name}"


def drafter_views(cache: CacheSpec, name: str) -> tuple[str, ...]:
    """The drafter reads exact-length views, one a kv head, since only one head's rows are contiguous."""
    if cache.kv_heads == 1:
        return (name,)
    return tuple(f"{name}.{head}" for head in range(cache.kv_heads))


def onnx_target(caches: tuple[CacheSpec, ...], hidden_size: int, vocab_size: int) -> Signature:
    """target.onnx: one graph that serves prefill, decode and verify of any T.

    With `emit` false, logits and activations have zero rows.
    """
    cached = tuple(
        Port(name, "float32", (1, cache.kv_heads, cache.slots_axis, cache.head_dim))
        for cache in caches
        for name in (cache.key, cache.value)
    )
    return Signature(
        inputs=(
            Port(TOKENS, "int64", ("T",)),
            Port(INPUT_POS, "int64", ("T",)),
            Port(ROWS, "int32", (1,)),
            Port(LOCAL_ROWS, "int32", (1,)),
            Port(EMIT, "bool", ()),
            *cached,
        ),
        outputs=(
            Port(LOGITS, "float32", ("T_out", vocab_size)),
            Port(ACTIVATIONS, "float32", ("T_out", hidden_size)),
            *(Port(present(p.name), p.dtype, p.shape) for p in cached),
        ),
    )


def onnx_drafter(caches: tuple[CacheSpec, ...], hidden_size: int) -> Signature:
    """drafter.onnx: one draft step. `caches` are the target's that the drafter reads; views are [1, S, H]."""
    views = tuple(
        Port(view, "float32", (1, cache.slots_axis, cache.head_dim))
        for cache in caches
        for name in (cache.key, cache.value)
        for view in drafter_views(cache, name)
    )
    return Signature(
        inputs=(
            Port(TOKEN, "int64", (1,)),
            Port(ACTIVATIONS, "float32", (1, hidden_size)),
            Port(INPUT_POS, "int64", (1,)),
            *views,
        ),
        outputs=(
            Port(DRAFT_TOKEN, "int64", (1,)),
            Port(DRAFT_LOGIT, "float32", (1,)),
            Port(DRAFT_LOGSUMEXP, "float32", (1,)),
            Port(PROJECTED_ACTIVATIONS, "float32", (1, hidden_size)),
        ),
    )
