"""The page: what was measured on what, the charts with a sentence each, and every figure in tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from paceline.bench_page import charts
from paceline.bench_page.charts import drafts_in_words, size_in_words, three
from paceline.bench_report import Report
from paceline.bench_tables import Sheet, notes, sheets, verdict

TEMPLATE = "page.html.jinja"


@dataclass(frozen=True)
class Section:
    """One question: a heading, how to read its charts, and a chart of each backend."""

    title: str
    reading: str
    charts: tuple[Markup, ...]


def page(report: Report, command: Sequence[str]) -> str:
    """The whole file, which loads nothing: the same text for the same report.

    Args:
        report: of a plan with `all_calls`, so that every chart has something to show.
        command: what makes such a report again, in words that a shell takes.
    """
    return rendered(
        Path(__file__).parent,
        report=report,
        command=command,
        headlines=[headline(report, backend) for backend in report.ran_on],
        facts=facts(report),
        verdict=verdict(report),
        notes=notes(report),
        sections=sections(report),
        tables={backend: tables(report, backend) for backend in report.ran_on},
    )


def rendered(folder: Path, **values: object) -> str:
    """The page of a folder's TEMPLATE, in the style of all pages."""
    environment = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),  # the second has the style
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = environment.get_template(TEMPLATE).render(values)
    return text.encode(errors="replace").decode()  # the name of a directory need not be text


@dataclass(frozen=True)
class Headline:
    """The fastest way of drafting on a backend, in a few words."""

    backend: str
    figure: str
    words: str


def headline(report: Report, backend: str) -> Headline:
    """Of what was measured, never of what is expected; drafting that does not pay is said to."""
    plain, *drafted = report.of(backend)
    if not drafted:
        return Headline(backend, f"{plain.tokens_per_s.median:,.1f}", "tokens/s, plain decoding; no drafts were asked for")
    best = max(drafted, key=lambda result: result.speedup.median)
    found = best.speedup
    repeats = "one repeat" if report.repeats == 1 else f"{report.repeats} repeats"
    words = f"with {drafts_in_words(best.draft_length)}, {found.minimum:.2f} to {found.maximum:.2f} in {repeats}; "
    words += f"{best.tokens_per_s.median:,.1f} tokens/s"
    if report.synthetic_acceptance is not None:
        words += f", at SYNTHETIC ACCEPTANCE {report.synthetic_acceptance:g}"
    if found.median <= 1:
        words += "; no way of drafting was faster than plain decoding"
    return Headline(backend, f"{found.median:.2f}×", words)


def facts(report: Report) -> dict[str, str]:
    """What every number of the page must be read with."""
    bundle, machine = report.bundle, report.machine
    return {
        "bundle": f"{bundle.name}, {bundle.recipe}, made by {bundle.made_by}",
        "CPU": f"{machine.cpu}, {machine.cores} cores",
        "threads": "as many as cores" if report.threads is None else str(report.threads),
        **report.ran_on,
        "work": f"{report.prompt_tokens:,} prompt tokens, {report.new_tokens:,} new ones; repeats in turns: {report.repeats}",
        "software": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        "date": report.date.replace("T", " "),
    }


def sections(report: Report) -> list[Section]:
    """The charts, those that have something to show."""
    backends = list(report.ran_on)
    drafted = [name for name in backends if any(result.acceptance_by_position for result in report.of(name))]
    kinds: list[tuple[str, str, Callable[[Report, str], Markup], list[str]]] = [
        (
            "Speed-up and acceptance",
            "Drafting pays above the line at 1. Curves are what the cost of single calls lets expect at any acceptance; "
            "points, and the band of auto, are what the repeats measured. Below its curve a point shows time that these calls "
            "do not account for.",
            charts.speedup,
            backends,
        ),
        (
            "What a verified row costs",
            "The flatter the line of the target's pass, the cheaper are more drafts: where each row costs 0.5, a pass has paid "
            "for itself once half of its rows bring a token.",
            charts.call_costs,
            backends,
        ),
        (
            "How many drafts are kept",
            "The share of the drafts at a position that the target accepted. A draft after a rejected one counts as rejected, "
            "so fixed lengths fall; auto has many drafts only where it trusts them.",
            charts.acceptance,
            drafted,
        ),
        (
            "Memory",
            f"The process had at most {size_in_words(report.peak_memory_bytes)} resident, all backends together. Bars are the "
            "bundle's files on disk and, the last one, what a sequence's KV cache takes once all its rows are written.",
            charts.sizes,
            backends,
        ),
        (
            "Prefill",
            "Longer bars take longer: single calls that write a prompt's rows into an empty cache, and the whole wait for the "
            "first token of this prompt.",
            charts.prefill,
            backends,
        ),
    ]
    return [
        Section(title, reading, tuple(chart(report, backend) for backend in shown))
        for title, reading, chart, shown in kinds
        if shown
    ]


def tables(report: Report, backend: str) -> list[Sheet]:
    """Every figure of one backend: the command's own tables, and what the other charts show."""
    own = [
        replace(sheet, columns=sheet.columns[1:], rows=tuple(row[1:] for row in sheet.rows if row[0] == backend))
        for sheet in sheets(report)
    ]
    return [*own, calls(report, backend), prefills(report, backend), memory(report, backend)]


def calls(report: Report, backend: str) -> Sheet:
    """Target passes and chains of drafts."""
    costs = report.of(backend)[0].costs
    timed = [
        ("decode" if count == 1 else f"verify\N{NO-BREAK SPACE}{count}", cost, count) for count, cost in costs.verify.items()
    ]
    timed += [(f"draft\N{NO-BREAK SPACE}{steps}", cost, steps) for steps, cost in costs.draft.items()]
    rows = []
    for what, cost, count in timed:
        ratio = cost.minimum_ms / costs.decode.minimum_ms
        rows.append((what, three(cost.median_ms), three(cost.minimum_ms), f"{ratio:.2f}", f"{ratio / count:.2f}"))
    return Sheet(
        f"target passes over so many rows and chains of so many drafts, behind {costs.context:,} rows, {costs.repeats} of each "
        "in turns; ratios are of the least times",
        ("call", "median, ms", "least, ms", "decode = 1", "each row or draft"),
        tuple(rows),
    )


def prefills(report: Report, backend: str) -> Sheet:
    """Prefill calls, and the first token."""
    rows = tuple(
        (what, three(ms), f"{1000 * tokens / ms:,.0f}" if tokens else "")
        for what, ms, tokens in charts.prefill_times(report, backend)
    )
    return Sheet("prefill into an empty cache, medians", ("what", "ms", "tokens/s"), rows)


def memory(report: Report, backend: str) -> Sheet:
    """Files and KV cache, to the byte."""
    rows = tuple((what, f"{count:,}") for what, count in charts.stored_bytes(report, backend))
    return Sheet(
        "memory",
        ("what", "bytes"),
        (*rows, ("resident at the peak, the whole process", f"{report.peak_memory_bytes:,}")),
    )
