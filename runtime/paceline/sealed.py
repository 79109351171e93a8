"""Files of the cache directory that foreign code takes as they are, without asking who wrote them.

A seal beside such a file holds what the file system said of it when it was complete. A file that does not fit its seal is
built again.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from paceline.bundle import file_state
from paceline.partial import remove_abandoned, write_whole
from paceline.reading import read_json


def is_sealed(file: Path) -> bool:
    """Whether the file is the one that was completed, and nobody touched it since."""
    try:
        return bool(_read_seal(file).get("state") == file_state(file))
    except OSError:  # it is not there
        return False


def complete(partial: Path, file: Path, source: Path) -> None:
    """Gives a complete file its name and seal; where that fails, it is only built again.

    Args:
        source: what it was made of.
    """
    with suppress(OSError):
        partial.replace(file)
        shown = os.fsencode(source).decode(errors="replace")  # a path need not be text
        write_whole(seal_of(file), json.dumps({"source": shown, "state": file_state(file)}))


def remove_stale(folder: Path, pattern: str, source: Path) -> None:
    """Removes files that were made of `source`, which are damaged or of an older one, and those whose source is gone.

    Raises:
        OSError: the folder cannot be written.
    """
    remove_abandoned(folder)
    for file in folder.glob(pattern):
        made_of = Path(str(_read_seal(file).get("source", source)))
        if made_of == source or not _exists(made_of):
            seal_of(file).unlink(missing_ok=True)
            file.unlink(missing_ok=True)


def seal_of(file: Path) -> Path:
    """Where the seal of a file lies."""
    return file.with_suffix(".json")


@cache
def hint(text: str) -> None:
    """Says once that something cannot be kept."""
    logging.getLogger("paceline").warning(text)


def _read_seal(file: Path) -> dict[str, Any]:
    """Empty where there is none that can be read."""
    try:
        seal = read_json(seal_of(file))
    except (OSError, ValueError):
        return {}
    return seal if isinstance(seal, dict) else {}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # of a name that no file can have
        return False
