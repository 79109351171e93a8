"""The target's own sampler: a row of logits -> what the next token is drawn from, and the numbers to draw it with.

Pure numpy, a row at a time; which drafts are accepted is for `acceptance.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError, PacelineError
from paceline.sampling import MOST, Sampling, require

_FIRST_NUCLEUS = 256  # candidates that top-p without top-k sorts first; a guess, enough for most rows of a language model


@dataclass(frozen=True)
class Distribution:
    """Which tokens can come next, and how likely each is.

    Attributes:
        tokens: [C] int64, ascending ids.
        probabilities: [C] float64, their sum is 1.
    """

    tokens: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def probability(self, token: int) -> float:
        """Of one token; 0 where it is not among the candidates."""
        slot = int(self.tokens.searchsorted(token))
        return float(self.probabilities[slot]) if slot < len(self.tokens) and self.tokens[slot] == token else 0.0

    def over(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probabilities of other candidates. tokens: [N] -> [N]; 0 for those that are not among these."""
        slots = np.minimum(self.tokens.searchsorted(tokens), len(self.tokens) - 1)
        return np.where(self.tokens[slots] == tokens, self.probabilities[slots], 0.0)

    def pick(self, u: float) -> int:
        """The first token up to which the probabilities sum to more than u, 0 <= u < 1; never one of probability 0."""
        sums = self.probabilities.cumsum()
        return int(self.tokens[sums.searchsorted(u * sums[-1], side="right")])  # u * sum < sum also after rounding


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """A number in [0, 1) that depends on the arguments only, so that any program can make it again.

    It is the top 53 bits of output `position` of a SplitMix64 generator, divided by 2**53. Its seed is output `stream` of a
    SplitMix64 generator with the seed `seed`. Outputs count from 0, and output i of seed s is, modulo 2**64:

        z = s + (i + 1) * 0x9E3779B97F4A7C15
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB
        z ^ (z >> 31)

    Source: G. Steele and others, "Fast Splittable Pseudorandom Number Generators" (2014); S. Vigna's splitmix64.c.

    Args:
        seed: 64 bits.
        position: in stream 0 the index of the emitted token, the first is 0, so that a text does not depend on its rounds.
        stream: another one for every other use.
    """
    return (_splitmix64(_splitmix64(seed, stream), position) >> 11) / 2**53


