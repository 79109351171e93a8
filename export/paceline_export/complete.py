"""A directory that is complete or absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import InputError
from paceline.partial import workshop


@contextmanager
def complete_or_nothing(out: Path) -> Iterator[Path]:
    """A temporary directory beside `out` that takes its name on success and is removed on any failure.

    Raises:
        InputError: `out` has been made by someone else meanwhile.
        OSError: see `workshop`.
    """
    with workshop(out) as folder:
        yield folder
        try:
            folder.rename(out)
        except OSError:
            if not out.exists():
                raise
            raise InputError(
                f"{out} was made by someone else meanwhile, and is left as it is; "
                "choose another output directory, or remove it first."
            ) from None
