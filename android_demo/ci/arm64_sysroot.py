"""Runs programs of 64-bit ARM Linux in user-mode emulation, on a CPU of one's choice.

XNNPACK chooses its kernels by what /proc/cpuinfo and /sys/devices/system/cpu say and ends at once where these are another
architecture's, so the emulated program is given files that fit the emulated CPU.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import toolchain

LIBRARIES = "/usr/aarch64-linux-gnu/lib"
CORES = 2


@dataclass(frozen=True)
class Cpu:
    """A CPU as qemu names it, and as Linux would describe it."""

    model: str
    part: int  # ARM's number of the core
    features: str

    def cpuinfo(self) -> str:
        """The text of /proc/cpuinfo."""
        lines = ["BogoMIPS\t: 50.00", f"Features\t: {self.features}", "CPU implementer\t: 0x41", "CPU architecture: 8"]
        lines += ["CPU variant\t: 0x0", f"CPU part\t: {self.part:#x}", "CPU revision\t: 1"]
        return "".join("\n".join([f"processor\t: {i}", *lines, "", ""]) for i in range(CORES))


V8_0 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
V8_2 = f"{V8_0} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"
CPUS = {
    "cortex-a53": Cpu("cortex-a53", 0xD03, V8_0),  # plain NEON
    "cortex-a76": Cpu("cortex-a76", 0xD0B, V8_2),  # with dot products
    # With int8 matrix products. Not bare `max`: with SME on, LiteRT's results under qemu 7.2 are wrong.
    "max": Cpu("max,sme=off", 0xD46, f"{V8_2} jscvt fcma sha3 sha512 sve sve2 i8mm svei8mm bf16 svebf16 flagm frint ssbs"),
}


def compiler() -> str:
    """The C++ compiler for these machines."""
    return toolchain.command("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")


def cmake_settings() -> list[str]:
    """Makes CMake build for these machines as it would for Android, but with this system's C library and the JDK's jni.h."""
    java = Path(toolchain.command("javac", "openjdk-17-jdk-headless")).resolve().parents[1] / "include"
    return [
        *("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", "-DANDROID=ON"),
        *(f"-DCMAKE_CXX_COMPILER={compiler()}", f"-DCMAKE_CXX_FLAGS=-isystem {java} -isystem {java / 'linux'}"),
    ]


class Arm64:
    """An emulated machine with one model of CPU."""

    def __init__(self, cpu: Cpu, root: Path):
        self.root = root
        self._cpu = cpu
        self._qemu = toolchain.command("qemu-aarch64-static", "qemu-user-static")
        libraries = toolchain.system_file(LIBRARIES, "libc6-arm64-cross")
        (root / "lib").symlink_to(libraries)
        self._write("proc/cpuinfo", cpu.cpuinfo())
        for name in ("possible", "present", "online"):
            self._write(f"sys/devices/system/cpu/{name}", f"0-{CORES - 1}\n")
        self._write("sys/devices/system/cpu/kernel_max", f"{CORES - 1}\n")
        for i in range(CORES):
            folder = f"sys/devices/system/cpu/cpu{i}"
            self._write(f"{folder}/cpufreq/cpuinfo_max_freq", "2000000\n")
            self._write(f"{folder}/cpufreq/cpuinfo_min_freq", "500000\n")
            self._write(f"{folder}/topology/physical_package_id", "0\n")
            self._write(f"{folder}/topology/core_id", f"{i}\n")
            self._write(f"{folder}/topology/core_siblings_list", f"0-{CORES - 1}\n")
            self._write(f"{folder}/topology/thread_siblings_list", f"{i}\n")

    def _write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(self, command: Sequence[str | Path], *, stdin: str = "", timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Runs a program; paths that the emulated machine lacks are this one's own."""
        return subprocess.run(
            [self._qemu, "-cpu", self._cpu.model, "-L", str(self.root), *map(str, command)],
            check=False,
            capture_output=True,
            text=True,
            input=stdin,
            timeout=timeout,
        )