class Sampler:
    """Settings and the history they look at: the tokens of the prompt and of the output so far.

    Raises:
        InputError: a biased or banned token is not in the vocabulary, or all of it is banned.
    """

    def __init__(self, settings: Sampling, vocab_size: int, prompt: Iterable[int]):
        for token in (*settings.logit_bias, *settings.banned):
            require("a biased or banned token", token, int, 0, vocab_size - 1)
        if len(settings.banned) == vocab_size:
            raise InputError(f"all {vocab_size} tokens are banned; leave at least one.")
        self.settings = settings
        self._seen = set(prompt)
        self._output: Counter[int] = Counter()
        self._biased = np.array(list(settings.logit_bias), np.int64)
        self._biases = np.array(list(settings.logit_bias.values()), np.float32)
        self._banned = np.array(sorted(settings.banned), np.int64)

    def push(self, token: int) -> None:
        """Takes an emitted token into the history."""
        self._seen.add(token)
        self._output[token] += 1

    def distribution(self, logits: NDArray[np.float32], ahead: Sequence[int] = ()) -> Distribution:
        """What the target draws the next token from; the filters act in this order.

        1. bias is added, bans become -inf;
        2. repetition penalty: divides positive logits of tokens of prompt and output, multiplies the others (Keskar and others
           2019; transformers); then presence + frequency * count is subtracted for tokens of the output (OpenAI);
        3. temperature: 0 ends here with the likeliest token alone, of equal ones the lowest id;
        4. top-k: the k likeliest, of equal ones the lowest ids;
        5. top-p: of what is left, the likeliest down to the first with which their share reaches p; always one;
        6. min-p: of what is left, those at least min_p times as likely as the likeliest.

        Weights are computed in float32, as transformers does, and summed in float64. Without top-k, top-p sorts as few
        tokens as it needs.

        Args:
            logits: [V]; not changed.
            ahead: accepted drafts of this round, which are not pushed yet.

        Raises:
            PacelineError: the largest logit is not a finite number.
        """
        row, settings = self._adjusted(logits, ahead), self.settings
        best = int(row.argmax())  # a NaN counts as the largest
        highest, temperature = row[best], settings.temperature
        if not np.isfinite(highest):
            raise PacelineError(f"the largest logit is {highest}, which is no number to sample with; the model is broken.")
        if temperature == 0:
            return Distribution(np.array([best]), np.ones(1))
        top_k = settings.top_k if settings.top_k is not None and settings.top_k < len(row) else None
        top_p = settings.top_p if settings.top_p is not None and settings.top_p < 1 else None
        if top_k is None and top_p is None:
            tokens, weights = np.arange(len(row)), _weights(row, highest, temperature)
        else:
            tokens = np.sort(_likeliest(row, highest, temperature, top_k, top_p))
            weights = _weights(row[tokens], highest, temperature)
        kept = np.flatnonzero((weights > 0) & (weights >= (settings.min_p or 0)))  # the likeliest token's weight is 1
        probabilities = weights[kept].astype(np.float64)
        return Distribution(tokens[kept], probabilities / probabilities.sum())

    def _adjusted(self, logits: NDArray[np.float32], ahead: Sequence[int]) -> NDArray[np.float32]:
        """The logits after steps 1 and 2; the row itself where they change nothing. [V] -> [V]."""
        settings = self.settings
        repetition = settings.repetition_penalty != 1
        counted = settings.presence_penalty != 0 or settings.frequency_penalty != 0
        if not (len(self._biased) or len(self._banned) or repetition or counted):
            return logits
        row = logits.copy()
        row[self._biased] += self._biases
        row[self._banned] = -np.inf
        if repetition:
            seen = np.array([*self._seen.union(ahead)], np.int64)
            values = row[seen]
            row[seen] = np.where(values > 0, values / settings.repetition_penalty, values * settings.repetition_penalty)
        if counted:
            counts = self._output.copy()
            counts.update(ahead)
            output = np.array([*counts], np.int64)
            row[output] -= settings.presence_penalty + settings.frequency_penalty * np.array([*counts.values()], np.float32)
        return row


def _weights(values: NDArray[np.float32], highest: np.float32, temperature: float) -> NDArray[np.float32]:
    """[N] logits -> [N] likelihoods against the row's highest logit, whose own is 1."""
    weights: NDArray[np.float32] = np.exp((values - highest) / temperature)
    return weights


def _likeliest(
    row: NDArray[np.float32], highest: np.float32, temperature: float, top_k: int | None, top_p: float | None
) -> NDArray[np.int64]:
    """The tokens that top-k and top-p leave, likeliest first; one of both is on. [V] -> [C]."""
    if top_p is None:
        return largest(row, top_k or len(row))
    size = top_k or _FIRST_NUCLEUS
    whole = None if top_k else _weights(row, highest, temperature).sum(dtype=np.float64)
    while True:
        tokens = largest(row, size)
        sums = _weights(row[tokens], highest, temperature).cumsum(dtype=np.float64)
        share = top_p * (sums[-1] if whole is None else whole)
        if sums[-1] >= share or size >= len(row):
            return tokens[: int(sums.searchsorted(share)) + 1]
        size *= 16


def largest(row: NDArray[np.float32], size: int) -> NDArray[np.int64]:
    """Ids of the `size` largest values, the largest first, of equal ones the lowest id first. [V] -> [min(size, V)]."""
    size = min(size, len(row))
    edge = np.partition(row, -size)[-size]  # the smallest that belongs to them, so the whole row need not be sorted
    tokens = np.flatnonzero(row >= edge)
    return tokens[np.argsort(-row[tokens], kind="stable")[:size]]


def _splitmix64(seed: int, index: int) -> int:
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MOST
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MOST
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MOST
    return z ^ (z >> 31)
