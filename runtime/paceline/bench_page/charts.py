"""The charts of a benchmark's page: each is of one backend, drawn to the scale that all backends share."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from paceline.bench import named
from paceline.bench_page.svg import COLOURS, drawn
from paceline.bench_report import Report, Result, Spread
from paceline.costs import Costs
from paceline.speedup import at_rate, expected_speedup

RATES = [step / 50 for step in range(51)]
# Draft length -> marker and dashes, so that nobody needs the colours; None is adaptive.
MARKERS = {1: "o", 2: "v", 3: "s", 4: "P", 5: "D", 6: "X", 7: "^", None: "*"}
DASHES: dict[int | None, Any] = {
    1: "solid",
    2: (0, (1, 1)),
    3: (0, (6, 2)),
    4: (0, (6, 2, 1, 2)),
    5: (0, (3, 1.5)),
    6: (0, (9, 2, 2, 2, 2, 2)),
    7: (0, (1.5, 1.5)),
    None: (0, (4, 2, 1, 2)),
}
LEGEND: dict[str, Any] = {"legend": "drafts a round", "columns": 4}
PARTS = {
    "target": "target",
    "drafter": "drafter",
    "embedder": "token table",
    "per_layer_embedder": "table of per-layer embeddings",
}


def speedup(report: Report, backend: str) -> Markup:
    """Measured speed-ups, and what is expected at any acceptance; see `expected_curve`."""
    results, top = report.of(backend), 1.05 * max(_speedups(report))
    costs, measured = results[0].costs, {result.draft_length: result for result in results}

    def draw(axes: Axes) -> None:
        axes.axhspan(0, 1, color=COLOURS["shade"], linewidth=0)
        axes.axhline(1, color=COLOURS["ink"], linewidth=1.4)
        axes.text(0.0, 1.02, " plain decoding = 1", color=COLOURS["ink"], va="bottom")
        for length in costs.draft:
            axes.plot(RATES, expected_curve(costs, length), color=_colour(length), linestyle=DASHES[length])
        for result in results:
            if result.draft_length and result.acceptance_rate is not None:
                _point(axes, result.draft_length, result.acceptance_rate, result.speedup)
        for length in costs.draft:
            axes.plot([], [], label=named(length), **_line(length, marked=length in measured))
        if None in measured:
            _level(axes, measured[None])
        axes.set(xlim=(0, 1), ylim=(0, top), xlabel="acceptance, the chance of each further draft")

    title = _title(report, backend, "speed-up over plain decoding")
    return drawn(f"speedup-{backend}", title, _said(results), draw, height=4.2, **LEGEND)


def expected_curve(costs: Costs, draft_length: int) -> list[float]:
    """The expected speed-up of a fixed draft length at each of RATES."""
    return [expected(costs, draft_length, rate) for rate in RATES]


def expected(costs: Costs, draft_length: int, rate: float) -> float:
    """The expected speed-up at a constant rate of acceptance, by what calls cost."""
    ratios = costs.verify_ratio(draft_length), costs.draft_ratio(draft_length)
    return expected_speedup(at_rate(rate, draft_length), draft_length, *ratios)


def call_costs(report: Report, backend: str) -> Markup:
    """A target pass by its rows, each of these rows, and the drafter's chain, as multiples of decode."""
    costs = report.of(backend)[0].costs
    passes = _multiples(costs)
    rows = {count: ratio / count for count, ratio in passes.items()}
    chains = {steps + 1: cost.minimum_ms / costs.decode.minimum_ms for steps, cost in costs.draft.items()}
    top = 1.12 * max(max(_multiples(result.costs).values()) for result in report.results)

    def draw(axes: Axes) -> None:
        series = (
            (passes, 1, "target pass over so many rows"),
            (rows, 3, "the same, for each of its rows"),
            (chains, 7, "the drafts for that pass, one fewer than rows"),
        )
        for values, look, label in series:
            axes.plot(list(values), list(values.values()), label=label, **_line(look))
        for count, ratio in list(passes.items())[1:]:
            axes.annotate(f"{ratio:.2f}", (count, ratio), (0, 7), textcoords="offset points", ha="center")
        axes.set(xlim=(0.6, 8.4), ylim=(0, top), xticks=list(passes), xlabel="rows of the pass")

    said = "; ".join(f"{count} rows cost {ratio:.2f}, a row {ratio / count:.2f}" for count, ratio in passes.items())
    said += "".join(f"; {count - 1} drafts cost {ratio:.2f}" for count, ratio in chains.items())
    return drawn(f"calls-{backend}", f"{backend}: cost of a call, decode = 1", said, draw, height=4.2)


