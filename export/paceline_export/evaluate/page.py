"""An evaluation as one HTML page that stands alone: two kinds of charts, and every figure in tables; needs paceline[report]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from paceline.bench_page.charts import DASHES, MARKERS
from paceline.bench_page.page import Section, rendered
from paceline.bench_page.svg import COLOURS, drawn
from paceline_export.evaluate.report import LENGTHS, Proposer, Ratios, Report
from paceline_export.evaluate.tables import notes, sheets

LOOKUP = "by lookup"
Lines = Mapping[str, Sequence[float]]


def page(report: Report, command: Sequence[str]) -> str:
    """The whole file, which loads nothing.

    Args:
        command: what makes such a report again, in words that a shell takes.
    """
    return rendered(
        Path(__file__).parent,
        report=report,
        command=command,
        headlines=[report.written(name)[0] for name in report.ways],
        sections=sections(report),
        sheets=sheets(report),
        notes=notes(report),
    )


def sections(report: Report) -> list[Section]:
    """The charts, one of each kind for each way of writing."""
    names = report.ways
    kept = Section(
        "How many drafts are kept",
        "The share of rounds that keep the draft at a position, by class of prompt, in the first round after the prompt, where "
        "the model's own loops flatter nobody. A draft after a refused one counts as refused.",
        tuple(_positions(report, index, name) for index, name in enumerate(names)),
    )
    title, reading = "What a round brings", "Tokens of a round, the target's own included, by drafts a round, in all rounds."
    if report.ratios:
        title = "Predicted speed-up"
        reading = "Tokens of a round over its cost, by drafts a round, plain decoding = 1; calls cost what was measured here."
    return [kept, Section(title, reading, tuple(_lengths(report, index, name) for index, name in enumerate(names)))]


def _positions(report: Report, index: int, name: str) -> Markup:
    own = report.written(name)
    lines = {result.kind: [100 * share for share in result.drafter.first.by_position] for result in own}
    lines[LOOKUP] = [100 * share for share in own[0].lookup.first.by_position]
    return _chart(f"positions-{index}", f"{name}: % of drafts kept", lines, "position of the draft", top=100)


def _lengths(report: Report, index: int, name: str) -> Markup:
    own, ratios = report.written(name), report.ratios
    lines = {result.kind: _values(result.drafter, ratios, drafting=True) for result in own}
    lines[LOOKUP] = _values(own[0].lookup, ratios, drafting=False)
    what = "predicted speed-up" if ratios else "tokens a round"
    return _chart(f"lengths-{index}", f"{name}: {what}", lines, "drafts a round")


def _values(proposer: Proposer, ratios: Ratios | None, *, drafting: bool) -> list[float]:
    if ratios is None:
        return [1 + proposer.free[length].mean_accepted for length in LENGTHS]
    return [proposer.speedup(length, ratios, drafting) for length in LENGTHS]


def _chart(name: str, title: str, lines: Lines, label: str, top: float | None = None) -> Markup:
    highest = top or 1.08 * max(1.0, *(max(values) for values in lines.values()))

    def draw(axes: Axes) -> None:
        if top is None:
            axes.axhline(1, color=COLOURS["ink"], linewidth=1.4)
        for look, (kind, values) in enumerate(lines.items(), 1):
            axes.plot(LENGTHS, values, label=kind, clip_on=False, **_look(look))
        axes.set(xlim=(0.7, 7.3), ylim=(0, highest), xticks=LENGTHS, xlabel=label)

    said = "; ".join(f"{kind}: " + ", ".join(f"{value:.3g}" for value in values) for kind, values in lines.items())
    return drawn(name, title, said, draw, height=4.0, legend="prompts", columns=3)


def _look(index: int) -> dict[str, Any]:
    key = 1 + (index - 1) % 7
    marker = {"marker": MARKERS[key], "markersize": 8, "markeredgecolor": COLOURS["paper"], "markeredgewidth": 1}
    return {"color": COLOURS[f"k{key}"], "linestyle": DASHES[key]} | marker
