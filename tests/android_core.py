"""The core and its programs, built by CMake once for all test workers, and what they run on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest
import toolchain
from android_tools import tool_or_skip
from toolchain import locked

import paceline
from paceline.sampling import GREEDY

ANDROID = Path(__file__).parents[1] / "android_demo"
SOURCE = ANDROID / "app" / "src" / "main" / "cpp"  # the JNI library, which brings the core along
LIBRARY = Path(str(distribution("ai-edge-litert").locate_file("ai_edge_litert/libLiteRt.so")))


UNITY = "-DCMAKE_UNITY_BUILD=ON"  # fewer and larger files, which compile in half of the time
CPU, NPU_ON_CPU = 1, 8  # of paceline_backend
PROGRAMS = ("paceline-run", "c_api_test", "continue_many")


@dataclass(frozen=True)
class Request:
    """Tokens to continue; a draft length of None is adaptive."""

    prompt: list[int]
    draft_length: int | None
    new_tokens: int
    sampling: paceline.Sampling = GREEDY

    def line(self) -> str:
        """As core/tests/continue_many.cc reads it."""
        s = self.sampling
        settings = (s.temperature, s.top_k or 0, 1.0 if s.top_p is None else s.top_p, s.min_p or 0.0, s.seed or 0)
        draft_length = -1 if self.draft_length is None else self.draft_length
        return " ".join(map(str, (draft_length, self.new_tokens, *settings, len(self.prompt), *self.prompt))) + "\n"


@dataclass(frozen=True)
class Core:
    """A build directory."""

    folder: Path

    def program(self, name: str) -> Path:
        return self.folder / "core" / name

    def run(self, name: str, *arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        command = [str(self.program(name)), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)  # type: ignore[call-overload, no-any-return]

    def continue_many(
        self, bundle: Path, cache: Path | str, requests: Sequence[Request], places: Sequence[int] = ()
    ) -> list[list[int]]:
        """Continues all prompts with one model; `places` are where target and drafter run, of CPU and NPU_ON_CPU."""
        lines = "".join(request.line() for request in requests)
        done = self.run("continue_many", bundle, LIBRARY, cache, *map(str, places), input=lines)
        assert done.returncode == 0, done.stderr
        return [list(map(int, line.split())) for line in done.stdout.splitlines()]


def built(root: Path, name: str, targets: Sequence[str], *settings: str) -> Core:
    """Builds targets into a directory below `root`; whoever comes second finds them there."""
    for tool in ("cmake", "g++"):
        tool_or_skip(toolchain.command, tool, tool)
    folder = root / name
    with locked(root / f"{name}.lock"):
        if not folder.is_dir():
            run(["cmake", "-S", SOURCE, "-B", folder, f"-DJAVA_HOME={java_home()}", *settings])
        run(["cmake", "--build", folder, "--parallel", "2", "--target", *targets])
    return Core(folder)


def java_home() -> Path:
    """Of the `java` that would run; CMake looks for jni.h there, and without one builds no JNI library."""
    java = shutil.which("java")
    return Path(java).resolve().parents[1] if java else Path("/")


def shared_by_workers(factory: pytest.TempPathFactory) -> Path:
    """A directory of this session's that all test workers see."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def run(command: Sequence[str | Path]) -> None:
    """Runs a tool; its output is the failure's text."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
