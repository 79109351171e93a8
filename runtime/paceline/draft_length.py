"""How many drafts a round gets, and from which proposer: none, a fixed number, or as many as pay on this device.

`Adaptive` weighs what calls cost against how many drafts have lately been right, and leaves drafting when it does not pay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import inf, isfinite, prod
from typing import Protocol

from paceline.signatures import VERIFY

MOST_DRAFTS = max(VERIFY) - 1
# What follows is chosen by simulation, with the call costs of E2B on two cores: tests/properties/test_draft_length.py.
KEPT = 1 - 1 / 20  # of older evidence with each round: half of it is from the last 14. Less is too noisy near break-even
PRIOR_DRAFTS = 3  # seen before the first round, as it were: E2B then parks after two or three rejected rounds
NEIGHBOUR_DRAFTS = 2  # weight of the position before where a position has no drafts of its own
TRIAL_SHARE = 0.007  # of plain decoding's time, for trials; at most so much is lost while drafting does not pay
TRIAL_STEPS = 2  # what a trial costs: its step is a first one, which finds caches and threads busy with the target's pass
TRIAL_CREDIT = 0.5  # decode calls' time that can be saved for trials in a row, and is there at the start
ENTRY_GAIN = 1.03  # over plain decoding, to leave it: halves the switching near break-even, at the same speed within 0.5 %
SURENESS_BINS = 4  # of the drafter's probability, each with its own share of right drafts: a softmax is rarely calibrated


class Source(Enum):
    """Who proposes drafts."""

    DRAFTER = "drafter"
    LOOKUP = "lookup"  # earlier text, see `paceline.ngram`; its drafts cost nothing


# Hopeful for the drafter, so that good ones draft at once; a lookup's match is often chance, and watching it is free.
PRIOR = {Source.DRAFTER: 0.7, Source.LOOKUP: 0.3}


@dataclass(frozen=True)
class Choice:
    """What a round is to do.

    Attributes:
        length: drafts to verify; 0 is plain decoding.
        trial: also let the drafter guess the next token, only to tell `observe` whether it was right. That costs a draft
            step, and no row of the target's pass.
    """

    length: int
    source: Source = Source.DRAFTER
    trial: bool = False


class DraftLength(Protocol):
    """Asked by the loop before a round, and told afterwards how it went. Serves one generation at a time."""

    def next(self, most: int, lookup: int) -> Choice:
        """The coming round.

        Args:
            most: drafts that budget and capacity allow.
            lookup: tokens that the lookup can offer now; 0 where it has no match.
        """

    def stop(self, probability: float, drafted: int) -> bool:
        """Whether to verify the drafts that are there without another draft step; asked after each but the last.

        Args:
            probability: that the drafter gives the token it just drafted, exp(logit - logsumexp).
            drafted: tokens that it drafted in this round, that one included.
        """

    def record(self, choice: Choice, drafted: int, accepted: int) -> None:
        """Ends a round: `drafted` were verified, fewer than chosen where `stop` said so, and `accepted` were right."""

    def observe(self, source: Source, right: bool) -> None:
        """Whether a source's first token, which was not verified, is the one that the target wrote.

        For the drafter after a trial, and for the lookup after each round in which it had a match and was not chosen.
        """


@dataclass(frozen=True)
class Fixed:
    """The drafter's drafts, as many in each round as budget and capacity allow, up to `length`."""

    length: int

    def next(self, most: int, lookup: int) -> Choice:
        """See `DraftLength`."""
        return Choice(min(self.length, most))

    def stop(self, probability: float, drafted: int) -> bool:
        """Never."""
        return False

    def record(self, choice: Choice, drafted: int, accepted: int) -> None:
        """Nothing is learnt."""

    def observe(self, source: Source, right: bool) -> None:
        """Nothing is learnt."""


@dataclass(frozen=True)
class Off(Fixed):
    """Plain decoding."""

    length: int = 0


