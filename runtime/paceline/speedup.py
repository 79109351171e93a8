"""What drafting should bring, by how many drafts are accepted and what the calls of a round cost: pure functions."""

from __future__ import annotations

from collections.abc import Sequence


def expected_speedup(accepted: Sequence[float], draft_length: int, verify_ratio: float, draft_ratio: float) -> float:
    """Tokens of a round over its cost, (1 + a1 + .. + aK) / (v + K d), both as multiples of plain decoding's.

    Leviathan and others (2023), theorem 3.8, is the case of a constant rate r, so that aj = r**j, and of a verify pass as
    cheap as decode, v = 1: (1 - r**(K + 1)) / ((1 - r) (K d + 1)).

    Args:
        accepted: a1, a2, ..; share of the drafts at a position that were accepted, those after a rejected one counted as
            rejected. Positions that were never drafted may lack.
        draft_length: K.
        verify_ratio: v, a target pass over K + 1 rows as a multiple of decode.
        draft_ratio: d, one of the K draft steps as a multiple of decode.
    """
    return (1 + sum(accepted)) / (verify_ratio + draft_length * draft_ratio)


def at_rate(rate: float, draft_length: int) -> list[float]:
    """Acceptance at positions 1 to `draft_length` where each draft is accepted with probability `rate` if those before were."""
    return [rate**position for position in range(1, draft_length + 1)]


def constant_rate(accepted: float, draft_length: int) -> float:
    """The inverse of `at_rate`'s sum: the rate at which `accepted` of `draft_length` drafts are kept on average, to 1e-12."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at_rate(middle, draft_length)) < accepted else (low, middle)
    return round(high, 12)
