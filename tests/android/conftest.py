"""What the Android checks share: the app compiled against the framework's signatures, its resources, emulated CPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import app_resources
import arm64_sysroot
import kotlin
import pytest
import toolchain
from android_app import MAIN, PACKAGE, TEST, App
from android_core import PROGRAMS, UNITY, Core, built, shared_by_workers
from android_tools import tool_or_skip
from app_resources import Linked
from arm64_sysroot import CPUS, Arm64
from npu_models import exported
from small_pair import DRAFTER, TARGET
from toolchain import locked

from paceline.prompts import PROMPTS
from paceline_export.bundle import export
from paceline_export.recipes import RECIPES


@pytest.fixture(scope="session")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Linked:
    """The app's resources, linked."""
    return tool_or_skip(app_resources.link, MAIN, PACKAGE, tmp_path_factory.mktemp("resources"))


@pytest.fixture(scope="session")
def app(resources: Linked, tmp_path_factory: pytest.TempPathFactory) -> App:
    """The app with its tests, compiled once for all test workers."""
    root = shared_by_workers(tmp_path_factory) / "kotlin"
    sources = [*MAIN.rglob("*.kt"), *TEST.rglob("*.kt")]
    made = App(root / "classes", root / "android.jar", resources)
    complaints = root / "complaints.txt"
    with locked(root.with_suffix(".lock")):
        if not complaints.exists():
            root.mkdir(exist_ok=True)
            tool_or_skip(kotlin.android_jar, sources, made.android_jar)
            classpath = [made.android_jar, *tool_or_skip(kotlin.libraries)]
            done = tool_or_skip(kotlin.compile_kotlin, [*sources, resources.java], classpath, made.classes)
            complaints.write_text(done.stderr if done.returncode else "")
    assert not complaints.read_text(), complaints.read_text()
    return made


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    """The core and its programs for this machine."""
    return built(shared_by_workers(tmp_path_factory), "core", PROGRAMS)


@pytest.fixture(scope="session")
def int4_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained pair as a phone runs it; not to be changed."""
    out = tmp_path_factory.mktemp("bundles") / "int4"
    export(TARGET, DRAFTER, out, lambda *_: None, recipe=RECIPES["mixed-wi4c"])
    return out


@pytest.fixture(scope="session")
def npu_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained pair, with its graphs for a neural processor before any compiler; not to be changed."""
    return exported(TARGET, DRAFTER, tmp_path_factory.mktemp("bundles") / "npu", (256, 512), PROMPTS[:1])


@pytest.fixture(scope="session")
def arm64(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Arm64]:
    """Makes an emulated machine with a CPU: cortex-a53, cortex-a76 or max."""
    return lambda cpu: tool_or_skip(Arm64, CPUS[cpu], tmp_path_factory.mktemp(cpu))


@pytest.fixture(scope="session")
def arm64_litert() -> Path:
    """LiteRT's library for 64-bit ARM Linux."""
    return tool_or_skip(toolchain.litert_arm64)


@pytest.fixture(scope="session")
def arm64_core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    """The JNI library and the core for 64-bit ARM, built as for Android but on Linux's C library."""
    settings = tool_or_skip(arm64_sysroot.cmake_settings)
    return built(shared_by_workers(tmp_path_factory), "core-arm64", ["paceline", "continue_many"], UNITY, *settings)