@dataclass(frozen=True)
class CallCosts:
    """Milliseconds of the calls of a round; only their ratios matter.

    Attributes:
        decode_ms: a target pass over one row.
        verify_ms: rows -> a target pass over so many; where a number lacks, the next larger one is what it costs, because
            the graphs of LiteRT are padded to these.
        draft_ms: one step of the drafter.

    Raises:
        ValueError: not positive and finite.
    """

    decode_ms: float
    verify_ms: Mapping[int, float]
    draft_ms: float

    def __post_init__(self) -> None:
        for cost in (self.decode_ms, *self.verify_ms.values(), self.draft_ms):
            if not (cost > 0 and isfinite(cost)):
                raise ValueError(f"a call cannot take {cost} ms")

    def round_ms(self, drafts: int, source: Source) -> float:
        """Drafting and verifying `drafts` tokens; infinite where no pass over so many rows was measured."""
        passes = {1: self.decode_ms, **self.verify_ms}
        _, verify_ms = min(((rows, ms) for rows, ms in passes.items() if rows > drafts), default=(0, inf))
        return verify_ms + (drafts * self.draft_ms if source is Source.DRAFTER else 0.0)


@dataclass(frozen=True)
class AdaptiveLimits:
    """What adaptive drafting may try.

    Attributes:
        most_drafts: of a round; 0 is plain decoding.
        lookup: whether earlier text may propose drafts.
    """

    most_drafts: int = MOST_DRAFTS
    lookup: bool = True


NO_LIMITS = AdaptiveLimits()