def acceptance(report: Report, backend: str) -> Markup:
    """The share of drafts accepted at each position, by draft length."""
    drafted = [result for result in report.of(backend) if result.acceptance_by_position]

    def draw(axes: Axes) -> None:
        for result in drafted:
            shares = [100 * share for share in result.acceptance_by_position]
            positions, look = range(1, len(shares) + 1), _line(result.draft_length)
            axes.plot(positions, shares, label=named(result.draft_length), clip_on=False, **look)
        axes.set(xlim=(0.7, 7.3), ylim=(0, 100), xticks=range(1, 8), xlabel="position of the draft in its round")

    said = "; ".join(
        f"{drafts_in_words(result.draft_length)}: "
        + ", ".join(f"{100 * share:.0f} %" for share in result.acceptance_by_position)
        for result in drafted
    )
    return drawn(f"acceptance-{backend}", _title(report, backend, "% of drafts accepted"), said, draw, height=4.0, **LEGEND)


def sizes(report: Report, backend: str) -> Markup:
    """The bundle's files, and the KV cache of one sequence."""
    most = max(count for name in report.ran_on for _, count in stored_bytes(report, name))
    rows = [(what, float(count), size_in_words(count)) for what, count in stored_bytes(report, backend)]
    return _bars(f"sizes-{backend}", f"{backend}: files and KV cache", rows, most)


def stored_bytes(report: Report, backend: str) -> list[tuple[str, int]]:
    """What a backend loads or allocates, and its bytes."""
    parts = report.bundle.part_bytes[backend]
    return [
        *((words, parts[part]) for part, words in PARTS.items() if part in parts),
        ("tokenizer and other files", report.bundle.other_bytes),
        (f"KV cache of {report.capacity:,} rows", report.kv_cache_bytes),
    ]


def prefill(report: Report, backend: str) -> Markup:
    """Prefill calls by their tokens, and the time to the first token."""
    most = max(ms for name in report.ran_on for _, ms, _ in prefill_times(report, name))
    rows = []
    for what, ms, tokens in prefill_times(report, backend):
        rate = f", {1000 * tokens / ms:,.0f} tokens/s" if tokens else ""
        rows.append((what, ms, f"{time_in_words(ms)}{rate}"))
    return _bars(f"prefill-{backend}", f"{backend}: prefill", rows, most)


def prefill_times(report: Report, backend: str) -> list[tuple[str, float, int | None]]:
    """What is timed, its milliseconds, and the tokens that it fills in; medians, which are what a user gets."""
    first = (f"first token after a prompt of {report.prompt_tokens:,}", report.of(backend)[0].first_token_ms.median, None)
    if backend not in report.prefill_costs:
        return [first]
    calls = report.prefill_costs[backend].prefill
    return [*((f"call of {tokens} tokens", cost.median_ms, tokens) for tokens, cost in calls.items()), first]


def drafts_in_words(draft_length: int | None) -> str:
    """A way of drafting."""
    return "auto" if draft_length is None else f"{draft_length} draft{'s' if draft_length > 1 else ''} a round"


