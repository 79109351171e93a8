"""How outcomes of checks are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.checks import Check, Outcome
from paceline.cli.command import ExitCode

STYLES = {Outcome.OK: "green", Outcome.FAILED: "bold red", Outcome.SKIPPED: "dim"}


def show(found: Sequence[Check]) -> None:
    """A table, and what failed."""
    table = Table("check", "", "found")
    for check in found:
        table.add_row(check.name, f"[{STYLES[check.outcome]}]{check.outcome.value}", escape(check.detail))
    Console().print(table)
    failed = [check.name for check in found if check.outcome is Outcome.FAILED]
    bad = f"{len(failed)} of {len(found)} checks failed: {'; '.join(failed)}"
    print(bad if failed else "every check that could be made passed")


def to_json(found: Sequence[Check]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [{**vars(check), "outcome": check.outcome.value} for check in found]


def exit_code(found: Sequence[Check]) -> ExitCode:
    """Whether one failed."""
    return ExitCode.CHECK_FAILED if any(check.outcome is Outcome.FAILED for check in found) else ExitCode.SUCCESS
