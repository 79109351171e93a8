"""What happened in a generation: counts and milliseconds only; every rate is derived when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.draft_length import Source
from paceline.drafts import Drafts

ENOUGH_GUESSES, LEAST_RIGHT = 48, 0.05  # a drafter that is right one time in five comes below that once in 500 times


@dataclass
class SourceStats:
    """What one proposer of drafts did."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass
class Stats:
    """Counters of one generation.

    Attributes:
        accepted_at, drafted_at: for draft position 1, 2, ..: how often it was accepted, how often proposed. In a tree several
            drafts stand at one position, which counts once.
        corrections: rounds of which a longer path was proposed than accepted.
        sources: the rounds with drafts, by who proposed them.
        trials, trials_right: draft steps whose token was only compared with what the target wrote, and those that were right.
    """

    prompt_tokens: int = 0
    emitted: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    corrections: int = 0
    bonuses: int = 0
    accepted_at: list[int] = field(default_factory=list)
    drafted_at: list[int] = field(default_factory=list)
    sources: dict[str, SourceStats] = field(default_factory=dict)
    trials: int = 0
    trials_right: int = 0
    prefill_ms: float = 0.0  # up to the first token
    draft_ms: float = 0.0
    verify_ms: float = 0.0

    def record_round(self, source: Source, drafts: Drafts, accepted: int, trials: int = 0) -> None:
        """Counts one verify pass and the drafts that went into it."""
        drafted, depth = len(drafts.tokens), drafts.depth
        self.rounds += 1
        self.trials += trials
        if drafted:
            own = self.sources.setdefault(source.value, SourceStats())
            own.rounds, own.drafted, own.accepted = own.rounds + 1, own.drafted + drafted, own.accepted + accepted
        self.drafted += drafted
        self.accepted += accepted
        if accepted < depth:
            self.corrections += 1
        elif drafted:
            self.bonuses += 1
        while len(self.drafted_at) < depth:
            self.drafted_at.append(0)
            self.accepted_at.append(0)
        for position in range(depth):
            self.drafted_at[position] += 1
            self.accepted_at[position] += position < accepted

    def add(self, other: Stats) -> None:
        """Counts another generation in."""
        for name, value in vars(other).items():
            if isinstance(value, int | float):
                vars(self)[name] += value
        for ours, theirs in ((self.accepted_at, other.accepted_at), (self.drafted_at, other.drafted_at)):
            ours.extend([0] * (len(theirs) - len(ours)))
            for position, count in enumerate(theirs):
                ours[position] += count
        for source, own in other.sources.items():
            so_far = self.sources.setdefault(source, SourceStats())
            so_far.rounds += own.rounds
            so_far.drafted += own.drafted
            so_far.accepted += own.accepted

    @property
    def drafter_is_hopeless(self) -> bool:
        """Whether the drafter's first guesses were so often wrong that something else than the text must be the matter."""
        own = self.sources.get(Source.DRAFTER.value, SourceStats())
        guesses = own.rounds + self.trials
        right = min(own.accepted, own.rounds) + self.trials_right
        return guesses >= ENOUGH_GUESSES and right < LEAST_RIGHT * guesses

    @property
    def decode_ms(self) -> float:
        """Time in the loop, the caller's own work excluded."""
        return self.draft_ms + self.verify_ms

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second after the first one."""
        return 1000 * (self.emitted - 1) / self.decode_ms if self.decode_ms else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of drafts accepted at position 1, 2, ..; a draft after a rejected one counts as rejected."""
        return [a / d for a, d in zip(self.accepted_at, self.drafted_at, strict=True)]

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens that one target pass yields: its own token and the accepted drafts."""
        return 1 + self.accepted / self.rounds if self.rounds else 0.0

    def to_json(self) -> dict[str, Any]:
        """All counters and the derived rates."""
        return asdict(self) | {
            "decode_ms": self.decode_ms,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_round": self.tokens_per_round,
            "acceptance_by_position": self.acceptance_by_position,
        }


def distinct_4grams(tokens: Sequence[int]) -> float:
    """Share of different 4-grams: low where a text repeats itself, which is easy to draft."""
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return len(set(grams)) / len(grams) if grams else 1.0
