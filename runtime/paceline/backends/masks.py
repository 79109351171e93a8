"""What the rows of a call see of the cache, as numbers that are added to the scores: the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence

from paceline import signatures
from paceline.drafts import RowPath
from paceline.kv_cache import KVCache, aligned_zeros
from paceline.signatures import CacheKind


class Masks:
    """Masks of a call of `rows` rows: 0 where a row sees a slot and a very negative number elsewhere.

    Attributes:
        arrays: kind of cache -> float32 [1, 1, T, S]; the full caches' S grows with what `cover` is asked for.
    """

    def __init__(self, cache: KVCache, rows: int):
        self.cache, self.rows, self.slots = cache, rows, 0
        self.arrays = {CacheKind.LOCAL: aligned_zeros((1, 1, rows, cache.local_slots))}

    def cover(self, rows: int) -> bool:
        """Makes room for `rows` rows in a full cache; whether `arrays` and the views of the caches must be bound anew."""
        slots = self.cache.visible_slots(rows)
        if slots == self.slots:
            return False
        self.slots = slots
        self.arrays[CacheKind.FULL] = aligned_zeros((1, 1, self.rows, slots))
        return True

    def show(self, row: int, start: int, path: RowPath = ()) -> None:
        """Lets a row see the cache rows below `start` and a path behind them, in local caches the newest `window` of these."""
        for kind, array in self.arrays.items():
            base, first, seen = seen_rows(self.cache, kind, start, path)
            line = array[0, 0, row]
            line[:] = signatures.MASKED
            line[first - base : start - base] = 0
            if isinstance(seen, range):  # of a prefill it can have a thousand rows
                line[start + seen.start - base : start + seen.stop - base] = 0
            else:
                line[[start + each - base for each in seen]] = 0


def seen_rows(cache: KVCache, kind: CacheKind, start: int, path: RowPath) -> tuple[int, int, RowPath]:
    """Of the rows below `start` and a path behind them, those that a row sees in caches of a kind.

    Returns:
        the row in slot 0, the first row that is seen, and what of the path is: in local caches the newest `window` of all.
    """
    if kind is CacheKind.FULL:
        return 0, 0, path
    base, end = cache.local_start, start + len(path)
    return base, max(base, end - cache.window), path[-cache.window :]


def path_of(row: int, paths: Sequence[RowPath]) -> RowPath:
    """A row's path; without one it continues the row before it."""
    return paths[row] if row < len(paths) else range(row + 1)
