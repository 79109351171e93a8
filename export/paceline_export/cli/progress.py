"""Progress of an export for a person: stage, tensor, bytes, time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from paceline_export.bundle import Progress as Report

NAME_WIDTH = 44


@contextmanager
def export_progress(total_bytes: int) -> Iterator[Report]:
    """A bar on stderr; silent where stderr is not a terminal.

    Args:
        total_bytes: weights to write; hashing them is counted as the second half.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.fields[stage]:7}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[item]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("export", total=2 * total_bytes, stage="reading", item="")

        def report(stage: str, item: str, size: int) -> None:
            bar.update(task, advance=size, stage=stage, item=item[-NAME_WIDTH:])

        yield report
