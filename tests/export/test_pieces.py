"""Tensors pass through an export some rows at a time, and a value that no graph could compute with does not pass."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from paceline.errors import InputError
from paceline_export import weights
from paceline_export.bundle import FORMATS, export
from paceline_export.checkpoint import open_pair
from paceline_export.recipes import DEFAULT_RECIPE, F32, Recipe
from paceline_export.weights import Weight

TABLE = "model.embed_tokens_per_layer.weight"


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), piece=st.integers(1, 200))
def test_pieces_are_the_tensor_in_order_and_none_is_larger_than_allowed(shape: tuple[int, ...], piece: int) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    weight = Weight("x", shape, lambda: values, lambda start, stop: values[start:stop])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "PIECE_BYTES", piece)
        pieces = list(weight.pieces())
    np.testing.assert_array_equal(np.concatenate(pieces), values)
    row = values[0].nbytes
    assert all(part.nbytes <= max(piece, row) for part in pieces)


def test_rows_of_a_file_are_those_of_the_whole_tensor(tiny_pair: tuple[Path, Path]) -> None:
    for weight in open_pair(*tiny_pair)[0].weights.values():
        assert weight.read_rows is not None
        middle = weight.shape[0] // 2
        halves = [weight.read_rows(0, middle), weight.read_rows(middle, weight.shape[0])]
        np.testing.assert_array_equal(np.concatenate(halves), weight.read())


@pytest.mark.parametrize("recipe", [F32, DEFAULT_RECIPE], ids=lambda recipe: recipe.name)
def test_the_size_of_the_pieces_does_not_show_in_a_bundle(
    recipe: Recipe, tiny_pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(*tiny_pair, tmp_path / "whole", lambda *_: None, tuple(FORMATS), recipe)
    monkeypatch.setattr(weights, "PIECE_BYTES", 1000)
    seen: list[int] = []
    report = lambda stage, _, size: seen.append(size) if stage in FORMATS else None  # noqa: E731
    export(*tiny_pair, tmp_path / "pieces", report, tuple(FORMATS), recipe)
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")
    assert len(seen) > 500


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("formats", [("tflite",), ("onnx",)])
@pytest.mark.parametrize(("part", "name"), [(0, TABLE), (0, "model.norm.weight"), (1, "model.embed_tokens.weight")])
def test_a_weight_that_is_not_finite_is_refused_by_name_and_nothing_is_left(
    value: float, formats: Sequence[str], part: int, name: str, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    folders = [shutil.copytree(folder, tmp_path / folder.name) for folder in tiny_pair]
    tensors = load_file(folders[part] / "model.safetensors")
    tensors[name].reshape(-1)[-1] = value
    save_file(tensors, folders[part] / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=f"^{name} holds values that are not finite; train or download"):
        export(folders[0], folders[1], tmp_path / "out", lambda *_: None, formats)
    assert {path.name for path in tmp_path.iterdir()} == {folder.name for folder in folders}
