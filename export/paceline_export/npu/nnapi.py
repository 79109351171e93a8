"""Whether NNAPI takes the operators of a .tflite file: a lint by table, since NNAPI itself is on phones only.

It can say that a file is refused. That a file is taken by a phone's driver it cannot: drivers may refuse what they like.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from paceline.errors import InputError, printable
from paceline_export.npu.nnapi_table import FEATURE_LEVELS, rules_of
from paceline_export.npu.operators import damaged, read_calls

PROMISED_LEVEL = 6  # the first one with BATCH_MATMUL


@dataclass(frozen=True)
class Finding:
    """A rule that an operator breaks.

    Attributes:
        graph: the signature, or else the subgraph, as the file names it.
        index: the operator's place in its subgraph.
        rule: what holds where it is kept.
        source: where that is written.
    """

    graph: str
    index: int
    operator: str
    rule: str
    source: str


@dataclass(frozen=True)
class Report:
    """What the lint found, in the file's order.

    Attributes:
        level: the feature level that was asked for.
        operators: how many were looked at.
        needed_level: the lowest feature level for every operator that any level takes.
    """

    level: int
    operators: int
    needed_level: int
    findings: tuple[Finding, ...]


def lint(file: Path, level: int = PROMISED_LEVEL) -> Report:
    """Holds every operator of every subgraph against what NNAPI's delegate and header ask for.

    Args:
        level: NNAPI's feature level, 1 to 8.

    Raises:
        InputError: there is no such level, or the file is not a whole .tflite file.
    """
    if level not in FEATURE_LEVELS:
        raise InputError(
            f"{level} is no NNAPI feature level; choose one from {FEATURE_LEVELS.start} to {FEATURE_LEVELS.stop - 1}."
        )
    calls, needed, findings = read_calls(file), FEATURE_LEVELS.start, list[Finding]()
    for call in calls:
        try:
            broken = [rule for rule in rules_of(call.operator) if rule.broken(call)]
        except ValueError as error:
            raise damaged(file, error) from None
        ends = [rule.until for rule in broken if rule.until is not None]
        if len(ends) == len(broken):
            needed = max([needed, *ends])
        for rule in broken:
            if rule.until is None or level < rule.until:
                findings.append(Finding(call.graph, call.index, call.operator, rule.sentence, rule.source))
    return Report(level, len(calls), needed, tuple(findings))


def lint_table(report: Report) -> Table:
    """The findings, those of one rule in one graph together."""
    table = Table("graph", "operator", "how many", "first", "must be so", "says", title=f"NNAPI feature level {report.level}")
    alike: dict[Finding, list[int]] = {}
    for each in report.findings:
        alike.setdefault(replace(each, index=0), []).append(each.index)
    for kind, places in alike.items():
        graph = Text(printable(kind.graph))  # a stranger's text, where brackets would be styles
        table.add_row(graph, kind.operator, str(len(places)), str(places[0]), kind.rule, kind.source)
    return table
