"""`paceline verify`: a good bundle passes, and each thing that can be wrong is found and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from command import refused
from damage import alter
from small_pair import DRAFTER, TARGET

import paceline
from paceline import checks
from paceline.backends.base import DraftStep, Verified
from paceline.backends.ort import OrtGraphs
from paceline.checks import FailedError, SkippedError
from paceline.cli.main import main
from paceline.kv_cache import KVCache
from paceline_export.bundle import export


@pytest.fixture(scope="module")
def model(small_bundle: Path) -> paceline.Model:
    return paceline.load(small_bundle, backend="onnxruntime", threads=1)


def report(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> dict[str, tuple[str, str]]:
    """What `paceline verify --json` says: check -> outcome and detail."""
    capsys.readouterr()
    assert main(["verify", *arguments, "--threads", "1", "--json"]) == code
    return {check["name"]: (check["outcome"], check["detail"]) for check in json.loads(capsys.readouterr().out)["checks"]}


def test_a_good_bundle_passes_and_equals_its_checkpoints(small_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, 0, str(small_bundle), "--against", str(TARGET), str(DRAFTER))
    kinds = ("rows", "rollback", "text", "stops", "acceptance", "known drafts", "parity")
    assert set(found) == {"files", "backends", *(f"{kind}, {name}" for kind in kinds for name in ("litert", "onnxruntime"))}
    assert {name for name, (outcome, _) in found.items() if outcome != "ok"} == {
        "known drafts, litert",
        "known drafts, onnxruntime",
    }
    assert "100% of 24 next tokens" in found["backends"][1]


def test_a_rounded_bundle_equals_its_rounded_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(TARGET, DRAFTER, tmp_path / "bundle", lambda *_: None)
    found = report(capsys, 0, str(tmp_path / "bundle"), "--against", str(TARGET), str(DRAFTER))
    assert found["parity, litert"][0] == "ok"
    assert found["backends"] == ("skipped", "the bundle has graphs for one backend only")
    assert "these are mixed-wi4c" in found["known drafts, litert"][1] or "E2B's size" in found["known drafts, litert"][1]


def test_a_random_drafter_and_another_checkpoint_fail(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tiny.write_pair(tmp_path, 9)
    found = report(capsys, 1, str(tiny_bundle), "--against", str(other[0]), str(other[1]))
    failed = {name for name, (outcome, _) in found.items() if outcome == "FAILED"}
    assert failed == {f"{kind}, {name}" for kind in ("acceptance", "parity") for name in ("litert", "onnxruntime")}
    assert "wired wrongly: paceline doctor" in found["acceptance, litert"][1]
    assert "away from the checkpoints; with f32 weights up to" in found["parity, litert"][1]


def test_a_changed_file_ends_the_checks(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alter(copy / "target.onnx.data")
    found = report(capsys, 1, str(copy))
    assert set(found) == {"files"}
    assert "target.onnx.data" in found["files"][1]


def test_the_table_names_what_failed(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "README.md").write_text("another")
    assert main(["verify", str(copy)]) == 1
    assert "1 of 1 checks failed: files" in capsys.readouterr().out


def spoiled(monkeypatch: pytest.MonkeyPatch, change: Callable[[OrtGraphs, int, Verified], Verified]) -> None:
    """Every target pass says what `change` makes of it."""
    real = OrtGraphs.verify

    def verify(graphs: OrtGraphs, tokens: Any, paths: Sequence[Any]) -> Verified:
        return change(graphs, len(tokens), real(graphs, tokens, paths))

    monkeypatch.setattr(OrtGraphs, "verify", verify)


def test_a_single_bit_in_a_row_is_found(model: paceline.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def last_bit(_: OrtGraphs, count: int, verified: Verified) -> Verified:
        logits = verified.logits.copy()
        if count == 4:
            logits[2, 7] = np.nextafter(logits[2, 7], np.float32(np.inf))
        return replace(verified, logits=logits)

    spoiled(monkeypatch, last_bit)
    with pytest.raises(FailedError, match=r"rows \[2\] of a call of 4 behind 0 rows are not those of decode"):
        checks.rows(model)


def test_rows_that_are_still_seen_are_found(model: paceline.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a cache had counted rows that were rejected."""
    monkeypatch.setattr(KVCache, "commit", lambda cache, rows: vars(cache).update(length=cache.length + max(rows, 2)))
    with pytest.raises(FailedError, match="after a rollback from 8 rows to 3"):
        checks.rollback(model)


def test_a_text_that_drafts_change_is_found(model: paceline.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(_: OrtGraphs, count: int, verified: Verified) -> Verified:
        return verified if count == 1 else replace(verified, logits=np.roll(verified.logits, 1, -1))

    spoiled(monkeypatch, other)
    with pytest.raises(FailedError, match="with drafts the text after"):
        checks.texts(model)


def test_a_stop_that_is_overrun_is_found(model: paceline.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.generate._finish", lambda stopped, spent: paceline.FinishReason.LENGTH if spent else None)
    with pytest.raises(FailedError, match="a stop token did not end the text"):
        checks.stops(model)


def test_backends_that_compute_different_models_are_found(
    model: paceline.Model, small_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled(monkeypatch, lambda _, count, verified: replace(verified, logits=1.002 * verified.logits))
    litert = paceline.load(small_bundle, backend="litert", threads=1)
    with pytest.raises(FailedError, match=r"logits of litert and onnxruntime differ by 2.0e-03 of their norm; with f32"):
        checks.agreement([litert, model])


def test_known_drafts_are_asked_of_e2b_alone(model: paceline.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SkippedError, match="not of E2B's size"):
        checks.golden(model)
    sizes = {
        "layers": model.manifest.layers,
        "hidden_size": model.manifest.hidden_size,
        "vocab_size": model.manifest.vocab_size,
    }
    monkeypatch.setattr(checks, "E2B", sizes)
    with pytest.raises(FailedError, match=r"'Here is my poem:' drafts \[.*\], and the published pair \[3442, 786"):
        checks.golden(model)
    drafts = iter(checks.GOLDEN_DRAFTS)

    def known(*_: Any) -> DraftStep:
        return DraftStep(next(drafts), 0.0, 0.0, np.zeros(model.manifest.hidden_size, np.float32), np.zeros(1), np.zeros(1))

    monkeypatch.setattr(OrtGraphs, "draft", known)
    assert "as published" in checks.golden(model)


def test_a_capacity_that_is_too_small_and_no_bundle_are_refused(
    small_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "capacity is 100 on litert; the checks need 512" in refused(
        ["verify", str(small_bundle), "--capacity", "100"], capsys
    )
    assert "is not a bundle" in refused(["verify", str(tmp_path)], capsys)
    shutil.copytree(TARGET, tmp_path / "target")
    missing = ["verify", str(small_bundle), "--threads", "1", "--against", str(tmp_path / "target"), str(tmp_path / "nothing")]
    assert "is not a local directory" in refused(missing, capsys)
