"""Whether the machine can do an export, asked before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from paceline.errors import InputError
from paceline_export.weights import PIECE_BYTES

GB = 1e9
# Beside the weights: graphs, scales that a format repeats (at most 1/16 of int4), the tokenizer.
DISK_SHARE, DISK_BYTES = 1.08, 64 << 20
PIECES_HELD = 8  # a piece as it is read, as float32, its candidates and its integers


def require_room(out: Path, written_bytes: int, table_bytes: int) -> None:
    """Checks free disk space and memory.

    Args:
        out: the bundle to be; it and its parents need not exist.
        written_bytes: of weights, in all formats together.
        table_bytes: of the largest tensor that is held whole: a clustered head's table as float32.

    Raises:
        InputError: one of both will not do; the text has the numbers.
    """
    folder = next(parent for parent in out.absolute().parents if parent.is_dir())
    needed, free = int(DISK_SHARE * written_bytes) + DISK_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"{folder} has {free / GB:.2f} GB of free space and the bundle needs about {needed / GB:.2f} GB; "
            "make room, choose another directory with -o, or a recipe with fewer bits."
        )
    memory, available = PIECES_HELD * PIECE_BYTES + table_bytes, psutil.virtual_memory().available
    if available < memory:
        raise InputError(
            f"this machine has {available / GB:.2f} GB of memory available and the export needs about {memory / GB:.2f} GB; "
            "close other programs and try again."
        )
