"""Names, dtypes and axes of the inputs and outputs of every graph: emitters, manifest and runtime all ask here.

Axes: T tokens, D target width, V vocabulary, L layers, P per-layer width, K kv heads, S cache slots or rows, H head dim.
A dimension is a number, or a letter where it varies from call to call.

The TFLite names are those of LiteRT-LM, whose graphs have the same inputs, and `cache_start`, `verify_2`, `verify_8`,
`draft_token`, `draft_logit` and `draft_logsumexp` of ours.
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

    def head_names(self, name: str) -> tuple[str, ...]:
        """What `name`, its key or value tensor, is called where every kv head is a tensor of its own.

        Only one head's rows are contiguous, so a part of the slots can be given without a copy only a head at a time.
        """
        return (name,) if self.kv_heads == 1 else tuple(f"{name}.{head}" for head in range(self.kv_heads))


@dataclass(frozen=True)
class Port:
    """One graph input or output."""

    name: str
    dtype: str  # numpy's name
    shape: tuple[int | str, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape as a .tflite file states it: VARIES for a letter."""
        return tuple(VARIES if isinstance(size, str) else size for size in self.shape)


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


PREFILL_CHUNK = 128  # tokens that one prefill call of the loop writes at most
ROW_BLOCK = 64  # slots; a softmax sums in this rhythm, so a row's slot may change by whole blocks without a trace
GROWTH_SLOTS = 256  # a full cache is seen in multiples of this
# The signatures of target.tflite by number of rows; calls with fewer rows are padded.
PREFILL = {16: "prefill_16", PREFILL_CHUNK: "prefill_128"}
VERIFY = {1: "decode", 2: "verify_2", 4: "verify", 8: "verify_8"}
SIGNATURES = VERIFY | PREFILL
VARIES = -1  # a size that is set when a graph is called
DRAFT = "draft"  # of drafter.tflite
MAIN = "main"  # the only entry of an ONNX graph
MASKED = -0.7 * 3.4028234663852886e38  # what a mask adds to the score of a row that must not be seen; 0 for the others


def local_slots(window: int) -> int:
    """Slots of a local cache: the window from the start of a block, and the longest call, in whole blocks."""
    return in_steps(window + ROW_BLOCK - 1 + PREFILL_CHUNK, ROW_BLOCK)


