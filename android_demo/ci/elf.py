"""What a shared library says of itself: where it is loaded, what it is linked to, what it exports."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import toolchain


def segment_alignments(file: Path) -> list[int]:
    """Of every part of the file that is loaded into memory."""
    return [int(line.split()[-1], 16) for line in _read(file, "--segments") if line.split()[:1] == ["LOAD"]]


def needed(file: Path) -> set[str]:
    """The libraries it is linked to."""
    return {found[1] for line in _read(file, "--dynamic") if (found := re.search(r"\(NEEDED\).*\[(.+)\]", line))}


def exported(file: Path) -> set[str]:
    """The functions and objects that others can link to."""
    symbols = [line.split() for line in _read(file, "--dyn-syms")]
    return {each[7].split("@")[0] for each in symbols if len(each) > 7 and each[4] != "LOCAL" and each[6].isdigit()}


def _read(file: Path, option: str) -> list[str]:
    command = [toolchain.command("readelf", "binutils"), option, "--wide", str(file)]  # knows every machine
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def native_functions(kotlin: Path) -> set[str]:
    """The symbols that a Kotlin object's external functions stand for."""
    text = kotlin.read_text()
    package, owner = re.search(r"^package ([\w.]+)", text, re.MULTILINE), re.search(r"\bobject (\w+)", text)
    assert package, f"{kotlin} has no package"
    assert owner, f"{kotlin} has no object"
    prefix = "_".join(["Java", *package[1].split("."), owner[1]])
    return {f"{prefix}_{name}" for name in re.findall(r"\bexternal fun (\w+)", text)}
