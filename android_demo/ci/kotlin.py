"""Compiles the app's Kotlin, and runs its tests, on a desktop JVM."""

from __future__ import annotations

import subprocess
import tomllib
import zipfile
from pathlib import Path

import android_stubs
import toolchain

CATALOG = Path(__file__).parents[1] / "gradle" / "libs.versions.toml"
# These programs are over before a better compiler of bytecode would pay.
JVM = ["-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def android_jar(sources: list[Path], jar: Path) -> None:
    """Writes the compile-only framework that these sources need."""
    stubs = toolchain.unpacked(toolchain.STUBS)
    with zipfile.ZipFile(jar, "w") as made:
        for name, content in android_stubs.make(stubs, sources):
            made.writestr(name, content)


def libraries() -> list[Path]:
    """What the app and its tests may use beside the framework."""
    jars = toolchain.kotlin_jars()
    names = ("kotlin-stdlib", "kotlinx-coroutines-core-jvm", "kotlin-test", "kotlin-test-junit")
    return [*(jars / f"{name}.jar" for name in names), *toolchain.junit()]


def compile_kotlin(
    sources: list[Path], classpath: list[Path], out: Path, *, friends: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the compiler, to which a warning is an error. Java files among the sources are read and not compiled.

    `friends` is a directory of classes whose internal members count as own.
    """
    jars = toolchain.kotlin_jars()
    java = [toolchain.command("java", "openjdk-17-jre-headless"), *JVM, "-cp", str(jars / "kotlin-preloader.jar")]
    preloader = [*java, "org.jetbrains.kotlin.preloading.Preloader", "-cp", str(jars / "kotlin-compiler.jar")]
    with CATALOG.open("rb") as catalog:
        version = ".".join(tomllib.load(catalog)["versions"]["kotlinTest"].split(".")[:2])
    language = ["-language-version", version, "-api-version", version]  # Gradle's compiler is older than this one
    options = [*language, "-Werror", "-no-stdlib", "-no-reflect", "-jvm-target", "17", "-module-name", "app", "-d", str(out)]
    if friends:
        options += [f"-Xfriend-paths={friends}"]
    command = [*preloader, "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", *options, "-cp", joined(classpath), *map(str, sources)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def run_tests(name: str, classpath: list[Path], properties: dict[str, Path]) -> subprocess.CompletedProcess[str]:
    """Runs one class of JUnit tests."""
    given = [f"-D{key}={value}" for key, value in properties.items()]
    java = [toolchain.command("java", "openjdk-17-jre-headless"), *JVM, *given, "-cp", joined(classpath)]
    return subprocess.run([*java, "org.junit.runner.JUnitCore", name], check=False, capture_output=True, text=True, timeout=300)


def joined(classpath: list[Path]) -> str:
    """A class path as Java's options take it."""
    return ":".join(map(str, classpath))
