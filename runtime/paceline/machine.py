"""The machine that a measurement was made on, and the memory that it took."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")  # Linux only; on ARM it may name no model


@dataclass(frozen=True)
class Machine:
    """What a number must be read with.

    Attributes:
        cpu: the processor's name, as far as the system tells it.
        cores: logical ones.
    """

    cpu: str
    cores: int

    @classmethod
    def here(cls) -> Machine:
        """This machine."""
        text = CPU_INFO.read_text(encoding="utf-8", errors="replace") if CPU_INFO.is_file() else ""
        return cls(cpu_name(text) or platform.processor() or platform.machine(), os.cpu_count() or 1)


def cpu_name(cpu_info: str) -> str | None:
    """The first model name in the text of /proc/cpuinfo; None where it has none."""
    for line in cpu_info.splitlines():
        field, _, value = line.partition(":")
        if field.strip() == "model name":
            return value.strip()
    return None


def peak_memory_bytes() -> int:
    """The most memory that this process has ever had resident, files that it maps included."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts in bytes, Linux in KiB
