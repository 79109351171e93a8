"""A report's tables on a terminal, and the sentences below them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from paceline.bench_tables import Sheet


def show(sheets: Iterable[Sheet], notes: Iterable[str]) -> None:
    """Prints them."""
    console = Console()
    for sheet in sheets:
        table = Table(*sheet.columns, title=sheet.title)
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
    print("\n".join(notes))
