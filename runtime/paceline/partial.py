"""Files and directories under construction: they have another name until they are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path


def partial_name(path: Path) -> Path:
    """Where this process builds `path`, in the same directory, so that a rename completes it."""
    return path.parent / f".{path.name}.partial-{os.getpid()}"


def write_whole(file: Path, text: str) -> None:
    """Writes or replaces a file, complete or not at all."""
    unfinished = partial_name(file)
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def workshop(out: Path) -> Iterator[Path]:
    """A directory beside `out` to build it in; it is gone afterwards, unless it has become `out` itself."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = partial_name(out)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Removes what processes left in a folder that were killed while they built `name`, or anything when None."""
    for leftover in folder.glob(f".{'*' if name is None else escape(name)}.partial-*"):
        if _abandoned(leftover.name.rpartition("-")[2]):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()


def _abandoned(pid: str) -> bool:
    """Whether the process with this id is gone. One with our own id was: a container gives the same ids again."""
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(pid) == os.getpid()
