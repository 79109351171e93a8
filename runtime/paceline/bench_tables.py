"""A benchmark's report in words: its tables, whoever draws them, and the sentences without which they cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.bench import named
from paceline.bench_report import Report, Spread


@dataclass(frozen=True)
class Sheet:
    """A table before it is drawn one way or another."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sheets(report: Report) -> tuple[Sheet, Sheet]:
    """What came out, and why. The first column is the backend."""
    synthetic = report.synthetic_acceptance
    mark = (
        "" if synthetic is None else f"SYNTHETIC ACCEPTANCE {synthetic:g} (drafts accepted by chance, not the model's text): "
    )
    speed, why = [], []
    for result in report.results:
        way = (result.backend, "off" if result.draft_length == 0 else named(result.draft_length))
        expected = number(result.expected_speedup)
        rate, gain = spread(result.tokens_per_s, 1), spread(result.speedup, 2)
        speed.append((*way, rate, gain, expected, spread(result.first_token_ms)))
        accepted = " ".join(f"{100 * share:.0f}" for share in result.acceptance_by_position)
        draft = number(result.draft_ratio) if result.draft_length else ""
        why.append((*way, f"{result.tokens_per_round:.2f}", accepted, number(result.verify_ratio), draft))
    return (
        Sheet(
            f"{mark}speed, median (smallest..largest) of {report.repeats} repeats in turns",
            ("backend", "drafts", "tokens/s", "speed-up", "expected", "first token, ms"),
            tuple(speed),
        ),
        Sheet(
            f"{mark}acceptance, and the cost of single calls",
            ("backend", "drafts", "tokens a round", "% accepted at 1, 2, ..", "verify / decode", "draft / decode"),
            tuple(why),
        ),
    )


def notes(report: Report) -> list[str]:
    """Sentences without which the tables cannot be read."""
    machine = report.machine
    return [
        f"{report.prompt_tokens} prompt tokens, {report.new_tokens} new tokens, on {machine.cpu}, {machine.cores} cores; "
        f"peak resident memory of the process, all backends together: {report.peak_memory_bytes / 1e6:.0f} MB",
        *(f"{name}: {what}" for name, what in report.ran_on.items()),
        "expected speed-up: tokens a round by acceptance, over verify / decode + drafts x draft / decode",
        verdict(report),
    ]


def verdict(report: Report) -> str:
    """Whether the texts were those of plain decoding."""
    if report.same_tokens is None:
        p = report.synthetic_acceptance
        return f"SYNTHETIC ACCEPTANCE: each draft was accepted with probability {p:g}; the texts were not compared"
    if report.same_tokens:
        return "every draft length emitted the tokens of plain decoding"
    return "the tokens DIFFER from those of plain decoding: please report this"


def number(value: float | None) -> str:
    """A ratio; nothing where there is none."""
    return "" if value is None else f"{value:.2f}"


def spread(found: Spread, digits: int = 0) -> str:
    """The median, and what the repeats lay between."""
    return f"{found.median:.{digits}f} ({found.minimum:.{digits}f}..{found.maximum:.{digits}f})"
