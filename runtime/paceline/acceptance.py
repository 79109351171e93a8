"""Which drafts are accepted: functions on arrays, without a model or a cache.

Source: Y. Leviathan and others, "Fast Inference from Transformers via Speculative Decoding" (2023); greedy case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Acceptance:
    """The outcome of a round: `accepted` drafts, then one token of the target's own."""

    accepted: int
    token: int  # the correction after a rejected draft, the bonus when all were accepted


Accept = Callable[[Sequence[int], NDArray[np.float32]], Acceptance]  # drafts [K], logits [K + 1, V]


def accept_greedy(drafts: Sequence[int], logits: NDArray[np.float32]) -> Acceptance:
    """Accepts drafts while each is the target's own choice, so the tokens are those of plain greedy decoding.

    Args:
        drafts: K proposed tokens.
        logits: [K + 1, V]; row j is what the target says after the pending token and drafts 1..j.
    """
    choices = logits.argmax(-1)
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == choices[accepted]:
        accepted += 1
    return Acceptance(accepted, int(choices[accepted]))


@dataclass(frozen=True)
class SyntheticAcceptance:
    """Accepts each draft with a given probability, whatever it is, until the first rejection; an `Accept` for timing only.

    It makes rounds as long as those of a drafter of that quality. An accepted draft is emitted as it is, and the token
    after it is the target's own choice, so the text is NOT the one that the target would write.

    Attributes:
        probability: of accepting a draft after accepted ones, 0 to 1.
        rng: draws one number for each draft of a round, so that its seed alone decides the pattern.
    """

    probability: float
    rng: np.random.Generator

    def __call__(self, drafts: Sequence[int], logits: NDArray[np.float32]) -> Acceptance:
        """See `accept_greedy` for the arguments."""
        wins = self.rng.random(len(drafts)) < self.probability
        accepted = len(drafts) if wins.all() else int(wins.argmin())
        return Acceptance(accepted, int(logits[accepted].argmax()))
