"""Weights as small integers and scales: value = integer x scale, symmetric, with one scale for a row or a block of it.

Scales are those of least squared error. For given integers q the best scale of weights w is <w, q> / <q, q>, and the
error is then |w|^2 - <w, q>^2 / <q, q>; so a few ways to round are tried, and the one of the largest second term wins.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count

import numpy as np
from numpy.typing import NDArray

PIECE_BYTES = 1 << 20  # of float32 that one thread works on at a time: what a core's own cache holds
# The largest magnitude of a group falls on this integer; beyond the range it is cut off, which gives the others finer steps.
TRIED = {4: (7.0, 8.0, 7.6, 8.6, 9.3, 10.2), 8: (127.0,)}


@dataclass(frozen=True)
class Scheme:
    """How the values of one weight are stored.

    Attributes:
        bits: 4 or 8.
        block: values of a row that share a scale, a power of two from 32 to 256; None is the whole row.
        signed: whether a scale may be negative, so that the largest value of a block can always fall on -8. The grid of
            q4_0 is such a one.
    """

    bits: int
    block: int | None = None
    signed: bool = False

    @property
    def name(self) -> str:
        """wi4c, wi4b32, wi4b32s, ..: integer weights of so many bits, a scale for each channel or block, maybe signed."""
        return f"wi{self.bits}" + (f"b{self.block}" if self.block else "c") + ("s" if self.signed else "")

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest integer; -128 is left out, because the int8 kernels do without."""
        return (-8, 7) if self.bits == 4 else (-127, 127)

    def group(self, columns: int) -> int:
        """Values that share a scale in rows of `columns`."""
        return self.block or columns

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a weight can be stored so: rows of whole groups that end on a byte."""
        return len(shape) == 2 and shape[1] % self.group(shape[1]) == 0 and shape[1] * self.bits % 8 == 0

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """Bytes of integers and scales."""
        rows, columns = shape
        scale_bytes = 2 if self.block else 4
        return rows * columns * self.bits // 8 + rows * columns // self.group(columns) * scale_bytes


@dataclass(frozen=True)
class Quantized:
    """Weights that were rounded.

    Attributes:
        integers: int8 [R, C].
        scales: float32 [R, C / group]; those of blocks are exact in float16.
        squared_error, squared_norm: of the difference to the weights, and of the weights.
    """

    integers: NDArray[np.int8]
    scales: NDArray[np.float32]
    squared_error: float
    squared_norm: float

    def dequantized(self) -> NDArray[np.float32]:
        """Float32 [R, C]."""
        rows, columns = self.integers.shape
        groups = self.integers.reshape(rows, self.scales.shape[1], -1)
        return (groups * self.scales[..., None]).reshape(rows, columns)


def quantize(weights: NDArray[np.float32], scheme: Scheme) -> Quantized:
    """Rounds weights [R, C] to the scheme; C is a multiple of its block."""
    rows, columns = weights.shape
    group = scheme.group(columns)
    integers = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, columns // group), np.float32)
    step = max(1, PIECE_BYTES // (4 * columns))

    def work(start: int) -> tuple[float, float]:
        piece = weights[start : start + step].reshape(-1, group)
        q, s = _round(piece, scheme)
        integers[start : start + step] = q.reshape(-1, columns)
        scales[start : start + step] = s.reshape(-1, columns // group)
        difference = q * s[:, None] - piece
        return float(np.vdot(difference, difference)), float(np.vdot(piece, piece))

    with ThreadPoolExecutor(cpu_count()) as pool:
        errors, norms = zip(*pool.map(work, range(0, rows, step)), strict=True)
    return Quantized(integers, scales, sum(errors), sum(norms))


def _round(groups: NDArray[np.float32], scheme: Scheme) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers [G, N] and scales [G] of groups [G, N]."""
    lowest, highest = scheme.range
    largest = np.abs(groups).max(axis=1)
    if scheme.signed:
        largest[largest == groups.max(axis=1)] *= -1
    largest[largest == 0] = 1  # all zero: any scale will do
    scales, gains = np.zeros_like(largest), np.full_like(largest, -1)
    for on in TRIED[scheme.bits]:
        q = _nearest(groups, largest / np.float32(on), lowest, highest)
        wq, qq = np.einsum("gn,gn->g", groups, q), np.einsum("gn,gn->g", q, q)
        gain = np.divide(wq * wq, qq, out=np.zeros_like(wq), where=qq > 0)
        better = gain > gains
        gains[better] = gain[better]
        scales[better] = np.divide(wq, qq, out=largest.copy(), where=qq > 0)[better]
    if scheme.block:
        scales = scales.astype(np.float16).astype(np.float32)
        scales[scales == 0] = np.finfo(np.float16).smallest_subnormal
    return _nearest(groups, scales, lowest, highest).astype(np.int8), scales


def _nearest(groups: NDArray[np.float32], scales: NDArray[np.float32], lowest: int, highest: int) -> NDArray[np.float32]:
    q: NDArray[np.float32] = groups / scales[:, None]
    np.rint(q, out=q)
    np.clip(q, lowest, highest, out=q)
    return q


def pack_int4(integers: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Two to a byte, the first in the low half; an odd count ends with a zero. Flat."""
    flat = integers.reshape(-1)
    if flat.size % 2:
        flat = np.append(flat, np.int8(0))
    halves = flat.view(np.uint8) & np.uint8(0xF)
    packed: NDArray[np.uint8] = halves[0::2] | (halves[1::2] << np.uint8(4))
    return packed


def unpack_int4(packed: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
    """The first `count` integers of what `pack_int4` made."""
    both = np.stack([packed << 4, packed & 0xF0], axis=-1).reshape(-1).view(np.int8)
    return (both >> 4)[:count]
