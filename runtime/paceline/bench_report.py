"""What a benchmark found: counts and milliseconds of its runs, and every rate derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from paceline.bundle import Bundle
from paceline.costs import Costs
from paceline.machine import Machine
from paceline.speedup import at_rate, constant_rate, expected_speedup
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
    def acceptance_rate(self) -> float | None:
        """The rate r that keeps as many drafts as were kept, a1 + .. + aK = r + .. + r**K, or the synthetic one as asked."""
        if not self.draft_length:
            return None
        if self.synthetic_acceptance is not None:
            return self.synthetic_acceptance
        return constant_rate(sum(self.acceptance_by_position), self.draft_length)

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
            accepted = at_rate(self.synthetic_acceptance, self.draft_length)
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
            "acceptance_rate": self.acceptance_rate,
            "sources": {name: asdict(own) for name, own in self.runs[0].stats.sources.items()},
            "verify_ratio": self.verify_ratio,
            "draft_ratio": self.draft_ratio,
            "same_tokens": self.same_tokens,
        }


@dataclass(frozen=True)
class BundleFacts:
    """What was measured.

    Attributes:
        name: of the bundle's directory.
        recipe: what its weights are stored as.
        part_bytes: backend -> target, drafter, .. -> its graph and weights on disk.
        other_bytes: tokenizer, chat template and whatever else belongs to no backend.
    """

    name: str
    recipe: str
    made_by: str
    part_bytes: Mapping[str, Mapping[str, int]]
    other_bytes: int

    @classmethod
    def of(cls, bundle: Bundle) -> BundleFacts:
        """Of a bundle, by its manifest."""
        manifest, sizes = bundle.manifest, {name: file.size for name, file in bundle.manifest.files.items()}
        part_bytes = {
            backend: {
                # ONNX keeps the weights of target.onnx in target.onnx.data.
                part: sum(size for name, size in sizes.items() if name == file or name.startswith(f"{file}."))
                for part, file in graphs.parts.items()
            }
            for backend, graphs in manifest.graphs.items()
        }
        others = sum(sizes.values()) - sum(sum(parts.values()) for parts in part_bytes.values())
        return cls(bundle.folder.resolve().name, manifest.recipe, manifest.made_by, part_bytes, others)


@dataclass(frozen=True)
class Report:
    """All results, and what they must be read with.

    Attributes:
        date: when it was begun, ISO 8601 with the zone.
        prompt: the text that was continued.
        threads: as they were asked for; None is as many as the machine has cores.
        versions: of the system, Python and the packages.
        ran_on: backend -> what really ran its graphs.
        peak_memory_bytes: of the whole process, so of all backends together.
        capacity: rows of the KV cache.
        kv_cache_bytes: the KV tensors of one sequence at that capacity; pages take memory once rows are written to them.
        prefill_costs: backend -> prefill calls of each size into an empty cache; none unless the plan asks for them.
    """

    date: str
    bundle: BundleFacts
    prompt: str
    synthetic_acceptance: float | None
    prompt_tokens: int
    new_tokens: int
    repeats: int
    machine: Machine
    threads: int | None
    versions: Mapping[str, str]
    ran_on: Mapping[str, str]
    peak_memory_bytes: int
    capacity: int
    kv_cache_bytes: int
    results: tuple[Result, ...]
    prefill_costs: Mapping[str, Costs]

    def of(self, backend: str) -> tuple[Result, ...]:
        """The results of one backend, plain decoding first."""
        return tuple(result for result in self.results if result.backend == backend)

    @property
    def same_tokens(self) -> bool | None:
        """Whether every draft length emitted plain decoding's tokens; None where acceptance is synthetic."""
        found = [result.same_tokens for result in self.results]
        return None if None in found else all(found)

    def to_json(self) -> dict[str, Any]:
        """The whole report."""
        return {
            "date": self.date,
            "bundle": asdict(self.bundle),
            "prompt": self.prompt,
            "synthetic_acceptance": self.synthetic_acceptance,
            "machine": asdict(self.machine),
            "threads": self.threads,
            "versions": dict(self.versions),
            "ran_on": dict(self.ran_on),
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "repeats": self.repeats,
            "peak_memory_bytes": self.peak_memory_bytes,
            "capacity": self.capacity,
            "kv_cache_bytes": self.kv_cache_bytes,
            "same_tokens": self.same_tokens,
            "results": [result.to_json() for result in self.results],
            "call_costs": {result.backend: asdict(result.costs) for result in self.results},
            "prefill_costs": {backend: asdict(costs) for backend, costs in self.prefill_costs.items()},
        }
