"""Files and directories under construction: they have another name until they are complete."""

from __future__ import annotations

import os
import shutil
from glob import escape
from pathlib import Path


def partial_name(path: Path) -> Path:
    """Where this process builds `path`, in the same directory, so that a rename completes it."""
    return path.parent / f".{path.name}.partial-{os.getpid()}"


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
