"""The loop on real graphs: rejections, rollbacks and chunks leave no trace in what the target says next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from reference import Reference

import paceline
from paceline.backends import BACKENDS
from paceline.backends.base import DraftStep, Graphs, Verified
from paceline.draft_length import Fixed
from paceline.drafter import Drafter
from paceline.drafts import RowPath
from paceline.generate import MAX_DRAFT_LENGTH, generate
from paceline.kv_cache import KVCache
from paceline.rules import Greedy
from paceline.signatures import PREFILL_CHUNK
from paceline.stats import Stats
from paceline.target import Target

TOLERANCE = 1e-4
CAPACITY = 512
STOPS = frozenset([1])  # the tiny pair's
# Prompts that end before, at and past the window, and around the point where local caches move their rows.
PROMPT_LENGTHS = [1, 2, tiny.WINDOW - 1, tiny.WINDOW, tiny.WINDOW + 1, 40, PREFILL_CHUNK + tiny.WINDOW - 3, 285]


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, tiny.VOCABULARY, count)]


class GivenDrafts:
    """The real graphs, but for the drafts: the known continuation, or another token where `right` says so."""

    def __init__(self, graphs: Graphs, cache: KVCache):
        self.graphs, self.cache = graphs, cache
        self.text: list[int] = []
        self.right: Sequence[bool] = [True]
        self.step = 0

    def prefill(self, tokens: NDArray[np.int64]) -> None:
        self.graphs.prefill(tokens)

    def verify(self, tokens: NDArray[np.int64], paths: Sequence[RowPath]) -> Verified:
        self.step = 0
        return self.graphs.verify(tokens, paths)

    def draft(self, token: int, hidden: NDArray[np.float32]) -> DraftStep:
        real = self.graphs.draft(token, hidden)  # runs as it would, on the rows it would see
        self.step += 1
        position = self.cache.length + self.step
        true = self.text[position] if position < len(self.text) else 0
        drafted = true if self.right[position % len(self.right)] else (true + 1) % tiny.VOCABULARY
        return replace(real, token=drafted)


@pytest.fixture(scope="module", params=BACKENDS)
def model(request: pytest.FixtureRequest, tiny_bundle: Path) -> paceline.Model:
    return paceline.load(tiny_bundle, backend=request.param, threads=1, capacity=CAPACITY)


@pytest.fixture(scope="module")
def reference(tiny_pair: tuple[Path, Path]) -> Reference:
    return Reference(*tiny_pair)


@pytest.fixture(scope="module")
def continuations(model: paceline.Model) -> dict[int, list[int]]:
    """Plain greedy continuations by prompt length."""
    return {
        length: [p.token for p in model.generate(some_tokens(length, length), max_new_tokens=24, draft_length=0)]
        for length in PROMPT_LENGTHS
    }


@pytest.fixture(scope="module")
def forced(model: paceline.Model) -> tuple[Target, Drafter, GivenDrafts]:
    cache = KVCache(model.manifest.caches, model.manifest.window, CAPACITY)
    graphs = GivenDrafts(model.backend.bind(cache), cache)
    return Target(graphs, cache), Drafter(graphs), graphs


def test_plain_decoding_is_the_references_greedy_text(continuations: dict[int, list[int]], reference: Reference) -> None:
    for length in (2, tiny.WINDOW, 40):
        assert continuations[length] == reference.greedy(some_tokens(length, length), 24)


@pytest.mark.parametrize("k", range(MAX_DRAFT_LENGTH + 1))
def test_the_drafters_own_drafts_give_the_plain_tokens(
    model: paceline.Model, continuations: dict[int, list[int]], k: int
) -> None:
    for length, expected in continuations.items():
        pieces = list(model.generate(some_tokens(length, length), max_new_tokens=24, draft_length=k))
        assert [piece.token for piece in pieces] == expected


@settings(max_examples=40)
@given(st.sampled_from(PROMPT_LENGTHS), st.integers(1, MAX_DRAFT_LENGTH), st.lists(st.booleans(), min_size=1, max_size=9))
def test_drafts_right_wrong_or_mixed_give_the_plain_tokens(
    continuations: dict[int, list[int]],
    forced: tuple[Target, Drafter, GivenDrafts],
    length: int,
    k: int,
    right: list[bool],
) -> None:
    target, drafter, graphs = forced
    prompt = some_tokens(length, length)
    graphs.text, graphs.right = prompt + continuations[length], right
    target.cache.reset()
    emitted = generate(
        target,
        drafter,
        prompt,
        rule=Greedy(),
        draft_length=Fixed(k),
        max_new_tokens=24,
        stop_ids=STOPS,
        stats=(stats := Stats()),
    )
    assert [e.token for e in emitted] == continuations[length]
    if all(right):
        assert stats.accepted == stats.drafted


@settings(max_examples=25)
@given(
    st.sampled_from(PROMPT_LENGTHS),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=8),
    st.integers(0, 1000),
)
def test_after_any_rejections_the_next_logits_are_those_of_a_fresh_sequence(
    model: paceline.Model, length: int, rounds: list[tuple[int, int]], seed: int
) -> None:
    """Rows of rejected drafts stay in the buffers, and must be invisible and overwritten. Every bit counts."""
    target, fresh = new_target(model), new_target(model)
    text = some_tokens(length, seed)
    target.prefill(text)
    for index, (rows, kept) in enumerate(rounds):
        block = some_tokens(rows, seed + index + 1)
        target.verify(block)
        target.commit(min(rows, kept))
        text += block[: min(rows, kept)]
    last = some_tokens(2, seed + 99)
    fresh.prefill(text[:length])
    for token in text[length:]:
        fresh.verify([token])
        fresh.commit(1)
    np.testing.assert_array_equal(target.verify(last).logits, fresh.verify(last).logits)


def new_target(model: paceline.Model) -> Target:
    cache = KVCache(model.manifest.caches, model.manifest.window, CAPACITY)
    return Target(model.backend.bind(cache), cache)


@settings(max_examples=25)
@given(st.lists(st.integers(1, PREFILL_CHUNK), min_size=1, max_size=6).filter(lambda parts: sum(parts) < 400))
def test_a_split_prefill_equals_one_prefill(model: paceline.Model, parts: list[int]) -> None:
    text = some_tokens(sum(parts) + 1)
    logits, caches = [], []
    for chunks in (parts, [sum(parts)]):
        target, start = new_target(model), 0
        for count in chunks:
            target.prefill(text[start : start + count])
            start += count
        caches.append(target.cache)
        logits.append(target.verify(text[-1:]).logits.copy())
    assert np.abs(logits[0] - logits[1]).max() <= TOLERANCE
    for spec in caches[0].specs:
        views = [cache.view(spec, spec.value, 0) for cache in caches]
        assert np.abs(views[0] - views[1]).max() <= TOLERANCE


def test_a_second_generation_is_not_disturbed_by_the_first(model: paceline.Model, continuations: dict[int, list[int]]) -> None:
    """Two at once, of which one sees more slots of its full caches, and one after another, also when one was left early."""
    first = model.generate(some_tokens(285, 285), max_new_tokens=24)
    second = model.generate(some_tokens(2, 2), max_new_tokens=24)
    pairs = [(next(first).token, next(second).token) for _ in range(10)]
    first.close()  # type: ignore[attr-defined]
    third = [piece.token for piece in model.generate(some_tokens(285, 285), max_new_tokens=24)]
    rest = [piece.token for piece in second]
    assert [a for a, _ in pairs] == continuations[285][:10]
    assert [b for _, b in pairs] + rest == continuations[2]
    assert third == continuations[285]
