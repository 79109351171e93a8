"""Rounding weights to integers: what is packed comes back, the error is bounded, and no plainer scale does better."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline_export.quantize import Scheme, pack_int4, quantize, unpack_int4

SCHEMES = [Scheme(8), Scheme(4), *(Scheme(4, block) for block in (32, 64, 128, 256))]


def some_weights(seed: int, rows: int = 24, columns: int = 512) -> NDArray[np.float32]:
    """Rows of very different size, some with a few large values."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((rows, columns)) * 10.0 ** rng.uniform(-3, 1, (rows, 1))
    weights[::3, ::50] *= 6
    return weights.astype(np.float32)


def squared_error(weights: NDArray[np.float32], scheme: Scheme, scales: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of every group, when it is rounded with given scales."""
    groups = weights.reshape(len(weights), scales.shape[1], -1)
    integers = np.clip(np.rint(groups / scales[..., None]), *scheme.range)
    return ((integers * scales[..., None] - groups).astype(np.float64) ** 2).sum(-1)


@given(st.lists(st.integers(-8, 7), max_size=33))
def test_int4_comes_back_from_its_bytes_at_any_length(integers: list[int]) -> None:
    values = np.array(integers, np.int8)
    packed = pack_int4(values)
    assert packed.size == -(-len(integers) // 2)
    np.testing.assert_array_equal(unpack_int4(packed, len(integers)), values)


def test_the_first_of_two_lies_in_the_low_half() -> None:
    assert pack_int4(np.array([1, -2], np.int8)).tolist() == [0xE1]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@given(seed=st.integers(0, 1000))
def test_the_error_is_half_a_step_within_the_range_and_the_rest_beyond(scheme: Scheme, seed: int) -> None:
    weights = some_weights(seed)
    rounded = quantize(weights, scheme)
    step = np.repeat(np.abs(rounded.scales), scheme.group(weights.shape[1]), axis=1)
    lowest, highest = scheme.range
    beyond = np.maximum(np.maximum(weights - highest * step, lowest * step - weights), 0)
    error = np.abs(rounded.dequantized() - weights)
    assert (error <= np.maximum(0.5 * step, beyond) * 1.0001).all()
    assert rounded.integers.min() >= lowest
    assert rounded.integers.max() <= highest


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_the_whole_range_is_used(scheme: Scheme) -> None:
    assert set(np.unique(quantize(some_weights(0, 400), scheme).integers)) == set(range(scheme.range[0], scheme.range[1] + 1))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@given(seed=st.integers(0, 1000))
def test_no_group_is_worse_than_with_the_scale_of_its_largest_value(scheme: Scheme, seed: int) -> None:
    """Up to the rounding of a block's scale to float16, of which half a unit is 2^-11."""
    weights = some_weights(seed)
    groups = weights.reshape(len(weights), -1, scheme.group(weights.shape[1]))
    plain = np.abs(groups).max(-1) / np.float32(scheme.range[1])
    ours = squared_error(weights, scheme, quantize(weights, scheme).scales)
    slack = 1e-5 + (3 * 2**-11 if scheme.block else 0)
    assert (ours <= squared_error(weights, scheme, plain) * (1 + slack)).all()


def test_least_squares_gains_much_on_ordinary_weights() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 1536)).astype(np.float32)
    plain = np.abs(weights).max(1, keepdims=True) / np.float32(7)
    gained = squared_error(weights, Scheme(4), quantize(weights, Scheme(4)).scales).sum()
    assert gained < 0.75 * squared_error(weights, Scheme(4), plain).sum()


@pytest.mark.parametrize("block", [32, 64])
@given(seed=st.integers(0, 1000))
def test_a_checkpoint_on_a_grid_of_blocks_stays_on_it(block: int, seed: int) -> None:
    """As one trained for q4_0 has it, wherever its grid reaches from -8 to 7 steps: then the error is 0."""
    rng = np.random.default_rng(seed)
    scales = (rng.integers(16, 32, (8, 256 // block, 1)) * 2.0 ** rng.integers(-12, -4, (8, 256 // block, 1))).astype(
        np.float32
    )
    integers = rng.integers(-8, 8, (8, 256 // block, block))
    integers[..., 0] = -8
    weights = (integers * scales).astype(np.float32).reshape(8, 256)
    np.testing.assert_array_equal(quantize(weights, Scheme(4, block)).dequantized(), weights)


def test_zeros_stay_zeros_and_have_a_scale_that_kernels_take() -> None:
    for scheme in SCHEMES:
        rounded = quantize(np.zeros((2, 256), np.float32), scheme)
        assert not rounded.dequantized().any()
        assert (rounded.scales > 0).all()


def test_rows_are_rounded_alone() -> None:
    """So a tensor may come in pieces, and its rows in another order."""
    weights = some_weights(5)
    for scheme in SCHEMES:
        whole, half = quantize(weights, scheme), quantize(weights[10:13], scheme)
        np.testing.assert_array_equal(whole.integers[10:13], half.integers)
        np.testing.assert_array_equal(whole.scales[10:13], half.scales)


def test_stored_bytes_are_integers_and_scales() -> None:
    assert Scheme(8).stored_bytes((3, 64)) == 3 * 64 + 3 * 4
    assert Scheme(4).stored_bytes((3, 64)) == 3 * 32 + 3 * 4
    assert Scheme(4, 32).stored_bytes((3, 64)) == 3 * 32 + 3 * 2 * 2
