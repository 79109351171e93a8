"""The demo end to end, on the trained pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.bundle import Bundle
from paceline.cli.main import main


def test_the_demo_leaves_a_bundle_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bundle"
    assert main(["demo", "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "def read_file" in printed, "the pair answers with code"
    assert "the text is the same with and without drafting" in printed
    assert f"bundle: {out}" in printed
    assert "% at 3" in printed
    Bundle.open(out).check_hashes()


def test_the_demo_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-o", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
