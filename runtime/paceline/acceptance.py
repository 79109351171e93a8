"""Which drafts are accepted: functions on arrays and distributions, without a model or a cache.

Sources: Y. Leviathan and others, "Fast Inference from Transformers via Speculative Decoding" (2023); C. Chen and others,
"Accelerating Large Language Model Decoding with Speculative Sampling" (2023); Z. Sun and others, "Block Verification
Accelerates Speculative Decoding" (ICLR 2025, arXiv 2403.10444).

All but `SyntheticAcceptance` are lossless: the emitted tokens are distributed as the target's own, or even equal them.
The sampling rules share these arguments:

    drafts: K proposed tokens, in a row.
    drafted: K distributions; draft j + 1 was drawn from drafted[j], with a random number of its own.
    target: target(j) is what the target draws from after the pending token and drafts 1..j. It is asked for a row at a
        time, in order, and for none behind a draft that cannot be accepted.
    uniforms: K + 1 numbers in [0, 1); uniforms[j] picks a token at the place of draft j + 1, so it can belong to that place.
    coins: K numbers in [0, 1) that no other round has used, those of rejected drafts included; the same goes for the
        numbers that drafts are drawn with. (`accept_block` looks at what it rejects, so what is left of a round is not fresh.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.drafts import Drafts
from paceline.sampler import Distribution


@dataclass(frozen=True)
class Acceptance:
    """The outcome of a round: some drafts, then one token of the target's own.

    Attributes:
        rows: of the accepted drafts in the target's pass, in order of the text.
        token: the correction after rejected drafts, the bonus where none was left.
    """

    rows: tuple[int, ...]
    token: int

    @classmethod
    def first(cls, accepted: int, token: int) -> Acceptance:
        """The first drafts of a chain."""
        return cls(tuple(range(1, accepted + 1)), token)

    @property
    def accepted(self) -> int:
        """How many drafts."""
        return len(self.rows)

    @property
    def last_row(self) -> int:
        """The row that the target's own token comes from."""
        return self.rows[-1] if self.rows else 0


Choose = Callable[[int, Sequence[int]], int]


def accept_chosen(drafts: Drafts, choose: Choose) -> Acceptance:
    """Lets the target choose at every row and accepts the drafts that it chooses, in a chain or along a path of a tree.

    The tokens are those that the target chooses without drafts, wherever these come from.

    Args:
        choose: the target's token at a row, given the tokens of the rows accepted before; it is asked for one row at a time.
    """
    row, rows, ahead = 0, list[int](), list[int]()
    while True:
        token = choose(row, ahead)
        following = drafts.following(row, token)
        if following is None:
            return Acceptance(tuple(rows), token)
        row = following
        rows.append(row)
        ahead.append(token)


@dataclass(frozen=True)
class SyntheticAcceptance:
    """Accepts each draft with a given probability, whatever it is, until the first rejection; for timing only.

    It makes rounds as long as those of a drafter of that quality. An accepted draft is emitted as it is, and the token
    after it is the target's own choice, so the text is NOT the one that the target would write.

    Attributes:
        probability: of accepting a draft after accepted ones, 0 to 1.
        rng: draws one number for each draft of a round, so that its seed alone decides the pattern.
    """

    probability: float
    rng: np.random.Generator

    def __call__(self, drafts: Sequence[int], logits: NDArray[np.float32]) -> Acceptance:
        """See the top of this file for the drafts. logits: [K + 1, V]."""
        wins = self.rng.random(len(drafts)) < self.probability
        accepted = len(drafts) if wins.all() else int(wins.argmin())
        return Acceptance.first(accepted, int(logits[accepted].argmax()))


Target = Callable[[int], Distribution]


def accept_sampled(
    drafts: Sequence[int],
    drafted: Sequence[Distribution],
    target: Target,
    uniforms: Sequence[float],
    coins: Sequence[float],
) -> Acceptance:
    """Accepts a draft with probability min(1, p / q), token by token; the correction comes from what q lacks of p."""
    count = _drawn(drafts, drafted)
    for accepted in range(count):
        p, q, draft = target(accepted), drafted[accepted], drafts[accepted]
        if coins[accepted] >= p.probability(draft) / q.probability(draft):
            return Acceptance.first(accepted, _lacking(p, q)[0].pick(uniforms[accepted]))
    return Acceptance.first(count, target(count).pick(uniforms[count]))


def accept_block(
    drafts: Sequence[int],
    drafted: Sequence[Distribution],
    target: Target,
    uniforms: Sequence[float],
    coins: Sequence[float],
) -> Acceptance:
    """Block verification (Sun and others, algorithm 2): a draft that fails is accepted if a later one passes.

    With share_0 = 1 and share_i = min(1, share_{i-1} * p(draft_i) / q(draft_i)), the first i drafts pass with probability
    m / (m + 1 - share_i), where m is the mass of max(share_i * p - q, 0) at the row behind them, and all K pass with
    probability share_K. The longest passing block is accepted. On average it accepts the most that any lossless rule can.
    """
    count = _drawn(drafts, drafted)
    share, row, accepted = 1.0, target(0), 0
    own = _lacking(row, drafted[0])[0] if count else row  # what the token behind the accepted block comes from
    for index in range(count):
        share = min(1.0, share * row.probability(drafts[index]) / drafted[index].probability(drafts[index]))
        if share == 0:
            break
        row = target(index + 1)
        if index + 1 == count:
            rest, chance = row, share
        else:
            rest, mass = _lacking(row, drafted[index + 1], share)
            # Without mass at share 1, p is q, and the next block has share 1 again: whether this one passes never matters.
            chance = mass / (mass + 1 - share) if mass else 0.0
        if coins[index] < chance:
            accepted, own = index + 1, rest
    return Acceptance.first(accepted, own.pick(uniforms[accepted]))


def _drawn(drafts: Sequence[int], drafted: Sequence[Distribution]) -> int:
    """How many drafts their distributions could have drawn, up to the first that came from elsewhere: it proves nothing."""
    for index, (draft, q) in enumerate(zip(drafts, drafted, strict=True)):
        if q.probability(draft) == 0:
            return index
    return len(drafts)


def _lacking(p: Distribution, q: Distribution, share: float = 1.0) -> tuple[Distribution, float]:
    """The residual max(share * p - q, 0), normalised, and its mass; p where it has none, since q is then p but for rounding."""
    rest = np.maximum(share * p.probabilities - q.over(p.tokens), 0)
    mass = float(rest.sum())
    return (Distribution(p.tokens, rest / mass), mass) if mass > 0 else (p, 0.0)
