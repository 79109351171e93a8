"""An evaluation in tables and sentences, whoever draws them."""

from __future__ import annotations

from paceline.bench_tables import Sheet
from paceline_export.evaluate.replay import Tally
from paceline_export.evaluate.report import LENGTHS, Report

DRAFTS = 3  # of the rounds that acceptance is told of by class


def sheets(report: Report) -> list[Sheet]:
    """For each way of writing, acceptance by class and the sweep of draft lengths."""
    return [sheet for name in report.ways for sheet in (acceptance(report, name), sweep(report, name))]


def acceptance(report: Report, name: str) -> Sheet:
    """Which drafts are kept, by class of prompt."""
    rows = []
    for result in report.written(name):
        first, free = result.drafter.first, result.drafter.free[DRAFTS]
        rows.append(
            (
                result.kind,
                str(result.prompts),
                _shares(first),
                f"{sum(first.by_position[:DRAFTS]):.2f}",
                _shares(free),
                f"{free.mean_accepted:.2f}",
                f"{result.lookup.free[DRAFTS].mean_accepted:.2f}",
                f"{result.distinct_4grams:.0%}",
            )
        )
    columns = ("prompts", "texts", "% in first round", "mean", "% in all rounds", "mean", "lookup", "distinct 4-grams")
    title = f"{name}: drafts kept at positions 1 2 {DRAFTS} of {DRAFTS}; one after a refused draft counts as refused"
    return Sheet(title, columns, tuple(rows))


def sweep(report: Report, name: str) -> Sheet:
    """Tokens of a round, and what they should bring, by draft length; over all prompts."""
    result, ratios = report.written(name)[0], report.ratios
    rows = [("0", "1.00", "1.00", *(("1.00", "", "1.00") if ratios else ()))]
    for length in LENGTHS:
        row = [str(length)]
        row += [f"{1 + proposer.free[length].mean_accepted:.2f}" for proposer in (result.drafter, result.lookup)]
        if ratios:
            costs = (ratios.verify[length], ratios.draft[length], result.drafter.speedup(length, ratios))
            row += [f"{cost:.2f}" for cost in costs]
        rows.append(tuple(row))
    columns = ("drafts", "tokens a round", "by lookup") + (("verify", "draft", "predicted speed-up") if ratios else ())
    return Sheet(f"{name}: draft lengths, {result.kind} prompts", columns, tuple(rows))


def notes(report: Report) -> list[str]:
    """Sentences without which the tables cannot be read."""
    found = [f"{name}: {words}" for name, words in report.what.items()]
    if report.ratios is None:
        found.append(
            "no predicted speed-up: checkpoints have no speed on a device; give a bundle, or --costs BUNDLE for its ratios"
        )
    else:
        found.append(f"verify and draft step, decode = 1: {report.ratios.where}")
        found.append("predicted speed-up: tokens a round over verify / decode + drafts x draft / decode")
    return found


def _shares(tally: Tally) -> str:
    return " ".join(f"{100 * share:.0f}" for share in tally.by_position[:DRAFTS])
