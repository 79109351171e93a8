"""`paceline inspect`: what it shows, and what `--check` finds."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from command import refused
from damage import alter

from paceline import bundle as bundles
from paceline.backends.litert.delegation import delegation
from paceline.backends.litert.model import Environment
from paceline.bundle import MANIFEST, Bundle
from paceline.cli.main import main
from paceline.stored_weights import read_weights
from paceline_export.bundle import export


@pytest.fixture
def shown(tiny_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What `inspect` prints of the tiny bundle, on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["inspect", str(tiny_bundle)]) == 0
    return capsys.readouterr().out


def test_inspect_refuses_a_damaged_bundle_and_as_json_hashes_nothing(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Graphs are run to see who runs their operators, so they must be whole; the manifest alone can be had without."""
    alter(copy / "target.onnx.data")
    assert "the file was altered" in refused(["inspect", str(copy)], capsys)
    assert main(["inspect", str(copy), "--json"]) == 0
    capsys.readouterr()
    os.truncate(copy / "target.onnx.data", 100)
    assert "has 100 bytes" in refused(["inspect", str(copy), "--json"], capsys)


def test_inspect_shows_files_and_signatures(tiny_bundle: Path, shown: str) -> None:
    manifest = Bundle.read(tiny_bundle).manifest
    for name, stored in manifest.files.items():
        assert re.search(rf"{re.escape(name)} .*{stored.size:,} .*{stored.sha256[:16]}", shown)
    for graphs in manifest.graphs.values():
        for entries in graphs.signatures.values():
            for ports in next(iter(entries.values())).values():
                for name, (dtype, shape) in ports.items():
                    assert re.search(rf" {re.escape(name)} .*{dtype} .*{re.escape(str(shape))}", shown)
    assert "drafter reads layers" in shown


def test_inspect_says_for_every_signature_who_runs_its_operators(tiny_bundle: Path, shown: str) -> None:
    environment, bundle = Environment(), Bundle.open(tiny_bundle)
    graphs = bundle.manifest.graphs["litert"]
    for part, file in graphs.parts.items():
        for name in graphs.signatures[file]:
            ran = delegation(environment, bundle, part, name)
            row = (
                rf"{file} +│ {name} +│ {ran.operators.total()} +│ {ran.delegated.total()} +│ {ran.products} of {ran.products} "
            )
            assert re.search(row, shown)
    assert "10 DYNAMIC_UPDATE_SLICE" in shown


def test_inspect_as_json_is_the_manifest(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny_bundle), "--json", "--check"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tiny_bundle / MANIFEST).read_text())


def test_check_passes_on_a_whole_bundle(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny_bundle), "--check"]) == 0
    assert "every file has the hash that the manifest states" in capsys.readouterr().out


@pytest.mark.parametrize("opened_before", [True, False])
@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_check_fails_on_a_damaged_bundle(
    damage: str, opened_before: bool, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1: the question was whether the bundle is whole, and the answer is no."""
    if opened_before:
        Bundle.open(copy)
    file = copy / "drafter.onnx.data"
    if damage == "altered":
        alter(file)
    elif damage == "truncated":
        os.truncate(file, file.stat().st_size - 1)
    else:
        file.unlink()
    assert main(["inspect", str(copy), "--check"]) == 1
    complaint = capsys.readouterr().err
    assert re.match(rf"paceline: {re.escape(str(file))} (has|is) ", complaint)
    assert complaint.count("\n") == 1
    assert main(["inspect", str(copy), "--check", "--json"]) == 1
    assert capsys.readouterr().err == complaint


def test_what_was_checked_is_not_hashed_again_by_the_next_opening(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    real = bundles.sha256
    monkeypatch.setattr(bundles, "sha256", lambda file, progress=None: hashed.append(file.name) or real(file, progress))
    assert main(["inspect", str(copy), "--check"]) == 0
    assert sorted(hashed) == sorted(Bundle.read(copy).manifest.files)


def test_inspect_lists_every_weight_with_the_worst_first(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    export(*tiny_pair, tmp_path / "bundle", lambda *_: None)
    assert main(["inspect", "--weights", str(tmp_path / "bundle")]) == 0
    said = capsys.readouterr().out
    rows = re.findall(r"│ (target|drafter) +│ (\S+) +│ .* │ +([\d.]*)%? +│\n", said)
    weights = read_weights(tmp_path / "bundle")
    assert sorted((model, name) for model, name, _ in rows) == sorted((w.model, w.name) for w in weights)
    errors = [float(error or 0) for _, _, error in rows]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] == pytest.approx(100 * max(w.relative_error for w in weights), abs=0.01)
