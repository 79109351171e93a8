"""What the rows of a call see of the cache, as numbers that are added to the scores: the same for every backend."""

from __future__ import annotations

from paceline import signatures
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

    def show(self, row: int, end: int) -> None:
        """Lets a row see the cache rows below `end`, in local caches the newest `window` of them."""
        cache = self.cache
        for kind, array in self.arrays.items():
            first, last = 0, end
            if kind is CacheKind.LOCAL:
                first, last = max(cache.local_start, end - cache.window) - cache.local_start, end - cache.local_start
            array[0, 0, row] = signatures.MASKED
            array[0, 0, row, first:last] = 0
