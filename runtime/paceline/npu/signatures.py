"""Inputs and outputs of the graphs for a neural processor.

Such a processor wants fixed sizes, and no writes, lookups or trigonometry. So masks and rotations are inputs, the KV tensors
are only read, and what a call adds to them comes out as `kv_slice_*`, to be written by the CPU. Names are those of Google's
bundles for NPUs, where there is one. Axes as in `paceline.signatures`; S slots are those of old rows, and T new ones follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.signatures import (
    ACTIVATIONS,
    DRAFT,
    DRAFT_SCORED,
    LOGITS,
    PREFILL_CHUNK,
    PROJECTED_ACTIVATIONS,
    SIGNATURES,
    VERIFY,
    CacheKind,
    CacheSpec,
    Port,
    Signature,
    embedding_ports,
    emitted_ports,
    local_slots,
)

ROWS = (*VERIFY, PREFILL_CHUNK)  # T of the target's signatures; calls with fewer rows are padded
MASK = {CacheKind.FULL: "mask_global", CacheKind.LOCAL: "mask_local"}
COSINES = {CacheKind.FULL: "pos_emb_cos", CacheKind.LOCAL: "pos_emb_local_cos"}
SINES = {CacheKind.FULL: "pos_emb_sin", CacheKind.LOCAL: "pos_emb_local_sin"}
# Scores of the clusters that the drafter chose; nobody reads them, but Qualcomm's compiler loses outputs that lead nowhere.
TOP_CLUSTERS = "top_cluster_logits"
TOKEN = "token"  # of an unrolled drafter: the first step's


def signature_name(rows: int, context: int, contexts: Sequence[int]) -> str:
    """The target's signature for `rows` rows and full caches of `context` slots."""
    return in_context(SIGNATURES[rows], context, contexts)


def draft_name(steps: int, context: int, contexts: Sequence[int]) -> str:
    """The drafter's signature of so many steps in one call."""
    return in_context(DRAFT if steps == 1 else f"{DRAFT}_{steps}", context, contexts)


def in_context(name: str, context: int, contexts: Sequence[int]) -> str:
    """`name`, with the size of the caches where there are several."""
    return name if len(contexts) == 1 else f"{name}_cache_{context}"


def cache_slice(cache_name: str) -> str:
    """The output with the rows that a call adds to a KV tensor."""
    return cache_name.replace("cache", "slice", 1)


def new_slots(rows: int) -> int:
    """Columns of a mask for a call's own rows: as many for one row as for the most that are verified.

    A softmax of 16-bit integers counts what is masked, each slot a little. So a row's result would depend on how many rows are
    computed with it if the number of slots did.
    """
    return max(rows, max(VERIFY))


def context_of(row: int, contexts: Sequence[int]) -> int:
    """The size of the full caches where a row is computed, which depends on nothing but its position."""
    return next((size for size in contexts if row < size - max(VERIFY)), contexts[-1])


def slots(kind: CacheKind, window: int, context: int) -> int:
    """Slots of a KV tensor."""
    return local_slots(window) if kind is CacheKind.LOCAL else context


def npu_target(
    caches: Sequence[CacheSpec],
    window: int,
    hidden_size: int,
    vocab_size: int,
    per_layer: tuple[int, int] | None,
    rows: int,
    context: int,
    dtype: str,
) -> Signature:
    """A signature of the target: with logits for the rows of VERIFY, without for prefill.

    Args:
        per_layer: (L, P), or None where the model has no per-layer embedding.
        rows: T.
        context: slots of the full caches.
        dtype: of everything.
    """
    emitted = emitted_ports(rows, hidden_size, vocab_size) if rows in VERIFY else []
    added = [
        port
        for spec in caches
        for port in (
            Port(cache_slice(spec.key), dtype, (1, spec.kv_heads, rows, spec.head_dim)),
            Port(cache_slice(spec.value), dtype, (1, spec.kv_heads, spec.head_dim, rows)),
        )
    ]
    return Signature(
        (
            *_as(dtype, embedding_ports(rows, hidden_size, per_layer)),
            *_position_ports(caches, window, rows, context, new_slots(rows), dtype),
            *_cache_ports(caches, window, context, dtype),
        ),
        (*_as(dtype, emitted), *added),
    )


def npu_drafter(
    caches: Sequence[CacheSpec],
    window: int,
    hidden_size: int,
    scored_tokens: int,
    top_clusters: int,
    context: int,
    steps: int,
    dtype: str,
) -> Signature:
    """The drafter over the old rows of `caches`, those of the target that it reads.

    One step is given `activations`, the token's scaled embedding and the hidden state, joined. With several steps they are the
    hidden state alone, and `token` is int32 [1]; outputs of later steps have the step's number, from 1, behind their name.

    Args:
        top_clusters: that the head chooses; 0 where it scores the whole vocabulary.
        context, dtype: as for `npu_target`.
    """
    joined = Port(ACTIVATIONS, dtype, (1, 1, (2 if steps == 1 else 1) * hidden_size))
    first = (joined,) if steps == 1 else (Port(TOKEN, "int32", (1,)), joined)
    outputs = [
        port
        for step in range(steps)
        for port in (
            Port(of_step(LOGITS, step), dtype, (1, 1, scored_tokens)),
            Port(of_step(PROJECTED_ACTIVATIONS, step), dtype, (1, 1, hidden_size)),
            *(_cluster_ports(step, scored_tokens, top_clusters) if top_clusters else ()),
        )
    ]
    positions = _position_ports(caches, window, 1, context, 0, dtype)
    return Signature((*first, *positions, *_cache_ports(caches, window, context, dtype)), tuple(outputs))


def _cluster_ports(step: int, scored_tokens: int, top_clusters: int) -> tuple[Port, ...]:
    scored = Port(of_step(DRAFT_SCORED, step), "int32", (scored_tokens,))
    return scored, Port(of_step(TOP_CLUSTERS, step), "float32", (1, 1, top_clusters))


def of_step(name: str, step: int) -> str:
    """An output of one step of an unrolled drafter; steps count from 0."""
    return name if step == 0 else f"{name}_{step}"


def kinds_of(caches: Sequence[CacheSpec]) -> dict[CacheKind, int]:
    """The kinds of caches that there are, and the head size of each, in a fixed order."""
    sizes = {spec.kind: spec.head_dim for spec in caches}
    return {kind: sizes[kind] for kind in CacheKind if kind in sizes}


def _position_ports(caches: Sequence[CacheSpec], window: int, rows: int, context: int, added: int, dtype: str) -> list[Port]:
    """What rows see of the old slots and of `added` new ones, and how they are rotated, by kind of cache."""
    found = []
    for kind, size in kinds_of(caches).items():
        found += [
            Port(MASK[kind], dtype, (1, 1, rows, slots(kind, window, context) + added)),
            Port(COSINES[kind], dtype, (1, rows, 1, size)),
            Port(SINES[kind], dtype, (1, rows, 1, size)),
        ]
    return found


def _cache_ports(caches: Sequence[CacheSpec], window: int, context: int, dtype: str) -> list[Port]:
    """Keys [1, K, S, H] and values [1, K, H, S]."""
    found = []
    for spec in caches:
        held = slots(spec.kind, window, context)
        found.append(Port(spec.key, dtype, (1, spec.kv_heads, held, spec.head_dim)))
        found.append(Port(spec.value, dtype, (1, spec.kv_heads, spec.head_dim, held)))
    return found


def _as(dtype: str, ports: Sequence[Port]) -> list[Port]:
    return [Port(port.name, dtype, port.shape) for port in ports]
