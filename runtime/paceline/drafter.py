"""The drafter on one sequence: a chain of steps, each fed with what the last one proposed."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

import numpy as np
from numpy.typing import NDArray

from paceline.backends.base import DraftStep, Graphs

Choose = Callable[[DraftStep], int]
Stop = Callable[[float, int], bool]


class Drafter:
    """Proposes tokens from the target's hidden state and committed KV rows; it keeps no state between rounds."""

    def __init__(self, graphs: Graphs):
        self.graphs = graphs

    def draft(self, pending: int, hidden: NDArray[np.float32], length: int, choose: Choose, stop: Stop) -> list[int]:
        """Proposes up to `length` tokens to follow `pending`.

        Args:
            pending: the newest token, whose KV row is not written yet.
            hidden: [D], the target's activations of the row that produced it.
            choose: the draft after a step.
            stop: whether to leave it at the drafts that are there, given the last step's probability of its likeliest
                token and their number; asked after each but the last.
        """
        drafts: list[int] = []
        while len(drafts) < length:
            step = self.graphs.draft(pending, hidden)
            drafts.append(choose(step))
            if len(drafts) < length and stop(exp(step.logit - step.logsumexp), len(drafts)):
                break
            pending, hidden = drafts[-1], step.state
        return drafts

    def chain(self, pending: int, hidden: NDArray[np.float32], length: int) -> list[int]:
        """`length` likeliest tokens to follow `pending`."""
        return self.draft(pending, hidden, length, likeliest, never)


def likeliest(step: DraftStep) -> int:
    """The drafter's own choice."""
    return step.token


def never(_probability: float, _drafted: int) -> bool:
    """Drafting goes on."""
    return False
