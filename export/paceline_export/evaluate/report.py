"""What came of an evaluation: counts of rounds by how texts were written, class of prompt and draft length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.speedup import expected_speedup
from paceline_export.evaluate.replay import MOST_DRAFTS, Tally, Trace, first_round, free_running

ALL = "all"
LENGTHS = tuple(range(1, MOST_DRAFTS + 1))


@dataclass(frozen=True)
class Ratios:
    """What calls cost on a device, decode = 1.

    Attributes:
        where: the backend and what was timed.
        verify, draft: draft length -> a target pass over that many drafts and the pending token; one draft step of so many.
    """

    where: str
    verify: Mapping[int, float]
    draft: Mapping[int, float]


@dataclass(frozen=True)
class Proposer:
    """What one proposer of drafts would have had accepted.

    Attributes:
        first: the first round of each text, with MOST_DRAFTS drafts.
        free: draft length -> all rounds of the texts.
    """

    first: Tally
    free: Mapping[int, Tally]

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Proposer:
        """Counts all rounds."""
        return cls(first_round(traces, MOST_DRAFTS), {length: free_running(traces, length) for length in LENGTHS})

    def speedup(self, length: int, ratios: Ratios, drafting: bool = True) -> float:
        """What drafting should bring at a draft length; without `drafting` proposals cost nothing."""
        draft = ratios.draft[length] if drafting else 0.0
        return expected_speedup(self.free[length].by_position, length, ratios.verify[length], draft)

    def to_json(self) -> dict[str, Any]:
        """Counts, and the shares that follow."""
        return {
            "first_round": _tally(self.first),
            "free_running": {str(length): _tally(tally) for length, tally in self.free.items()},
        }


@dataclass(frozen=True)
class Result:
    """One way of writing texts after the prompts of one class, or of all.

    Attributes:
        distinct_4grams: mean over the texts; low where they repeat themselves, which is easy to draft.
    """

    texts: str
    kind: str
    prompts: int
    distinct_4grams: float
    drafter: Proposer
    lookup: Proposer


@dataclass(frozen=True)
class Report:
    """An evaluation.

    Attributes:
        what: label -> what was evaluated and how, for whoever reads the numbers.
        ratios: None where no device is known.
    """

    what: Mapping[str, str]
    results: Sequence[Result]
    ratios: Ratios | None

    @property
    def ways(self) -> list[str]:
        """How texts were written."""
        return list(dict.fromkeys(result.texts for result in self.results))

    def written(self, name: str) -> list[Result]:
        """Of one way of writing; the first is that of all prompts."""
        return [result for result in self.results if result.texts == name]

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        return {
            "what": dict(self.what),
            "ratios": None
            if self.ratios is None
            else {
                "where": self.ratios.where,
                "verify": {str(length): ratio for length, ratio in self.ratios.verify.items()},
                "draft": {str(length): ratio for length, ratio in self.ratios.draft.items()},
            },
            "results": [self._result(result) for result in self.results],
        }

    def _result(self, result: Result) -> dict[str, Any]:
        found: dict[str, Any] = {
            "texts": result.texts,
            "class": result.kind,
            "prompts": result.prompts,
            "distinct_4grams": round(result.distinct_4grams, 4),
            "drafter": result.drafter.to_json(),
            "lookup": result.lookup.to_json(),
        }
        if self.ratios:
            found["predicted_speedup"] = {
                str(length): round(result.drafter.speedup(length, self.ratios), 4) for length in self.ratios.verify
            }
        return found


def results(name: str, traces: Sequence[Trace], distinct: Sequence[float]) -> list[Result]:
    """Of all prompts together, and of each class where there are several.

    Args:
        name: how the texts were written.
        distinct: of each trace, the share of different 4-grams.
    """
    kinds = list(dict.fromkeys(trace.kind for trace in traces))
    found = []
    for kind in (ALL, *kinds) if len(kinds) > 1 else kinds:
        chosen = [index for index, trace in enumerate(traces) if kind in (ALL, trace.kind)]
        own = [traces[index] for index in chosen]
        mean = sum(distinct[index] for index in chosen) / len(chosen)
        by_lookup = Proposer.of([trace.by_lookup() for trace in own])
        found.append(Result(name, kind, len(own), mean, Proposer.of(own), by_lookup))
    return found


def _tally(tally: Tally) -> dict[str, Any]:
    return {
        "rounds": tally.rounds,
        "accepted_at": list(tally.accepted_at),
        "by_position": [round(share, 4) for share in tally.by_position],
        "mean_accepted": round(tally.mean_accepted, 4),
    }
