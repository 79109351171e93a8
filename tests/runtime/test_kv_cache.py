"""What the cache promises: exact windows, exact rollback, errors before anything changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import CapacityError, RollbackError
from paceline.kv_cache import ALIGNMENT_BYTES, PADDING, KVCache
from paceline.signatures import PREFILL_CHUNK, ROW_BLOCK, CacheKind, CacheSpec, local_slots

WINDOW = 16
LOCAL, FULL = CacheSpec(0, CacheKind.LOCAL, 2, 4), CacheSpec(1, CacheKind.FULL, 2, 8)


def write(cache: KVCache, count: int) -> None:
    """What a graph does: row p of every tensor gets the value p."""
    cache.make_room(count)
    for position in range(cache.length, cache.length + count):
        for spec in cache.specs:
            slot = position - (cache.local_start if spec.kind is CacheKind.LOCAL else 0)
            cache.buffers[spec.key][:, :, slot] = cache.buffers[spec.value][:, :, slot] = position


def rows(cache: KVCache, spec: CacheSpec) -> list[int]:
    """The positions that a drafter sees, the same for every head and for keys and values."""
    views = [cache.view(spec, name, head) for name in (spec.key, spec.value) for head in range(spec.kv_heads)]
    seen = {tuple(view[0, :, 0].astype(int)) for view in views}
    assert len(seen) == 1
    return list(seen.pop())


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=120), st.integers(1, PREFILL_CHUNK))
def test_views_hold_the_newest_rows_after_any_rounds(rounds: list[tuple[int, int]], prompt: int) -> None:
    cache = KVCache([LOCAL, FULL], WINDOW, capacity=2000)
    write(cache, prompt)
    cache.commit(prompt)
    for count, kept in rounds:
        write(cache, count)
        cache.commit(min(kept, count))
        assert rows(cache, FULL) == list(range(cache.length))
        assert rows(cache, LOCAL) == list(range(max(0, cache.length - WINDOW), cache.length))


@given(st.lists(st.tuples(st.integers(1, PREFILL_CHUNK), st.integers(0, PREFILL_CHUNK)), min_size=1, max_size=60))
def test_local_caches_move_by_whole_blocks_and_leave_room_for_a_padded_call(rounds: list[tuple[int, int]]) -> None:
    """Then a row's slot is the same within its block, whatever calls came before."""
    cache = KVCache([LOCAL, FULL], WINDOW, capacity=60 * PREFILL_CHUNK)
    for count, kept in rounds:
        write(cache, count)
        padded = -(-count // (PADDING + 1)) * (PADDING + 1)
        assert cache.local_start % ROW_BLOCK == 0
        assert cache.length - cache.local_start + padded <= cache.local_slots
        assert cache.length + padded <= cache.visible_slots(cache.length + count) <= cache.buffers[FULL.key].shape[2]
        cache.commit(min(kept, count))


def test_local_caches_do_not_grow_with_the_capacity() -> None:
    small, large = (KVCache([LOCAL, FULL], WINDOW, capacity) for capacity in (1000, 100_000))
    assert small.buffers[LOCAL.key].shape == large.buffers[LOCAL.key].shape == (1, 2, local_slots(WINDOW), 4)


def test_buffers_are_aligned() -> None:
    cache = KVCache([LOCAL, FULL], WINDOW, 100)
    assert all(buffer.ctypes.data % ALIGNMENT_BYTES == 0 for buffer in cache.buffers.values())


def test_more_rows_than_the_capacity_are_refused_and_nothing_changes() -> None:
    cache = KVCache([LOCAL, FULL], WINDOW, 10)
    write(cache, 8)
    cache.commit(8)
    with pytest.raises(CapacityError, match=r"11 tokens .* capacity 10"):
        cache.make_room(3)
    assert cache.length == 8
    cache.make_room(2)


def test_rollback_forgets_rows_and_refuses_what_is_gone() -> None:
    cache = KVCache([LOCAL, FULL], WINDOW, 1000)
    write(cache, 100)
    cache.commit(100)
    cache.rollback(40)
    assert rows(cache, LOCAL) == list(range(40 - WINDOW, 40))
    for _ in range(2):
        write(cache, PREFILL_CHUNK)
        cache.commit(PREFILL_CHUNK)
    assert cache.local_start > 0
    oldest = cache.local_start + WINDOW
    with pytest.raises(RollbackError):
        cache.rollback(oldest - 1)
    with pytest.raises(RollbackError):
        cache.rollback(cache.length + 1)
    cache.rollback(oldest)
    assert rows(cache, LOCAL) == list(range(oldest - WINDOW, oldest))


def test_reset_starts_over() -> None:
    cache = KVCache([LOCAL, FULL], WINDOW, 1000)
    for _ in range(3):
        write(cache, 100)
        cache.commit(100)
    cache.reset()
    assert rows(cache, FULL) == rows(cache, LOCAL) == []
    assert np.isfinite(cache.buffers[FULL.key]).all()


def test_a_cache_larger_than_the_memory_is_refused_before_any_of_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.kv_cache.aligned_zeros", None)
    for specs, window, capacity in (([FULL], WINDOW, 1 << 50), ([LOCAL], 1 << 50, 9)):
        with pytest.raises(
            CapacityError, match=rf"a KV cache of capacity {capacity} takes .* GB and this machine has .* GB of"
        ):
            KVCache(specs, window, capacity)
