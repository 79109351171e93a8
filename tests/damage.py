"""Damage that a file can take without showing it."""

from __future__ import annotations

import os
from pathlib import Path


def alter(file: Path) -> None:
    """Changes one bit in the middle; size and time of change stay as they were."""
    status = file.stat()
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
