"""How a generation draws its drafts and judges them: one object for both, because sampled drafts need to be remembered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from secrets import randbits
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.acceptance import (
    Acceptance,
    SyntheticAcceptance,
    accept_block,
    accept_chosen,
    accept_sampled,
)
from paceline.backends.base import DraftStep
from paceline.drafts import Drafts
from paceline.sampler import Distribution, Sampler, uniform
from paceline.sampling import GREEDY, Sampling

TEXT, COINS, DRAFTS = range(3)  # streams of random numbers


class Drafting(Enum):
    """How drafts are drawn and judged where the target samples; the text's distribution is the target's own in all."""

    GREEDY = "greedy"  # the likeliest token; kept while the target samples the same. A seed gives one text at any draft length
    TREE = "tree"  # the likeliest paths as a tree; kept along the one that the target samples, and greedily too
    SAMPLED = "sampled"  # drawn from the drafter's distribution, and judged token by token
    BLOCK = "block"  # the same, and judged together


class Rule(Protocol):
    """Serves one generation.

    Attributes:
        may_stop: whether drafting may stop early where the drafter is not sure.
        branching: whether the drafter's drafts are a tree; `choose` has no part in it then.
    """

    may_stop: bool
    branching: bool

    def choose(self, step: DraftStep) -> int:
        """The draft after a step of the drafter."""

    def accept(self, drafts: Drafts, logits: NDArray[np.float32]) -> Acceptance:
        """Judges a round's K drafts by the target's logits [K + 1, V]; what it accepts is emitted."""

    def right(self, guess: int, first: int, logits: NDArray[np.float32]) -> bool:
        """Whether a draft that was not verified would have been kept, where the target wrote `first` by `logits` [V]."""


class Lossless:
    """A rule that writes what the target writes, so that a guess can be compared with it."""

    def __init__(self, branching: bool = False):
        self.branching, self.may_stop = branching, not branching

    def choose(self, step: DraftStep) -> int:
        """See `Rule`."""
        return step.token

    def right(self, guess: int, first: int, logits: NDArray[np.float32]) -> bool:
        """See `Rule`."""
        return guess == first


class Greedy(Lossless):
    """The likeliest token, of both models."""

    def accept(self, drafts: Drafts, logits: NDArray[np.float32]) -> Acceptance:
        """See `Rule`."""
        return accept_chosen(drafts, lambda row, _: int(logits[row].argmax()))


class Sampled(Lossless):
    """The target samples; the drafter's drafts are its likeliest tokens."""

    def __init__(self, sampling: Sampling, vocab_size: int, prompt: Iterable[int], branching: bool = False):
        super().__init__(branching)
        self.sampler = Sampler(sampling, vocab_size, prompt)
        self.seed = randbits(64) if sampling.seed is None else sampling.seed
        self.emitted = 0

    def accept(self, drafts: Drafts, logits: NDArray[np.float32]) -> Acceptance:
        """See `Rule`."""
        outcome = self._judge(drafts, logits)
        for token in (*drafts.at(outcome.rows), outcome.token):
            self.sampler.push(token)
            self.emitted += 1
        return outcome

    def _judge(self, drafts: Drafts, logits: NDArray[np.float32]) -> Acceptance:
        return accept_chosen(
            drafts, lambda row, ahead: self.sampler.distribution(logits[row], ahead).pick(self._uniform(len(ahead)))
        )

    def _uniform(self, place: int) -> float:
        """The number that belongs to a place behind the text."""
        return uniform(self.seed, self.emitted + place, TEXT)


class Synthetic:
    """Keeps drafts by chance, for timing only: the text is not the target's."""

    may_stop = branching = False  # the drafter's sureness says nothing of what is kept

    def __init__(self, acceptance: SyntheticAcceptance):
        self.acceptance = acceptance

    def choose(self, step: DraftStep) -> int:
        """See `Rule`."""
        return step.token

    def accept(self, drafts: Drafts, logits: NDArray[np.float32]) -> Acceptance:
        """See `Rule`."""
        return self.acceptance(drafts.tokens, logits)

    def right(self, guess: int, first: int, logits: NDArray[np.float32]) -> bool:
        """See `Rule`."""
        return self.acceptance([guess], np.stack([logits, logits])).accepted == 1


class SampledDrafts(Sampled):
    """Both sample. The drafter draws with the target's temperature and filters, from the tokens that it scored."""

    def __init__(self, sampling: Sampling, vocab_size: int, prompt: Iterable[int], block: bool):
        super().__init__(sampling, vocab_size, prompt)
        self.may_stop = False  # judged together, drafts must not decide how many there are
        filters = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        self.drafter_sampler = Sampler(filters, vocab_size, ())
        self.judge = accept_block if block else accept_sampled
        self.drafted: list[Distribution] = []
        self.drawn = self.judged = 0  # drafts of all rounds, because every one needs random numbers of its own

    def choose(self, step: DraftStep) -> int:
        """See `Rule`."""
        among = self.drafter_sampler.distribution(step.logits)
        tokens = step.scored[among.tokens].astype(np.int64)
        ascending = tokens.argsort()
        self.drafted.append(Distribution(tokens[ascending], among.probabilities[ascending]))
        self.drawn += 1
        return self.drafted[-1].pick(uniform(self.seed, self.drawn, DRAFTS))

    def _judge(self, drafts: Drafts, logits: NDArray[np.float32]) -> Acceptance:
        tokens = drafts.tokens
        # Drafts from elsewhere are sure of themselves.
        drafted = self.drafted or [Distribution(np.array([draft]), np.ones(1)) for draft in tokens]
        uniforms = [self._uniform(place) for place in range(len(tokens) + 1)]
        coins = [uniform(self.seed, self.judged + place, COINS) for place in range(len(tokens))]
        self.drafted, self.judged = [], self.judged + len(tokens)
        return self.judge(tokens, drafted, lambda row: self.sampler.distribution(logits[row], tokens[:row]), uniforms, coins)


def rule_for(sampling: Sampling, drafting: Drafting, vocab_size: int, prompt: Iterable[int]) -> Rule:
    """The rule of one generation.

    Raises:
        InputError: a biased or banned token is not in the vocabulary.
    """
    if sampling == replace(GREEDY, seed=sampling.seed):
        return Greedy(branching=drafting is Drafting.TREE)
    if drafting in (Drafting.GREEDY, Drafting.TREE) or sampling.temperature == 0:
        return Sampled(sampling, vocab_size, prompt, branching=drafting is Drafting.TREE)
    return SampledDrafts(sampling, vocab_size, prompt, drafting is Drafting.BLOCK)
