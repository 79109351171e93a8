"""What a benchmark found: counts and milliseconds of its runs, and every rate derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from paceline.costs import Costs
from paceline.machine import Machine
from paceline.stats import Stats


@dataclass(frozen=True)
class Run:
    """One generation."""

    tokens: tuple[int, ...]
    stats: Stats


@dataclass(frozen=True)
class Spread:
    """A quantity over the repeats."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one value."""
        found = list(values)
        return cls(median(found), min(found), max(found))


@dataclass(frozen=True)
class Result:
    """One draft length on one backend; every rate is derived from its runs.

    Attributes:
        draft_length: None is adaptive, which has no cost of its own: `costs` are those of fixed lengths.
        runs: one a repeat.
        plain: those of draft length 0 on this backend in the same repeats.
    """

    backend: str
    draft_length: int | None
    runs: tuple[Run, ...]
    plain: tuple[Run, ...]
    costs: Costs
    synthetic_acceptance: float | None

    @property
    def first_token_ms(self) -> Spread:
        """Time to the first token: the whole prompt's passes."""
        return Spread.of(run.stats.prefill_ms for run in self.runs)

    @property
    def tokens_per_s(self) -> Spread:
        """After the first token."""
        return Spread.of(run.stats.tokens_per_s for run in self.runs)

    @property
    def speedup(self) -> Spread:
        """Decoding speed as a multiple of plain decoding's in the same repeat."""
        pairs = zip(self.runs, self.plain, strict=True)
        return Spread.of(run.stats.tokens_per_s / plain.stats.tokens_per_s for run, plain in pairs)

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens of a target pass. Of the first repeat, as is the next: tokens and rounds do not differ in the others."""
        return self.runs[0].stats.tokens_per_round

    @property
    def acceptance_by_position(self) -> list[float]:
        """See `Stats.acceptance_by_position`."""
        return self.runs[0].stats.acceptance_by_position

    @property
    def verify_ratio(self) -> float | None:
        """See `Costs.verify_ratio`."""
        return None if self.draft_length is None else self.costs.verify_ratio(self.draft_length)

    @property
    def draft_ratio(self) -> float | None:
        """See `Costs.draft_ratio`."""
        return None if self.draft_length is None else self.costs.draft_ratio(self.draft_length)

    @property
    def expected_speedup(self) -> float | None:
        """`expected_speedup` of the measured acceptance, or of the synthetic one as it was asked for."""
        if self.draft_length is None or self.verify_ratio is None or self.draft_ratio is None:
            return None
        accepted = self.acceptance_by_position
        if self.synthetic_acceptance is not None:
            accepted = [self.synthetic_acceptance**position for position in range(1, self.draft_length + 1)]
        return expected_speedup(accepted, self.draft_length, self.verify_ratio, self.draft_ratio)

    @property
    def same_tokens(self) -> bool | None:
        """Whether every run emitted the tokens of the first plain one; None where acceptance is synthetic."""
        if self.synthetic_acceptance is not None:
            return None
        return all(run.tokens == self.plain[0].tokens for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """All figures; a spread is an object of median, minimum and maximum."""
        return {
            "backend": self.backend,
            "draft_length": "auto" if self.draft_length is None else self.draft_length,
            "first_token_ms": asdict(self.first_token_ms),
            "tokens_per_s": asdict(self.tokens_per_s),
            "speedup": asdict(self.speedup),
            "expected_speedup": self.expected_speedup,
            "tokens_per_round": self.tokens_per_round,
            "acceptance_by_position": self.acceptance_by_position,
            "sources": {name: asdict(own) for name, own in self.runs[0].stats.sources.items()},
            "verify_ratio": self.verify_ratio,
            "draft_ratio": self.draft_ratio,
            "same_tokens": self.same_tokens,
        }


@dataclass(frozen=True)
class Report:
    """All results, and what they must be read with.

    Attributes:
        ran_on: backend -> what really ran its graphs.
        peak_memory_bytes: of the whole process, so of all backends together.
    """

    synthetic_acceptance: float | None
    prompt_tokens: int
    new_tokens: int
    repeats: int
    machine: Machine
    ran_on: Mapping[str, str]
    peak_memory_bytes: int
    results: tuple[Result, ...]

    @property
    def same_tokens(self) -> bool | None:
        """Whether every draft length emitted plain decoding's tokens; None where acceptance is synthetic."""
        found = [result.same_tokens for result in self.results]
        return None if None in found else all(found)

    def to_json(self) -> dict[str, Any]:
        """The whole report."""
        return {
            "synthetic_acceptance": self.synthetic_acceptance,
            "machine": asdict(self.machine),
            "ran_on": dict(self.ran_on),
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "repeats": self.repeats,
            "peak_memory_bytes": self.peak_memory_bytes,
            "same_tokens": self.same_tokens,
            "results": [result.to_json() for result in self.results],
            "call_costs": {result.backend: asdict(result.costs) for result in self.results},
        }


def expected_speedup(accepted: Sequence[float], draft_length: int, verify_ratio: float, draft_ratio: float) -> float:
    """Tokens of a round over its cost, (1 + a1 + .. + aK) / (v + K d), both as multiples of plain decoding's.

    Leviathan and others (2023), theorem 3.8, is the case of a constant rate r, so that aj = r**j, and of a verify pass as
    cheap as decode, v = 1: (1 - r**(K + 1)) / ((1 - r) (K d + 1)).

    Args:
        accepted: a1, a2, ..; share of the drafts at a position that were accepted, those after a rejected one counted as
            rejected. Positions that were never drafted may lack.
        draft_length: K.
        verify_ratio: v, a target pass over K + 1 rows as a multiple of decode.
        draft_ratio: d, one of the K draft steps as a multiple of decode.
    """
    return (1 + sum(accepted)) / (verify_ratio + draft_length * draft_ratio)
