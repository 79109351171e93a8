"""Runs the `paceline` command, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from paceline.cli.main import main

# What the installed `paceline` script does.
SCRIPT = """
import sys
from importlib.metadata import entry_points
(script,) = entry_points(group="console_scripts", name="paceline")
sys.exit(script.load()())
"""
BLOCKED = """
import sys
sys.modules["onnx_ir"] = None  # as if it were not installed
sys.argv[0] = "paceline"
"""


def script(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the installed command in a process of its own."""
    command = [sys.executable, "-c", before + SCRIPT, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | {"COLUMNS": "100"})


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs the command, which must refuse with exit code 2 and one line; returns that line."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("paceline: ")
    assert captured.err.count("\n") == 1
    return captured.err


def ran(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Runs the command; returns the exit code, and all that it says to either stream."""
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out + captured.err
