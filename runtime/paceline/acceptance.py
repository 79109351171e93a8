"""Which drafts the target accepts: pure functions on arrays.

Source: Y. Leviathan and others, "Fast Inference from Transformers via Speculative Decoding" (2023); greedy case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Acceptance:
    """The outcome of a round: `accepted` drafts, then one token of the target's own."""

    accepted: int
    token: int  # the correction after a rejected draft, the bonus when all were accepted


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
