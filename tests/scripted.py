"""A pair without numbers: the target's next token is a function of the rows it sees, the drafts are given.

It keeps, as a real cache does, a row for every position that was ever written, so that a loop which shows it a stale
row or a wrong position gets other tokens than plain decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.backends.base import DraftStep, Verified
from paceline.drafter import Drafter
from paceline.drafts import RowPath
from paceline.kv_cache import KVCache
from paceline.target import Target

VOCABULARY, WIDTH = 50, 4
Drafts = Callable[[Sequence[int], int], int]  # the text so far, the true next token -> the drafted one


def next_token(text: Sequence[int]) -> int:
    """The scripted target's greedy choice after `text`."""
    return hash(tuple(text)) % VOCABULARY


class ScriptedGraphs:
    """Implements `Graphs`. `calls` counts target passes; `drafts` makes the drafter's tokens."""

    def __init__(self, cache: KVCache, drafts: Drafts):
        self.cache, self.drafts = cache, drafts
        self.rows: dict[int, int] = {}
        self.calls = 0
        self.drafted: list[int] = []

    def prefill(self, tokens: NDArray[np.int64]) -> None:
        self.calls += 1
        for index, token in enumerate(tokens):
            self.rows[self.cache.length + index] = int(token)

    def verify(self, tokens: NDArray[np.int64], paths: Sequence[RowPath]) -> Verified:
        self.prefill(tokens)
        self.drafted = []
        logits = np.zeros((len(tokens), VOCABULARY), np.float32)
        activations = np.zeros((len(tokens), WIDTH), np.float32)
        for row in range(len(tokens)):
            path = paths[row] if paths else range(row + 1)
            seen = [self.rows[p] for p in (*range(self.cache.length), *(self.cache.length + own for own in path))]
            logits[row, next_token(seen)] = 1.0
            activations[row] = len(seen)
        return Verified(logits, activations)

    def draft(self, token: int, hidden: NDArray[np.float32]) -> DraftStep:
        committed = [self.rows[p] for p in range(self.cache.length)]
        if not self.drafted:
            assert hidden[0] == len(committed), "the hidden state is not of the row that produced the pending token"
        self.drafted.append(token)
        text = committed + self.drafted
        drafted = self.drafts(text, next_token(text))
        logits = np.where(np.arange(VOCABULARY) == drafted, 1, -np.inf).astype(np.float32)  # sure of it
        return DraftStep(drafted, 1.0, 1.0, np.full(WIDTH, -1, np.float32), logits, np.arange(VOCABULARY))


def scripted_pair(drafts: Drafts, capacity: int = 400) -> tuple[Target, Drafter, ScriptedGraphs]:
    """A target and drafter on an empty cache that has only lengths."""
    cache = KVCache([], window=16, capacity=capacity)
    graphs = ScriptedGraphs(cache, drafts)
    return Target(graphs, cache), Drafter(graphs), graphs


def plain(prompt: Sequence[int], count: int) -> list[int]:
    """What plain greedy decoding emits."""
    text = list(prompt)
    for _ in range(count):
        text.append(next_token(text))
    return text[len(prompt) :]
