"""`paceline export` before and after the graphs: recipes that cannot be had, a machine that is too small, what it prints."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from command import refused

from paceline.cli.main import main
from paceline.errors import InputError
from paceline.stored_weights import StoredWeight, read_weights, summary, write_weights
from paceline_export.bundle import FORMATS, export_bytes
from paceline_export.recipes import RECIPES


def arguments(pair: tuple[Path, Path], out: Path, *options: str) -> list[str]:
    return ["export", str(pair[0]), "--drafter", str(pair[1]), "-o", str(out), *options]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--recipe", "int4"], "recipe is 'int4'; allowed are f32, wi8c, wi4c, "),
        (["--recipe", "wi4b32s"], "the format tflite cannot hold the recipe wi4b32s; it holds f32, wi8c, "),
        (["--recipe", "wi4b32s", "--format", "onnx,tflite"], "the format tflite cannot hold the recipe wi4b32s"),
    ],
)
def test_a_recipe_that_cannot_be_had_is_refused_before_anything_is_written(
    options: list[str], words: str, tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(arguments(tiny_pair, tmp_path / "new" / "out", *options), capsys)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_refused_before_anything_is_written(
    tiny_pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10_000_000))
    said = refused(arguments(tiny_pair, tmp_path / "new" / "out"), capsys)
    assert f"{tmp_path} has 0.01 GB of free space and the bundle needs about 0.07 GB; make room" in said
    assert not list(tmp_path.iterdir())


def test_too_little_memory_is_refused_before_anything_is_written(
    tiny_pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100_000_000))
    said = refused(arguments(tiny_pair, tmp_path / "new" / "out"), capsys)
    assert "this machine has 0.10 GB of memory available and the export needs about 0.54 GB; close other programs" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_bundle_is_larger_than_the_room_that_is_asked_for(recipe: str, tiny_pair: tuple[Path, Path], tmp_path: Path) -> None:
    """What is not counted are graphs, some tenths of a megabyte; weights may be repeated by a twelfth."""
    for name in FORMATS:
        if recipe in FORMATS[name].recipes:
            out = tmp_path / name
            assert main(arguments(tiny_pair, out, "--format", name, "--recipe", recipe)) == 0
            written = sum(file.stat().st_size for file in out.iterdir())
            assert written <= 1.08 * export_bytes(*tiny_pair, [name], RECIPES[recipe]) + 1_000_000


def test_an_export_says_which_tensor_lost_most(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tiny_pair, tmp_path / "out")) == 0
    worst = max(read_weights(tmp_path / "out"), key=lambda weight: weight.relative_error)
    said = capsys.readouterr().out
    assert f"{worst.relative_error:.1%} at most: {worst.name} of the {worst.model}, {worst.stored_as}" in said
    assert 0.05 < worst.relative_error < 0.2


def test_the_list_of_weights_comes_back(tmp_path: Path) -> None:
    weights = [
        StoredWeight("target", "a", (3, 4), "wi4c", 18, 0.1),
        StoredWeight("drafter", "a", (5,), "f32", 20, 0.0),
        StoredWeight("drafter", "b", (2, 2), "wi8c", 12, 0.02),
    ]
    write_weights(tmp_path, weights)
    assert read_weights(tmp_path) == weights
    said = summary(weights)
    assert "2 are rounded, with a relative error of 7.2% (mean square) and 10.0% at most: a of the target, wi4c" in said
    assert summary(weights[1:2]).endswith("all float32")
    (tmp_path / "weights.json").write_text('[{"model": "target"}]')
    with pytest.raises(InputError, match="does not list a bundle's weights"):
        read_weights(tmp_path)
