"""The KV rows of one sequence as a neural processor reads them: integers, the values transposed, in tensors of a fixed size.

A call's new rows are copied in as they are, because a slice has the scale of its tensor, and so has every reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from paceline.kv_cache import KVCache, aligned_zeros
from paceline.npu.profile import NpuProfile
from paceline.npu.signatures import cache_slice, slots
from paceline.signatures import CacheKind, CacheSpec


class NpuRows:
    """Tensors for the rows that a `KVCache` counts.

    Attributes:
        context: slots of the full caches now; `cover` changes it, and all arrays with it.
        arrays: name -> keys [1, K, S, H] or values [1, K, H, S], as the graphs are given them.
        views: name -> the same memory as [1, K, S, H]; the cache moves rows in it.
    """

    def __init__(self, cache: KVCache, profile: NpuProfile, part: str, specs: Sequence[CacheSpec]):
        self.cache, self.profile, self.part, self.specs = cache, profile, part, tuple(specs)
        self.context = 0
        self.arrays: dict[str, NDArray[Any]] = {}
        self.views: dict[str, NDArray[Any]] = {}
        cache.forms.append(self.views)
        self.cover(0)

    def cover(self, rows: int) -> bool:
        """Makes the full caches as large as `rows` rows need; whether the arrays are others now."""
        needed = next((size for size in self.profile.contexts if size >= rows), self.profile.contexts[-1])
        if needed <= self.context:
            return False
        old, self.context = dict(self.views), needed
        for spec in self.specs:
            if spec.kind is CacheKind.LOCAL and spec.key in old:
                continue
            held = slots(spec.kind, self.cache.window, needed)
            for name, shape, turned in (
                (spec.key, (1, spec.kv_heads, held, spec.head_dim), False),
                (spec.value, (1, spec.kv_heads, spec.head_dim, held), True),
            ):
                array = aligned_zeros(shape, self.profile.dtype)
                self.arrays[name], self.views[name] = array, array.swapaxes(2, 3) if turned else array
                if name in old:
                    self.views[name][:, :, : old[name].shape[2]] = old[name]
        return True

    def write(self, outputs: Mapping[str, NDArray[Any]], start: int, count: int) -> None:
        """Copies the first `count` rows of a call's slices to the slots of row `start` and on."""
        for spec in self.specs:
            first = self._slot(spec, start)
            self.views[spec.key][:, :, first : first + count] = outputs[cache_slice(spec.key)][:, :, :count]
            values = outputs[cache_slice(spec.value)].swapaxes(2, 3)
            self.views[spec.value][:, :, first : first + count] = values[:, :, :count]

    def from_floats(self, start: int, count: int) -> None:
        """Takes rows that the CPU's graphs have written."""
        for name, rows in self._places(start, count):
            scale = self.profile.scale(self.part, name)
            numbers = self.cache.buffers[name][:, :, rows]
            self.views[name][:, :, rows] = numbers if scale is None else scale.integers(numbers, self.profile.dtype)

    def to_floats(self, specs: Sequence[CacheSpec], start: int, count: int) -> None:
        """Gives rows to the CPU's graphs, of the tensors that these read."""
        wanted = {name for spec in specs for name in (spec.key, spec.value)}
        for name, rows in self._places(start, count):
            if name in wanted:
                scale, integers = self.profile.scale(self.part, name), self.views[name][:, :, rows]
                self.cache.buffers[name][:, :, rows] = integers if scale is None else scale.numbers(integers)

    def _places(self, start: int, count: int) -> list[tuple[str, slice]]:
        found = []
        for spec in self.specs:
            first = self._slot(spec, start)
            found += [(name, slice(first, first + count)) for name in (spec.key, spec.value)]
        return found

    def _slot(self, spec: CacheSpec, row: int) -> int:
        return row - (self.cache.local_start if spec.kind is CacheKind.LOCAL else 0)