def in_steps(count: int, step: int) -> int:
    """`count` rounded up to a multiple of `step`."""
    return -(-count // step) * step


# Target.
TOKENS = "tokens"
INPUT_POS = "input_pos"
EMIT = "emit"  # false: fill KV rows only (prefill); true: also logits and activations (decode, verify)
LOGITS = "logits"
ACTIVATIONS = "activations"
TOKEN_IDS = "token_ids"
EMBEDDINGS = "embeddings"
PER_LAYER_EMBEDDINGS = "per_layer_embeddings"
MASK = {CacheKind.FULL: "mask", CacheKind.LOCAL: "local_mask"}
CACHE_START = {CacheKind.FULL: "cache_start", CacheKind.LOCAL: "local_cache_start"}  # where this call's rows go
# Drafter.
TOKEN = "token"
DRAFT_TOKEN = "draft_token"
DRAFT_LOGIT = "draft_logit"
DRAFT_LOGSUMEXP = "draft_logsumexp"
DRAFT_LOGITS = "draft_logits"  # of all scored tokens
DRAFT_SCORED = "draft_scored"  # these tokens; not there where they are the whole vocabulary
PROJECTED_ACTIVATIONS = "projected_activations"


def present(cache_name: str) -> str:
    """ONNX needs two names for a tensor that is updated in place; both are bound to the same memory."""
    return f"present_{cache_name}"


def onnx_target(caches: tuple[CacheSpec, ...], hidden_size: int, vocab_size: int) -> Signature:
    """target.onnx: one graph that serves prefill, decode and verify of any T.

    With `emit` false, logits and activations have zero rows.
    """
    cached = _views(caches)
    kinds = _kinds(caches)
    slots = {CacheKind.LOCAL: "S_local", CacheKind.FULL: "S"}
    return Signature(
        inputs=(
            Port(TOKENS, "int64", ("T",)),
            Port(INPUT_POS, "int64", ("T",)),
            *(Port(CACHE_START[kind], "int64", (1,)) for kind in kinds),
            *(Port(MASK[kind], "float32", ("T", 1, slots[kind])) for kind in kinds),
            Port(EMIT, "bool", ()),
            *cached,
        ),
        outputs=(
            Port(LOGITS, "float32", ("T_out", vocab_size)),
            Port(ACTIVATIONS, "float32", ("T_out", hidden_size)),
            *(Port(present(p.name), p.dtype, p.shape) for p in cached),
        ),
    )


def onnx_drafter(caches: tuple[CacheSpec, ...], hidden_size: int, scored_tokens: int, vocab_size: int) -> Signature:
    """drafter.onnx: one draft step. `caches` are the target's that the drafter reads."""
    return Signature(
        inputs=(
            Port(TOKEN, "int64", (1,)),
            Port(ACTIVATIONS, "float32", (1, hidden_size)),
            Port(INPUT_POS, "int64", (1,)),
            *_views(caches),
        ),
        outputs=(
            Port(DRAFT_TOKEN, "int64", (1,)),
            Port(DRAFT_LOGIT, "float32", (1,)),
            Port(DRAFT_LOGSUMEXP, "float32", (1,)),
            Port(PROJECTED_ACTIVATIONS, "float32", (1, hidden_size)),
            *_scored_ports(scored_tokens, vocab_size, "int64"),
        ),
    )


def _views(caches: tuple[CacheSpec, ...]) -> tuple[Port, ...]:
    """The KV tensors of an ONNX graph: of every kv head the slots or rows that the call is given, [1, S, H]."""
    return tuple(
        Port(view, "float32", (1, "S_local" if cache.kind is CacheKind.LOCAL else "S", cache.head_dim))
        for cache in caches
        for name in (cache.key, cache.value)
        for view in cache.head_names(name)
    )


def _kinds(caches: tuple[CacheSpec, ...]) -> list[CacheKind]:
    return [kind for kind in CacheKind if any(cache.kind is kind for cache in caches)]


def tflite_embedder(name: str, rows: int, width: tuple[int, ...]) -> Signature:
    """A signature of embedder.tflite or per_layer_embedder.tflite: rows of its table, scaled.

    Args:
        name: of the output.
        rows: T.
        width: (D,) or (L, P).
    """
    return Signature((Port(TOKEN_IDS, "int32", (1, rows)),), (Port(name, "float32", (1, rows, *width)),))


def tflite_target(
    caches: tuple[CacheSpec, ...], window: int, hidden_size: int, vocab_size: int, per_layer: tuple[int, int] | None, rows: int
) -> Signature:
    """A signature of target.tflite: one of VERIFY for its number of rows, else of PREFILL, which has no logits.

    Args:
        per_layer: (L, P), or None where the model has no per-layer embedding.
        rows: T.
    """
    cached = tuple(port for cache in caches for port in _cache_ports(cache, window))
    kinds = _kinds(caches)
    return Signature(
        inputs=(
            *embedding_ports(rows, hidden_size, per_layer),
            Port(INPUT_POS, "int32", (rows,)),
            *(Port(CACHE_START[kind], "int32", (4,)) for kind in kinds),
            *_mask_ports(kinds, window, rows),
            *cached,
        ),
        outputs=(*(emitted_ports(rows, hidden_size, vocab_size) if rows in VERIFY else ()), *cached),
    )


def embedding_ports(rows: int, hidden_size: int, per_layer: tuple[int, int] | None) -> list[Port]:
    """What the token tables give a target for T = `rows` tokens; per_layer as for `tflite_target`."""
    sizes = {EMBEDDINGS: (hidden_size,)} | ({PER_LAYER_EMBEDDINGS: per_layer} if per_layer else {})
    return [Port(name, "float32", (1, rows, *size)) for name, size in sizes.items()]


def emitted_ports(rows: int, hidden_size: int, vocab_size: int) -> list[Port]:
    """What decode and verify say of T = `rows` rows."""
    sizes = {LOGITS: vocab_size, ACTIVATIONS: hidden_size}
    return [Port(name, "float32", (1, rows, size)) for name, size in sizes.items()]


def tflite_drafter(
    caches: tuple[CacheSpec, ...], window: int, hidden_size: int, scored_tokens: int, vocab_size: int
) -> Signature:
    """drafter.tflite: one draft step over the committed rows of `caches`, the target's that the drafter reads.

    `activations` are the token's scaled embedding and the hidden state, joined.
    """
    kinds = _kinds(caches)
    return Signature(
        inputs=(
            Port(ACTIVATIONS, "float32", (1, 1, 2 * hidden_size)),
            Port(INPUT_POS, "int32", (1,)),
            *_mask_ports(kinds, window, 1),
            *(port for cache in caches for port in _cache_ports(cache, window)),
        ),
        outputs=(
            Port(DRAFT_TOKEN, "int32", (1,)),
            Port(DRAFT_LOGIT, "float32", (1,)),
            Port(DRAFT_LOGSUMEXP, "float32", (1,)),
            Port(PROJECTED_ACTIVATIONS, "float32", (1, 1, hidden_size)),
            *_scored_ports(scored_tokens, vocab_size, "int32"),
        ),
    )


def _scored_ports(scored_tokens: int, vocab_size: int, dtype: str) -> list[Port]:
    """What a drafter says of every token that it scores."""
    tokens = [Port(DRAFT_SCORED, dtype, (scored_tokens,))] if scored_tokens < vocab_size else []
    return [Port(DRAFT_LOGITS, "float32", (scored_tokens,)), *tokens]


def _slots(kind: CacheKind, window: int) -> int | str:
    return local_slots(window) if kind is CacheKind.LOCAL else "S"


def _cache_ports(cache: CacheSpec, window: int) -> list[Port]:
    shape = (1, 1, _slots(cache.kind, window), cache.head_dim)
    return [Port(head, "float32", shape) for name in (cache.key, cache.value) for head in cache.head_names(name)]


def _mask_ports(kinds: list[CacheKind], window: int, rows: int) -> list[Port]:
    return [Port(MASK[kind], "float32", (1, 1, rows, _slots(kind, window))) for kind in kinds]
