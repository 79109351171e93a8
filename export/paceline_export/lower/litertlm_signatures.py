"""Inputs and outputs of the graphs in a .litertlm, as LiteRT-LM gives and asks for them.

Names are those of `paceline.signatures`, whose own graphs have the same and some more.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.signatures import (
    ACTIVATIONS,
    INPUT_POS,
    LOGITS,
    MASK,
    PREFILL,
    PREFILL_CHUNK,
    PROJECTED_ACTIVATIONS,
    ROW_BLOCK,
    VERIFY,
    CacheKind,
    CacheSpec,
    Port,
    Signature,
    embedding_ports,
    emitted_ports,
    in_steps,
)

MTP_DRAFTER = "mtp_drafter"


@dataclass(frozen=True)
class LiteRtLmProfile:
    """What of a .litertlm is fixed when it is written.

    Attributes:
        context: tokens of a prompt and its answer.
        draft_length: drafts that a round verifies.
    """

    context: int = 4096
    draft_length: int = 3

    @property
    def slots(self) -> int:
        """Of every KV tensor: a padded call near the end of the context must not run over it, or it goes elsewhere."""
        return in_steps(self.context + PREFILL_CHUNK, ROW_BLOCK)

    @property
    def emitting(self) -> dict[int, str]:
        """Rows -> the signatures that have logits."""
        return {1: VERIFY[1], self.draft_length + 1: "verify"}

    @property
    def signatures(self) -> dict[int, str]:
        """Rows -> all signatures."""
        return self.emitting | PREFILL


def litertlm_target(
    caches: tuple[CacheSpec, ...],
    slots: int,
    hidden_size: int,
    vocab_size: int,
    per_layer: tuple[int, int] | None,
    rows: int,
    emits: bool,
) -> Signature:
    """A signature of the target in a .litertlm: as `tflite_target`, with what LiteRT-LM gives and asks for."""
    cached = _whole_caches(caches, slots)
    embeddings, emitted = embedding_ports(rows, hidden_size, per_layer), emitted_ports(rows, hidden_size, vocab_size)
    positions, mask = Port(INPUT_POS, "int32", (rows,)), Port(MASK[CacheKind.FULL], "float32", (1, 1, rows, slots))
    return Signature((*embeddings, positions, mask, *cached), (*(emitted if emits else ()), *cached))


def litertlm_drafter(caches: tuple[CacheSpec, ...], slots: int, hidden_size: int, vocab_size: int) -> Signature:
    """The drafter in a .litertlm; `caches` are the target's that it reads."""
    joined, position = Port(ACTIVATIONS, "float32", (1, 1, 2 * hidden_size)), Port(INPUT_POS, "int32", (1,))
    mask = Port(MASK[CacheKind.FULL], "float32", (1, 1, 1, slots))
    logits, projected = Port(LOGITS, "float32", (1, 1, vocab_size)), Port(PROJECTED_ACTIVATIONS, "float32", (1, 1, hidden_size))
    return Signature((joined, position, mask, *_whole_caches(caches, slots)), (logits, projected))


def _whole_caches(caches: tuple[CacheSpec, ...], slots: int) -> tuple[Port, ...]:
    return tuple(
        Port(name, "float32", (1, cache.kv_heads, slots, cache.head_dim))
        for cache in caches
        for name in (cache.key, cache.value)
    )
