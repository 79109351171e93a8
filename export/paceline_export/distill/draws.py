"""How the tokens of a text are chosen, the same by whatever computes the logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Draws:
    """Chooses the tokens of one text: the likeliest, or by its own random numbers."""

    def __init__(self, temperature: float, seed: int):
        self.temperature, self.rng = temperature, np.random.default_rng(seed)

    def token(self, logits: NDArray[np.float32]) -> int:
        """The next token, by the target's logits [V]."""
        if self.temperature == 0:
            return int(logits.argmax())
        weights = np.exp((logits.astype(np.float64) - float(logits.max())) / self.temperature)
        sums = weights.cumsum()
        return int(min(sums.searchsorted(self.rng.random() * sums[-1], side="right"), len(sums) - 1))
