"""The drafter on one sequence: steps in a chain or a tree, each fed with what the one before it proposed."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import exp

import numpy as np
from numpy.typing import NDArray

from paceline.backends.base import DraftStep, Graphs
from paceline.drafts import Drafts
from paceline.sampler import largest

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

    def tree(self, pending: int, hidden: NDArray[np.float32], count: int) -> Drafts:
        """Proposes the `count` likeliest continuations of `pending`, by the drafter's own joint probabilities.

        A continuation is never likelier than its beginning, so taking the likeliest that is known, one step for each, finds
        them all. Source: Y. Li and others, "EAGLE-2" (2024, arXiv 2406.16858), where the tree is also pruned and not only
        grown by these probabilities.

        Args:
            pending, hidden: as for `draft`.
            count: drafts in all, at least 1.
        """
        chosen: dict[tuple[int, ...], int] = {}  # see `Drafts.tree`
        known: list[tuple[float, tuple[int, ...], int, NDArray[np.float32]]] = []
        place, token, unlikely = tuple[int, ...](), pending, 0.0
        while len(chosen) < count:
            step = self.graphs.draft(token, hidden)
            state = step.state.copy()
            for rank, index in enumerate(largest(step.logits, count - len(chosen))):
                surprise = unlikely + step.logsumexp - float(step.logits[index])
                heappush(known, (surprise, (*place, rank), int(step.scored[index]), state))
            unlikely, place, token, hidden = heappop(known)
            chosen[place] = token
        return Drafts.tree(chosen)

    def chain(self, pending: int, hidden: NDArray[np.float32], length: int) -> list[int]:
        """`length` likeliest tokens to follow `pending`."""
        return self.draft(pending, hidden, length, likeliest, never)


def likeliest(step: DraftStep) -> int:
    """The drafter's own choice."""
    return step.token


def never(_probability: float, _drafted: int) -> bool:
    """Drafting goes on."""
    return False
