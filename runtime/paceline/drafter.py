"""The drafter on one sequence: a chain of steps, each fed with what the last one proposed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.backends.base import DraftStep, Graphs


class Drafter:
    """Proposes tokens from the target's hidden state and committed KV rows; it keeps no state between rounds."""

    def __init__(self, graphs: Graphs):
        self.graphs = graphs

    def draft(self, pending: int, hidden: NDArray[np.float32], length: int) -> list[DraftStep]:
        """Proposes `length` tokens to follow `pending`.

        Args:
            pending: the newest token, whose KV row is not written yet.
            hidden: [D], the target's activations of the row that produced it.
        """
        steps: list[DraftStep] = []
        for _ in range(length):
            steps.append(self.graphs.draft(pending, hidden))
            pending, hidden = steps[-1].token, steps[-1].state
        return steps
