"""Ends a foreign program that does not end by itself: it runs as Python, so every line of it can look at clock and memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from types import FrameType
from typing import Any, TypeVar

from paceline.machine import peak_memory_bytes

SECONDS, BYTES = 5.0, 1 << 30  # a template that is meant well takes milliseconds and megabytes
UNWATCHED_S = 0.1  # so long nobody asks for the memory, which takes longer than looking at the clock
Result = TypeVar("Result")


class ExceededError(Exception):
    """The program takes more than it may."""


def bounded(program: Callable[[], Result], seconds: float = SECONDS, most_bytes: int = BYTES) -> Result:
    """What the program returns.

    Between two lines of Python nothing looks: one operation that takes for ever, or all memory, is not ended.

    Raises:
        ExceededError: it ran for longer than `seconds`, or the process grew by more than `most_bytes`.
    """
    begin, most = perf_counter(), peak_memory_bytes() + most_bytes

    def look(_frame: FrameType, _event: str, _argument: Any) -> Any:
        taken = perf_counter() - begin
        if taken > seconds:
            raise ExceededError(f"it does not end within {seconds:g} s")
        if taken > UNWATCHED_S and peak_memory_bytes() > most:
            raise ExceededError(f"it takes more than {most_bytes / 1e9:.1f} GB of memory")
        return look

    before = sys.gettrace()  # of a debugger
    sys.settrace(look)
    try:
        return program()
    finally:
        sys.settrace(before)
