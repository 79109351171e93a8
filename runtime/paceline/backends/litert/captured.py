"""LiteRT explains itself, and greets, on the process's stderr, and cannot be told not to."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def captured_stderr() -> Iterator[Callable[[], list[str]]]:
    """Keeps what is written to file descriptor 2 away from the user; yields a function that returns its errors so far."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)

        def errors() -> list[str]:
            file.seek(0)
            lines = file.read().decode(errors="replace").splitlines()
            return [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]

        try:
            yield errors
        finally:
            os.dup2(before, 2)
            os.close(before)
