"""A checkpoint that was trained for q4_0 loses nothing: `wi4b32s` finds the grid that its weights lie on."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
from dequantised import of_onnx
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from paceline.stored_weights import read_weights
from paceline_export.bundle import export
from paceline_export.recipes import recipe

BLOCK = 32
WIDE = {"hidden_size": 64, "intermediate_size": 96, "hidden_size_per_layer_input": 32, "head_dim": 32}


def q4_0(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """What ggml's q4_0 makes of weights [R, C]: the value of largest magnitude is -8 steps, of either sign.

    Source: ggml, `quantize_row_q4_0_ref`. The step has five bits here, so that a bfloat16 checkpoint holds the values exactly.
    """
    blocks = weights.reshape(-1, BLOCK)
    largest = blocks[np.arange(len(blocks)), np.abs(blocks).argmax(1)]
    exact = largest / -8
    exponent = np.floor(np.log2(np.abs(exact))) - 4
    step = (np.round(exact / 2.0**exponent) * 2.0**exponent)[:, None].astype(np.float32)
    integers = np.minimum(15, np.floor(blocks / step + 8.5)) - 8
    assert integers.min() == -8
    assert integers.max() == 7
    return (integers * step).reshape(weights.shape).astype(np.float32)


@pytest.fixture(scope="module")
def gridded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A pair whose matrices and tables are all on grids of q4_0."""
    folder = tmp_path_factory.mktemp("gridded")
    plain = tiny.write_pair(folder / "plain", 1, **WIDE)
    pair = folder / "target", folder / "drafter"
    for before, after in zip(plain, pair, strict=True):
        shutil.copytree(before, after)
        tensors = load_file(before / "model.safetensors")
        matrices = {name for name, values in tensors.items() if values.ndim == 2 and values.shape[1] % BLOCK == 0}
        assert len(matrices) >= 20
        save_file({n: q4_0(v) if n in matrices else v for n, v in tensors.items()}, after / "model.safetensors")
    return pair


def test_every_matrix_and_table_is_stored_without_error(gridded: tuple[Path, Path], tmp_path: Path) -> None:
    export(*gridded, tmp_path / "bundle", lambda *_: None, ["onnx"], recipe("wi4b32s"))
    rounded = [weight for weight in read_weights(tmp_path / "bundle") if weight.stored_as == "wi4b32s"]
    assert len(rounded) > 60
    assert {weight.relative_error for weight in rounded} == {0.0}
    stored = load_file(gridded[0] / "model.safetensors")
    for name, values in of_onnx(tmp_path / "bundle" / "target.onnx").items():
        if stored[name].shape[1] % BLOCK == 0:
            np.testing.assert_array_equal(values, stored[name], err_msg=name)


def test_scales_without_a_sign_lose_the_largest_value_of_half_the_blocks(gridded: tuple[Path, Path], tmp_path: Path) -> None:
    """Which is why TFLite, whose kernels take no negative scales, cannot hold such a checkpoint exactly."""
    export(*gridded, tmp_path / "bundle", lambda *_: None, ["tflite"], recipe("wi4b32"))
    errors = [weight.relative_error for weight in read_weights(tmp_path / "bundle") if weight.stored_as == "wi4b32"]
    assert min(errors) > 0.01
    assert max(errors) < 0.06
