"""Numbers as integers and back: value = (integer - zero point) x scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST = 1e-30  # a range, so that a tensor of zeros has a scale


def least(dtype: str) -> int:
    """The smallest integer that numbers become; of int16 its negative is the largest."""
    return -np.iinfo(np.int16).max if dtype == "int16" else int(np.iinfo(dtype).min)


@dataclass(frozen=True)
class Scale:
    """How a tensor's integers are numbers.

    Attributes:
        scale: of one step, a float32 number above 0.
        zero_point: the integer that is 0; always 0 for int16.
    """

    scale: float
    zero_point: int

    @classmethod
    def of_range(cls, low: float, high: float, dtype: str) -> Scale:
        """The finest scale that holds numbers from `low` to `high`, and 0, in integers of `dtype`."""
        low, high = min(low, 0.0), max(high, 0.0)
        if dtype == "int16":
            return cls(float(np.float32(max(-low, high, SMALLEST) / 32767)), 0)
        step = max(high - low, SMALLEST) / 255
        return cls(float(np.float32(step)), int(np.clip(np.rint(-128 - low / step), -128, 127)))

    def integers(self, values: NDArray[Any], dtype: str) -> NDArray[Any]:
        """`values` as integers of `dtype`, the nearest ones; what is out of range becomes the last one."""
        with np.errstate(over="ignore"):  # an infinity is out of range, too
            steps = np.rint(values / np.float32(self.scale)) + self.zero_point
        found: NDArray[Any] = np.clip(steps, least(dtype), np.iinfo(dtype).max).astype(dtype)
        return found

    def numbers(self, integers: NDArray[Any]) -> NDArray[np.float32]:
        """Integers as float32 numbers."""
        steps = integers.astype(np.float32) - np.float32(self.zero_point)
        return steps * np.float32(self.scale)
