"""Made-up benchmark reports, of two backends at E2B's size."""

from __future__ import annotations

from dataclasses import replace

from numpy import interp

from paceline.bench_report import BundleFacts, Report, Result, Run
from paceline.costs import Cost, Costs
from paceline.draft_length import Source
from paceline.drafts import Drafts
from paceline.machine import Machine
from paceline.stats import Stats

VERIFY = {"litert": {1: 63.9, 2: 97.1, 4: 102.2, 8: 185.9}, "onnxruntime": {1: 93.6, 2: 101.1, 4: 167.5, 8: 275.2}}  # ms
DRAFT_STEP_MS = {"litert": 2.2, "onnxruntime": 2.0}
# Draft length -> speed as a multiple of plain decoding's in each repeat, and accepted drafts of rounds that repeat.
WAYS: dict[int | None, tuple[tuple[float, ...], tuple[int, ...]]] = {
    0: ((1.0, 1.0, 1.0), (0,)),
    1: ((1.09, 1.05, 1.12), (1, 1, 0, 1)),
    3: ((1.36, 1.29, 1.41), (3, 1, 3, 0, 2, 3)),
    7: ((0.97, 0.88, 1.02), (7, 1, 3, 0, 2, 5)),
    None: ((1.41, 1.38, 1.43), (4, 2, 4, 1)),
}
TOKENS = 128


def with_every_length() -> Report:
    """All that one page can have: draft lengths 1 to 7, each row timed, and the longest numbers."""
    own, found = made_up_report(), []
    for name in own.ran_on:
        plain, *_, auto = own.of(name)
        rows = range(1, 9)
        verify = {
            count: Cost(ms, ms) for count, ms in zip(rows, interp(rows, *zip(*VERIFY[name].items(), strict=True)), strict=True)
        }
        costs = replace(plain.costs, verify=verify, draft={steps: Cost(2.0 * steps, 2.0 * steps) for steps in range(1, 8)})
        drafted = [ran(length, (1 + length / 10,) * 3, (length, 0, 1), VERIFY[name][1]) for length in range(1, 8)]
        found += [replace(plain, costs=costs)]
        found += [Result(name, length, own_runs, plain.runs, costs, None) for length, own_runs in enumerate(drafted, 1)]
        found += [replace(auto, costs=costs)]
    return replace(own, results=tuple(found), prompt_tokens=131_072, capacity=131_072, kv_cache_bytes=12_345_678_901)


def made_up_report(*backends: str, synthetic: float | None = None) -> Report:
    """A whole one, of the given backends or both; three repeats."""
    names = backends or tuple(VERIFY)
    return Report(
        date="2026-03-01T12:00:00+01:00",
        bundle=BundleFacts(
            name="e2b-bundle",
            recipe="mixed-wi4c",
            made_by="paceline 0.1.0",
            part_bytes={
                "litert": {
                    "drafter": 43_500_000,
                    "embedder": 203_000_000,
                    "per_layer_embedder": 1_180_000_000,
                    "target": 1_183_000_000,
                },
                "onnxruntime": {"drafter": 44_600_000, "target": 2_480_000_000},
            },
            other_bytes=32_170_000,
        ),
        prompt="Once upon a time",
        synthetic_acceptance=synthetic,
        prompt_tokens=512,
        new_tokens=TOKENS,
        repeats=3,
        machine=Machine("Some CPU @ 2.00GHz", 8),
        threads=4,
        versions={"Linux": "6.1.0", "Python": "3.11.9", "paceline": "0.1.0"},
        ran_on={name: f"{name} 1.2.3, 4 threads" for name in names},
        peak_memory_bytes=1_930_000_000,
        capacity=4096,
        kv_cache_bytes=75_500_000,
        results=tuple(result for name in names for result in results(name, synthetic)),
        prefill_costs={name: Costs(1, 3, {1: Cost(64, 65)}, {}, {16: Cost(104, 108), 128: Cost(780, 791)}) for name in names},
    )


def results(backend: str, synthetic: float | None) -> list[Result]:
    """Every way of drafting on a backend."""
    verify, step = VERIFY[backend], DRAFT_STEP_MS[backend]
    costs = Costs(
        context=576,
        repeats=30,
        verify={rows: Cost(ms, 1.04 * ms) for rows, ms in verify.items()},
        draft={steps: Cost(step * steps, 1.1 * step * steps) for steps in (1, 3, 7)},
        prefill={},
    )
    runs = {length: ran(length, speeds, accepted, verify[1]) for length, (speeds, accepted) in WAYS.items()}
    return [Result(backend, length, own, runs[0], costs, synthetic) for length, own in runs.items()]


def ran(length: int | None, speeds: tuple[float, ...], accepted: tuple[int, ...], decode_ms: float) -> tuple[Run, ...]:
    """Runs of the same tokens, one for each speed."""
    stats = Stats(emitted=TOKENS, prefill_ms=3210.0)
    for index in range(24):
        drafts = Drafts.chain([0] * (4 if length is None else length))
        stats.record_round(Source.DRAFTER, drafts, accepted[index % len(accepted)])
    return tuple(
        Run(tuple(range(TOKENS)), replace(stats, verify_ms=TOKENS * decode_ms / speed, prefill_ms=3210.0 * speed))
        for speed in speeds
    )
