"""The draft-verify loop: propose, verify, accept, roll back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from threading import Event
from time import perf_counter

from paceline.draft_length import MOST_DRAFTS, DraftLength, Source
from paceline.drafter import Drafter, never
from paceline.drafts import NOTHING, Drafts
from paceline.ngram import Lookup
from paceline.rules import Rule
from paceline.stats import Stats
from paceline.target import Target

MAX_DRAFT_LENGTH = MOST_DRAFTS  # verify serves up to 8 rows


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"  # a stop token, or a stop text
    LENGTH = "length"  # the budget is spent, or the KV cache is full
    CANCELLED = "cancelled"  # somebody asked for it


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
    rule: Rule,
    draft_length: DraftLength,
    max_new_tokens: int | None,
    stop_ids: frozenset[int],
    stats: Stats,
    lookup: Lookup | None = None,
    cancel: Event | None = None,
) -> Iterator[Emitted]:
    """Continues a sequence; how its tokens are distributed, or which they are, does not depend on the drafts.

    After every round the cache holds the rows of all tokens but the newest one, which is pending.

    Args:
        prompt: at least one token, to follow what the cache holds.
        rule: how drafts are drawn and judged, and so what the target itself would write.
        draft_length: how many drafts a round has, and whose.
        max_new_tokens: the budget of emitted tokens; None is no limit but the cache's capacity.
        stop_ids: tokens that end the text; the one that does is emitted.
        stats: counts what happens.
        lookup: of the text so far, the prompt included; None proposes nothing.
        cancel: ends the prefill once it is set; ending what follows is for the caller, who may leave after any token.

    Raises:
        CapacityError: the prompt does not fit; raised before any graph runs.
        CancelledError: `cancel` was set before the first token.
    """
    target.cache.require_room(len(prompt))
    stats.prompt_tokens = len(prompt)
    room = target.cache.capacity - target.cache.length - len(prompt) + 1
    budget = room if max_new_tokens is None else min(max_new_tokens, room)
    started = perf_counter()
    target.prefill(prompt[:-1], cancel)
    drafts = NOTHING
    verified = target.verify(prompt[-1:])
    outcome = rule.accept(drafts, verified.logits)
    stats.prefill_ms = 1000 * (perf_counter() - started)

    while True:
        hidden = verified.activations[outcome.last_row].copy()
        target.keep(outcome.rows)
        for index, token in enumerate([*drafts.at(outcome.rows), outcome.token]):
            target.commit(1)  # the row of the token before this one; what follows a stop is never committed
            stats.emitted += 1
            if lookup:
                lookup.push(token)
            reason = _finish(token in stop_ids, stats.emitted >= budget)
            yield Emitted(token, index < outcome.accepted, reason)
            if reason:
                return
        started, pending = perf_counter(), outcome.token
        most = min(MAX_DRAFT_LENGTH, budget - stats.emitted - 1)
        offered = lookup.propose(most) if lookup else []
        choice = draft_length.next(most, len(offered))
        if choice.source is Source.LOOKUP:
            drafts = Drafts.chain(offered[: choice.length])
        elif rule.branching:
            drafts = drafter.tree(pending, hidden, choice.length)
        else:
            stop = draft_length.stop if rule.may_stop else never
            drafts = Drafts.chain(drafter.draft(pending, hidden, choice.length, rule.choose, stop))
        tried = drafter.chain(pending, hidden, int(choice.trial))
        drafted = perf_counter()
        verified = target.verify([pending, *drafts.tokens], drafts.paths)
        outcome = rule.accept(drafts, verified.logits)
        stats.draft_ms += 1000 * (drafted - started)
        stats.verify_ms += 1000 * (perf_counter() - drafted)
        stats.record_round(choice.source, drafts, outcome.accepted, len(tried))
        draft_length.record(choice, len(drafts.tokens), outcome.accepted)
        first, *_ = *drafts.at(outcome.rows), outcome.token
        if tried:
            right = rule.right(tried[0], first, verified.logits[0])
            stats.trials_right += right
            draft_length.observe(Source.DRAFTER, right)
        if offered and choice.source is not Source.LOOKUP:
            draft_length.observe(Source.LOOKUP, rule.right(offered[0], first, verified.logits[0]))


def _finish(stopped: bool, spent: bool) -> FinishReason | None:
    if stopped:
        return FinishReason.STOP
    return FinishReason.LENGTH if spent else None