def size_in_words(count: int) -> str:
    """Bytes with three digits and a unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{three(count / scale)} {unit}"
    return f"{count} bytes"


def time_in_words(ms: float) -> str:
    """Milliseconds, or seconds where there are a thousand of them."""
    return f"{three(ms)} ms" if ms < 1000 else f"{three(ms / 1000)} s"


def three(value: float) -> str:
    """Three digits, or all those before the point."""
    return f"{value:,.{max(0, 2 - floor(log10(value)))}f}" if value > 0 else "0"


def _bars(name: str, title: str, rows: Sequence[tuple[str, float, str]], most: float) -> Markup:
    """Each bar under its own words, because a phone has no room beside it; `most` is the longest bar of all backends."""

    def draw(axes: Axes) -> None:
        for place, (what, value, words) in enumerate(rows):
            axes.barh(place, value, height=0.3, color=COLOURS["k1"])
            axes.text(0, place - 0.24, f"{what}: {words}", va="bottom")
        axes.set(xlim=(0, most), ylim=(len(rows) - 0.8, -0.8))
        axes.set_axis_off()

    said = "; ".join(f"{what}: {words}" for what, _, words in rows)
    return drawn(name, title, said, draw, height=0.4 + 0.5 * len(rows))


def _speedups(report: Report) -> list[float]:
    """All that a chart of speed-ups must have room for, those at full acceptance included."""
    expected = [expected_curve(result.costs, length)[-1] for result in report.results for length in result.costs.draft]
    return [1.0, *expected, *(result.speedup.maximum for result in report.results)]


def _point(axes: Axes, length: int, rate: float, found: Spread) -> None:
    """A measured way: the median, and a line over what the repeats lay between."""
    axes.vlines(rate, found.minimum, found.maximum, color=_colour(length), linewidth=1.2, zorder=3)
    axes.plot(rate, found.median, zorder=4, clip_on=False, **_marker(length))


def _level(axes: Axes, result: Result) -> None:
    """The adaptive way, whose acceptance is of rounds of many lengths: a line across, named beside the chart."""
    found = result.speedup
    axes.axhspan(found.minimum, found.maximum, color=COLOURS["ink"], alpha=0.1, linewidth=0)
    axes.axhline(found.median, color=COLOURS["ink"], linestyle=DASHES[None])
    axes.annotate(f"auto\n{found.median:.2f}", (1, found.median), (4, 0), textcoords="offset points", va="center")


def _line(draft_length: int | None, *, marked: bool = True) -> dict[str, Any]:
    look = {"color": _colour(draft_length), "linestyle": DASHES[draft_length]}
    return look | _marker(draft_length) if marked else look


def _marker(draft_length: int | None) -> dict[str, Any]:
    marker = MARKERS[draft_length]
    size = {"*": 12, "P": 10, "X": 10}.get(marker, 8)  # these fill little of their square
    look = {"color": _colour(draft_length), "marker": marker, "markersize": size}
    return look | {"markeredgecolor": COLOURS["paper"], "markeredgewidth": 1}


def _colour(draft_length: int | None) -> str:
    return COLOURS["ink"] if draft_length is None else COLOURS[f"k{draft_length}"]


def _multiples(costs: Costs) -> dict[int, float]:
    return {rows: costs.verify_ratio(rows - 1) for rows in costs.verify}


def _title(report: Report, backend: str, what: str) -> str:
    """With the warning, because a chart is soon shown without its page."""
    synthetic = report.synthetic_acceptance
    return f"{backend}: {what}" + ("" if synthetic is None else f"\nSYNTHETIC ACCEPTANCE {synthetic:g}")


def _said(results: Sequence[Result]) -> str:
    """Every measured speed-up, in words."""
    return "; ".join(
        f"{drafts_in_words(result.draft_length)}: {result.speedup.median:.2f} times plain decoding"
        + ("" if result.acceptance_rate is None else f" at acceptance {result.acceptance_rate:.2f}")
        for result in results
        if result.draft_length != 0
    )
