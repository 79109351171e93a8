"""On LiteRT a verified row is the decoded row, bit for bit, and so drafting cannot change even a close decision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_pair import PROMPTS

import paceline
from paceline.generate import MAX_DRAFT_LENGTH
from paceline.kv_cache import KVCache
from paceline.signatures import GROWTH_SLOTS, VERIFY, CacheKind
from paceline.target import Target

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


@pytest.fixture(scope="module", params=["tiny", "small"])
def decoded(request: pytest.FixtureRequest, tiny_bundle: Path, small_bundle: Path) -> Decoded:
    bundle, threads = (tiny_bundle, 1) if request.param == "tiny" else (small_bundle, 2)
    model = paceline.load(bundle, backend="litert", threads=threads, capacity=1024)
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


@settings(max_examples=20)
@given(rounds=st.lists(st.tuples(st.integers(1, max(VERIFY)), st.integers(1, max(VERIFY))), min_size=40, max_size=160))
def test_no_history_of_rejections_shows_in_a_single_bit(decoded: Decoded, rounds: list[tuple[int, int]]) -> None:
    target = new_target(decoded.model)
    for count, kept in rounds:
        if target.cache.length + count > ROWS:
            break
        assert differing_rows(target, decoded, count) == []
        target.commit(min(count, kept))


def test_drafting_changes_no_token_and_both_backends_write_the_same(small_bundle: Path) -> None:
    """Twenty prompts, 256 tokens each: draft lengths 0 to 7 on litert, and plain decoding on onnxruntime."""
    litert, onnxruntime = (paceline.load(small_bundle, backend=name) for name in ("litert", "onnxruntime"))
    assert len(PROMPTS) == 20
    for prompt in PROMPTS:
        plain = [piece.token for piece in litert.generate(prompt, max_new_tokens=NEW_TOKENS, draft_length=0)]
        for length in range(1, MAX_DRAFT_LENGTH + 1):
            drafted = litert.generate(prompt, max_new_tokens=NEW_TOKENS, draft_length=length)
            assert [piece.token for piece in drafted] == plain
        other = "".join(piece.text for piece in onnxruntime.generate(prompt, max_new_tokens=NEW_TOKENS, draft_length=0))
        assert other == "".join(piece.text for piece in litert.generate(prompt, max_new_tokens=NEW_TOKENS))
