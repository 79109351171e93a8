"""The JNI library for phones: how it is loaded, what it exports and needs, and that Kotlin and C++ mean the same functions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import arm64_sysroot
import elf
import pytest
import toolchain
from android_app import MAIN, App
from android_core import SOURCE, Core
from android_tools import tool_or_skip
from arm64_sysroot import CPUS, Arm64

NATIVE = MAIN / "kotlin" / "dev" / "paceline" / "core" / "Native.kt"
PAGE = 0x4000  # of newer phones; a library that is laid out for less is not loaded there


def test_the_library_is_laid_out_for_pages_of_16_kb(arm64_core: Core) -> None:
    alignments = elf.segment_alignments(arm64_core.folder / "libpaceline.so")
    assert alignments
    assert min(alignments) >= PAGE


def test_the_library_exports_what_kotlin_calls_and_nothing_else(arm64_core: Core) -> None:
    functions = elf.native_functions(NATIVE)
    assert functions
    assert elf.exported(arm64_core.folder / "libpaceline.so") == functions


def test_the_library_needs_what_a_phone_has(arm64_core: Core) -> None:
    """And nothing is left undefined, or it would not have been linked; Android has libc++ for libstdc++ and libgcc_s."""
    needed = elf.needed(arm64_core.folder / "libpaceline.so")
    assert needed <= {"libc.so.6", "libm.so.6", "libdl.so.2", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-aarch64.so.1"}


def test_kotlin_and_cpp_agree_on_every_argument(app: App) -> None:
    """The JVM checks no more of a native function than its name."""
    javap = [tool_or_skip(toolchain.command, "javap", "openjdk-17-jdk-headless"), "-s", "-p", "-cp", str(app.classes)]
    shown = subprocess.run([*javap, "dev.paceline.core.Native"], check=True, capture_output=True, text=True).stdout
    kotlin = dict(re.findall(r" native .*\b(\w+)\(.*\n\s+descriptor: (\S+)", shown))
    text = re.sub(r"\s+", " ", (SOURCE / "jni.cc").read_text())
    functions = re.findall(r"NATIVE\((\w+), (\w+)\) ?\(JNIEnv \*(?:env)?, jobject,?([^)]*)\)", text)
    cpp = {
        name: (result, [each.split()[0] for each in arguments.split(",") if each.strip()])
        for result, name, arguments in functions
    }
    assert {name: erased(descriptor) for name, descriptor in kotlin.items()} == cpp


def erased(descriptor: str) -> tuple[str, list[str]]:
    """A JVM descriptor's result and arguments as C++ has them."""
    plain = {"I": "jint", "J": "jlong", "F": "jfloat", "D": "jdouble", "Z": "jboolean", "B": "jbyte", "V": "void"}

    def name(kind: str) -> str:
        if kind[0] == "[":
            return f"{plain.get(kind[1:], 'jobject')}Array"
        return plain.get(kind, "jobject")

    kinds = [name(each) for each in re.findall(r"\[*(?:L[^;]+;|[A-Z])", descriptor)]
    return kinds[-1], kinds[:-1]


# Prints the CPU's features as the kernel hands them over, and as the file says that LiteRT reads.
PROGRAM = r"""
#include <sys/auxv.h>

#include <fstream>
#include <iostream>
#include <string>

int main() {
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  if (first >> 20 & 1) std::cout << " asimddp";
  if (first >> 22 & 1) std::cout << " sve";
  if (second >> 13 & 1) std::cout << " i8mm";
  std::cout << "\n";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("Features", 0) == 0) return std::cout << line << "\n", 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler, folder = tool_or_skip(arm64_sysroot.compiler), tmp_path_factory.mktemp("program")
    subprocess.run([compiler, "-x", "c++", "-", "-o", folder / "features"], input=PROGRAM, text=True, check=True)
    return folder / "features"


@pytest.mark.parametrize("cpu", CPUS)
def test_the_emulated_cpu_is_the_one_it_says(arm64: Callable[[str], Arm64], program: Path, cpu: str) -> None:
    done = arm64(cpu).run([program])
    assert done.returncode == 0, done.stderr
    real, said = (set(line.split()) for line in done.stdout.splitlines())
    assert real == said & {"asimddp", "sve", "i8mm"}
