"""The machine that a measurement was made on, and the memory that it took."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")  # Linux only; on ARM it may name no model
# Of x86 and of ARM: what decides how fast small integers are multiplied.
FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm", "sve", "sme")
PACKAGES = ("ai-edge-litert", "onnxruntime", "numpy", "tokenizers")


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
        return cls(cpu_name(_cpu_info()) or platform.processor() or platform.machine(), os.cpu_count() or 1)


def cpu_name(cpu_info: str) -> str | None:
    """The first model name in the text of /proc/cpuinfo; None where it has none."""
    for line in cpu_info.splitlines():
        field, _, value = line.partition(":")
        if field.strip() == "model name":
            return value.strip()
    return None


def facts() -> dict[str, str]:
    """What a report of a problem should say of the machine."""
    import psutil

    here, memory = Machine.here(), psutil.virtual_memory()
    return {
        "CPU": here.cpu,
        "features": " ".join(cpu_features(_cpu_info())) or "not known on this system",
        "cores": f"{usable_cores()} of {here.cores} may be used",
        "memory": f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB available",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {version}" for name, version in _package_versions().items()),
    }


def versions() -> dict[str, str]:
    """Of the system, Python, paceline and what runs its graphs."""
    return {platform.system(): platform.release(), "Python": platform.python_version()} | _package_versions()


def cpu_features(cpu_info: str) -> list[str]:
    """Those of FEATURES that the text of /proc/cpuinfo names."""
    words = {word for line in cpu_info.splitlines() if line.startswith(("flags", "Features")) for word in line.split()}
    return [name for name in FEATURES if name in words]


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _cpu_info() -> str:
    return CPU_INFO.read_text(encoding="utf-8", errors="replace") if CPU_INFO.is_file() else ""


def _package_versions() -> dict[str, str]:
    return {name: _version(name) for name in ("paceline", *PACKAGES)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def peak_memory_bytes() -> int:
    """The most memory that this process has ever had resident, files that it maps included."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts in bytes, Linux in KiB
