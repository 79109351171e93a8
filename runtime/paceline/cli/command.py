"""What a subcommand is, and the exit codes that all of them share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell gets to see."""

    SUCCESS = 0
    CHECK_FAILED = 1
    REFUSED = 2  # the input is not one we can use; nothing was written
    FAILED = 3


@dataclass(frozen=True)
class Command:
    """One subcommand; an entry point of group `paceline.commands` names an instance."""

    summary: str
    examples: str  # lines to copy
    configure: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], ExitCode]
