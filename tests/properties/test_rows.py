"""A verified row is the decoded row, bit for bit, on either backend, and so drafting cannot change even a close decision."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_pair import DRAFTER, PROMPTS, TARGET

import paceline
from paceline.backends import BACKENDS
from paceline.generate import MAX_DRAFT_LENGTH
from paceline.kv_cache import KVCache
from paceline.signatures import GROWTH_SLOTS, VERIFY, CacheKind
from paceline.target import Target
from paceline_export.bundle import FORMATS, export

# The window is 16 and 64 rows; local caches move after 128 more, full ones grow at 256 and 512.
ROWS = 2 * GROWTH_SLOTS + 40
NEW_TOKENS = 256


@dataclass
class Decoded:
    """A text, what decode calls alone said of every token of it, and the cache they left."""

    model: paceline.Model
    text: list[int]
    rows: NDArray[np.float32]  # [T, V + D] logits and activations
    cache: KVCache


@pytest.fixture(scope="module")
def rounded_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained pair in the default recipe, in both formats."""
    out = tmp_path_factory.mktemp("bundles") / "rounded"
    export(TARGET, DRAFTER, out, lambda *_: None, tuple(FORMATS))
    return out


@pytest.fixture(scope="module", params=itertools.product(BACKENDS, ["tiny", "small", "rounded"]), ids="-".join)
def decoded(request: pytest.FixtureRequest) -> Decoded:
    backend, name = request.param
    bundle, threads = request.getfixturevalue(f"{name}_bundle"), 2 if name == "small" else 1
    model = paceline.load(bundle, backend=backend, threads=threads, capacity=1024)
    text = [int(t) for t in np.random.default_rng(0).integers(3, model.manifest.vocab_size, ROWS)]
    target, rows = new_target(model), []
    for token in text:
        verified = target.verify([token])
        rows.append(np.concatenate([verified.logits[0], verified.activations[0]]))
        target.commit(1)
    return Decoded(model, text, np.array(rows), target.cache)


def new_target(model: paceline.Model) -> Target:
    cache = KVCache(model.manifest.caches, model.manifest.window, model.capacity)
    return Target(model.backend.bind(cache), cache)


def differing_rows(target: Target, decoded: Decoded, count: int) -> list[int]:
    """Verifies the next `count` tokens; the positions whose logits or activations are not those of decode."""
    start = target.cache.length
    verified = target.verify(decoded.text[start : start + count])
    found = np.concatenate([verified.logits, verified.activations], axis=1)
    return [start + row for row in range(count) if not np.array_equal(found[row], decoded.rows[start + row])]


@pytest.mark.parametrize("count", range(2, MAX_DRAFT_LENGTH + 2))
def test_rows_of_verify_are_those_of_decode_bit_for_bit(decoded: Decoded, count: int) -> None:
    """At every position before, at and past the window, where local caches move and where full ones grow."""
    target, differing = new_target(decoded.model), []
    while target.cache.length + count <= ROWS:
        differing += differing_rows(target, decoded, count)
        target.commit(count)
    assert differing == []
    assert target.cache.length > 2 * GROWTH_SLOTS
    assert target.cache.local_start > 0
    left = ROWS - target.cache.length
    for spec in target.cache.specs:
        for name in (spec.key, spec.value):
            ours, theirs = (cache.view(spec, name, 0) for cache in (target.cache, decoded.cache))
            if spec.kind is CacheKind.LOCAL:
                ours, theirs = ours[:, left:], theirs[:, : theirs.shape[1] - left]
            assert np.array_equal(ours, theirs[:, : ours.shape[1]])


@settings(max_examples=10)
@given(rounds=st.lists(st.tuples(st.integers(1, max(VERIFY)), st.integers(1, max(VERIFY))), min_size=40, max_size=160))
def test_no_history_of_rejections_shows_in_a_single_bit(decoded: Decoded, rounds: list[tuple[int, int]]) -> None:
    target = new_target(decoded.model)
    for count, kept in rounds:
        if target.cache.length + count > ROWS:
            break
        assert differing_rows(target, decoded, count) == []
        target.commit(min(count, kept))


def texts(model: paceline.Model, draft_lengths: Sequence[int]) -> list[list[int]]:
    """Of eight prompts, 256 tokens each: plain, and with two of the draft lengths in turn, which must write the same."""
    plain, turns = [], itertools.cycle(draft_lengths)
    for prompt in PROMPTS[::2][:8]:
        lengths = (0, next(turns), next(turns))
        ways = [[p.token for p in model.generate(prompt, max_new_tokens=NEW_TOKENS, draft_length=k)] for k in lengths]
        assert all(way == ways[0] for way in ways)
        plain.append(ways[0])
    return plain


def test_drafting_changes_no_token_and_both_backends_write_the_same(small_bundle: Path) -> None:
    """All draft lengths on litert, and some on onnxruntime, whose float32 kernels choose the same tokens here."""
    litert, onnxruntime = (paceline.load(small_bundle, backend=name, threads=1) for name in BACKENDS)
    assert texts(litert, range(1, MAX_DRAFT_LENGTH + 1)) == texts(onnxruntime, (3, 7, 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_drafting_changes_no_token_of_rounded_weights(backend: str, rounded_bundle: Path) -> None:
    texts(paceline.load(rounded_bundle, backend=backend, threads=1), (3, 7, 2))