class Adaptive:
    """The source and draft length with the most expected tokens per millisecond, and plain decoding where none pays.

    A source that does not pay is parked. From then on its first token is compared with the one that the target writes,
    without being verified: free for a lookup, a draft step for the drafter, which a small share of the time is kept for.
    In 256 simulated tokens this loses less than 2 % to plain decoding at any acceptance, learning included; see the tests.

    It does not follow the clock: a busy moment looks like a dear verify pass, and a pass that is not run cannot be timed.
    A slow machine slows all calls alike, which leaves every decision as it is.
    """

    def __init__(self, costs: CallCosts, limits: AdaptiveLimits = NO_LIMITS):
        self._limits = limits
        self._round_ms = {source: [costs.round_ms(k, source) for k in range(MOST_DRAFTS + 1)] for source in Source}
        self._plain_ms, self._trial_ms = costs.decode_ms, TRIAL_STEPS * costs.draft_ms
        self._sources = {source: _Acceptance(PRIOR[source]) for source in Source}
        self._right_if_sure = [(index + 0.5) / SURENESS_BINS for index in range(SURENESS_BINS)]
        self._bins: list[int] = []  # how sure the drafter was of each draft of this round
        self._planned, self._ms_per_token = 0, costs.decode_ms
        self._full_credit_ms = self._credit_ms = TRIAL_CREDIT * costs.decode_ms
        self._trial_was_right = False
        perfect_rate = max((k + 1) / ms for k, ms in enumerate(self._round_ms[Source.DRAFTER][: limits.most_drafts + 1]))
        self._could_pay = perfect_rate * self._plain_ms > ENTRY_GAIN

    def next(self, most: int, lookup: int) -> Choice:
        """See `DraftLength`."""
        most, lookup = min(most, self._limits.most_drafts), lookup if self._limits.lookup else 0
        choice, most_rate = Choice(0), 1 / self._plain_ms
        for source, limit in ((Source.LOOKUP, min(lookup, most)), (Source.DRAFTER, most)):
            if limit:
                (length, rate), acceptance = self._best_length(source, limit), self._sources[source]
                acceptance.pays = rate * self._plain_ms > (1.0 if acceptance.pays else ENTRY_GAIN)
                if acceptance.pays and rate > most_rate:
                    choice, most_rate = Choice(length, source), rate
        self._bins.clear()
        self._planned, self._ms_per_token = choice.length, 1 / most_rate
        idle = most > 0 and (choice.length == 0 or choice.source is Source.LOOKUP)
        return replace(choice, trial=idle and self._trial_is_due())

    def _best_length(self, source: Source, limit: int) -> tuple[int, float]:
        """The number of drafts, at least 1, with the most expected tokens per millisecond, and these."""
        tokens, survival, found = 1.0, 1.0, (1, 0.0)
        for length, chance in enumerate(self._sources[source].chances[:limit], start=1):
            survival *= chance
            tokens += survival  # Leviathan and others (2023), equation 1, with a chance for each position
            rate = tokens / self._round_ms[source][length]
            if rate > found[1]:
                found = length, rate
        return found

    def _trial_is_due(self) -> bool:
        """One at a time while trials fail, as often as the share of time allows; then, from what was saved, in a row."""
        needed = self._trial_ms if self._trial_was_right else self._full_credit_ms
        return self._could_pay and self._credit_ms >= max(needed, self._trial_ms)

    def stop(self, probability: float, drafted: int) -> bool:
        """Whether no number of further steps is expected to earn its time, given how sure the drafter is of what it has.

        SpecDec++ (Huang and others, 2024) has a threshold for the chance that all drafts are right; here costs set it.
        """
        self._bins.append(min(int(probability * SURENESS_BINS), SURENESS_BINS - 1))
        survival = prod(self._right_if_sure[index] for index in self._bins)
        costs, tokens = self._round_ms[Source.DRAFTER], 0.0
        for length in range(drafted + 1, self._planned + 1):
            survival *= self._sources[Source.DRAFTER].chances[length - 1]
            tokens += survival
            if tokens * self._ms_per_token > costs[length] - costs[drafted]:
                return False
        return True

    def record(self, choice: Choice, drafted: int, accepted: int) -> None:
        """See `DraftLength`."""
        earned_ms = TRIAL_SHARE * self._plain_ms * (accepted + 1) - self._trial_ms * choice.trial
        self._credit_ms = min(self._credit_ms + earned_ms, self._full_credit_ms)
        if drafted:
            self._sources[choice.source].record(drafted, accepted)
            for position, index in enumerate(self._bins[: accepted + 1]):
                self._right_if_sure[index] += (1 - KEPT) * ((position < accepted) - self._right_if_sure[index])

    def observe(self, source: Source, right: bool) -> None:
        """See `DraftLength`."""
        self._sources[source].record(1, int(right))
        if source is Source.DRAFTER:
            self._trial_was_right = right


class _Acceptance:
    """How often a source's drafts have lately been right, by position, given that those before them were.

    Only drafts that were tried count: those up to the first rejected one, and none that `stop` left out. It leaves out
    what follows an unlikely token, and not that token itself, so what is counted is hardly better than the rest.

    Attributes:
        chances: of the draft at position 1, 2, ..
        pays: whether to draft from this source; differs from what `chances` say only between 1 and ENTRY_GAIN.
    """

    def __init__(self, prior: float):
        self._tried, self._right = [0.0] * MOST_DRAFTS, [0.0] * MOST_DRAFTS
        self._tried[0], self._right[0] = PRIOR_DRAFTS, PRIOR_DRAFTS * prior
        self.chances, self.pays = [prior] * MOST_DRAFTS, False

    def record(self, drafted: int, accepted: int) -> None:
        """Counts the drafts of a round; older ones fade, at positions that were not reached too."""
        chance = 0.0
        for position in range(MOST_DRAFTS):
            self._tried[position] *= KEPT
            self._right[position] *= KEPT
            if position < drafted and position <= accepted:
                self._tried[position] += 1
                self._right[position] += position < accepted
            weight = NEIGHBOUR_DRAFTS if position else 0
            self.chances[position] = chance = (self._right[position] + weight * chance) / (self._tried[position] + weight)
