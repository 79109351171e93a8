"""The draft-verify loop: propose, verify, accept, roll back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter

from paceline.acceptance import Accept, accept_greedy
from paceline.drafter import Drafter
from paceline.stats import Stats
from paceline.target import Target

MAX_DRAFT_LENGTH = 7  # verify serves up to 8 rows


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"  # a stop token
    LENGTH = "length"  # the budget is spent, or the KV cache is full


@dataclass(frozen=True)
class Emitted:
    """One token in order of the text; the last one of a generation has a finish reason."""

    token: int
    from_draft: bool
    finish_reason: FinishReason | None


def generate(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    draft_length: int,
    max_new_tokens: int | None,
    stop_ids: frozenset[int],
    stats: Stats,
    accept: Accept = accept_greedy,
) -> Iterator[Emitted]:
    """Greedy decoding of an empty cache's sequence; the tokens do not depend on the drafts.

    After every round the cache holds the rows of all tokens but the newest one, which is pending.

    Args:
        prompt: at least one token.
        draft_length: drafts a round, 0 to MAX_DRAFT_LENGTH; 0 is plain decoding.
        max_new_tokens: the budget of emitted tokens; None is no limit but the cache's capacity.
        stop_ids: tokens that end the text; the one that does is emitted.
        stats: counts what happens.
        accept: which drafts to keep; the tokens are those of plain decoding with `accept_greedy` only.

    Raises:
        CapacityError: the prompt does not fit; raised before any graph runs.
    """
    target.cache.require_room(len(prompt))
    stats.prompt_tokens = len(prompt)
    room = target.cache.capacity - target.cache.length - len(prompt) + 1
    budget = room if max_new_tokens is None else min(max_new_tokens, room)
    started = perf_counter()
    target.prefill(prompt[:-1])
    drafts: list[int] = []
    verified = target.verify(prompt[-1:])
    outcome = accept(drafts, verified.logits)
    stats.prefill_ms = 1000 * (perf_counter() - started)

    while True:
        hidden = verified.activations[outcome.accepted].copy()
        for index, token in enumerate([*drafts[: outcome.accepted], outcome.token]):
            target.commit(1)  # the row of the token before this one; what follows a stop is never committed
            stats.emitted += 1
            reason = _finish(token in stop_ids, stats.emitted >= budget)
            yield Emitted(token, index < outcome.accepted, reason)
            if reason:
                return
        started = perf_counter()
        length = min(draft_length, budget - stats.emitted - 1)
        drafts = [step.token for step in drafter.draft(outcome.token, hidden, length)]
        drafted = perf_counter()
        verified = target.verify([outcome.token, *drafts])
        outcome = accept(drafts, verified.logits)
        stats.draft_ms += 1000 * (drafted - started)
        stats.verify_ms += 1000 * (perf_counter() - drafted)
        stats.record_round(len(drafts), outcome.accepted)


def _finish(stopped: bool, spent: bool) -> FinishReason | None:
    if stopped:
        return FinishReason.STOP
    return FinishReason.LENGTH if spent else None
