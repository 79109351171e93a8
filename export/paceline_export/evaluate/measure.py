"""Runs an evaluation, whatever the pair comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.costs import measure_costs
from paceline.errors import InputError
from paceline.model import Model
from paceline.stats import distinct_4grams
from paceline_export.evaluate.report import LENGTHS, Ratios, Report, results
from paceline_export.evaluate.traces import Source, Tell, Texts, encoded

CONTEXT, REPEATS = 256, 30  # rows that timed calls see, and how often each is made


def measure(
    source: Source,
    classes: Mapping[str, Sequence[str]],
    ways: Sequence[Texts],
    what: Mapping[str, str],
    ratios: Ratios | None,
    tell: Tell,
) -> Report:
    """Replays rounds on texts of all prompts, written in each of some ways.

    Args:
        classes: class -> prompts.
        what: see `Report`.

    Raises:
        InputError: a prompt has no tokens, or none of the texts has room for a round.
    """
    prompts, found = encoded(source, classes), []
    for texts in ways:
        traces = source.traces(prompts, texts, tell)
        if not any(trace.prompt < trace.end for trace in traces):
            raise InputError("no text has room for a draft: each ends with its first token; give other prompts.")
        found += results(texts.name, traces, [distinct_4grams(trace.text) for trace in traces])
    return Report(what, found, ratios)


def measured_ratios(model: Model) -> Ratios:
    """Times a bundle's calls on this device. Raises CapacityError as `measure_costs`."""
    context = max(1, min(CONTEXT, model.capacity - len(LENGTHS) - 1))
    costs = measure_costs(model, context, [length + 1 for length in LENGTHS], repeats=REPEATS)
    return Ratios(
        f"{model.bundle.folder.name} on {model.backend.name}, behind {context} rows, least of {REPEATS} calls in turns",
        {length: round(costs.verify_ratio(length), 4) for length in LENGTHS},
        {length: round(costs.draft_ratio(length), 4) for length in LENGTHS},
    )
