"""The app compiles against API 36, and its tests run on a desktop JVM with the real core and LiteRT."""

from __future__ import annotations

import re
from pathlib import Path

import kotlin
import pytest
from android_app import MAIN, TEST, App
from android_core import LIBRARY, built, shared_by_workers

TESTS = sorted(file for file in TEST.rglob("*.kt") if "@Test" in file.read_text())


@pytest.fixture(scope="session")
def properties(int4_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the Kotlin tests are told: where a bundle, the JNI library and LiteRT are."""
    jni = built(shared_by_workers(tmp_path_factory), "core", ["paceline"]).folder / "libpaceline.so"
    return {"paceline.bundle": int4_bundle, "paceline.jni": jni, "paceline.litert": LIBRARY}


@pytest.mark.parametrize("source", TESTS, ids=lambda source: source.stem)
def test_kotlin(app: App, properties: dict[str, Path], source: Path) -> None:
    name = ".".join(source.relative_to(TEST / "kotlin").with_suffix("").parts)
    done = kotlin.run_tests(name, app.classpath, properties)
    count = len(re.findall(r"^\s*@Test\b", source.read_text(), re.MULTILINE))
    assert re.search(rf"^OK \({count} tests?\)$", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_there_are_kotlin_tests() -> None:
    assert TESTS


def test_wrong_uses_of_the_framework_do_not_compile(app: App, tmp_path: Path) -> None:
    """That the generated framework refuses is what makes its consent worth something."""
    source = next(file for file in sorted(MAIN.rglob("*.kt")) if "setContentView(" in file.read_text())
    copy = tmp_path / source.name
    wrong_argument = "\nfun wrong(activity: android.app.Activity) = activity.setTitle(activity)\n"
    copy.write_text(source.read_text().replace("setContentView(", "setContentVieww(") + wrong_argument)
    done = kotlin.compile_kotlin([copy, app.resources.java], app.classpath, tmp_path / "out", friends=app.classes)
    assert done.returncode != 0
    assert "unresolved reference 'setContentVieww'" in done.stderr
    assert "setTitle" in done.stderr
