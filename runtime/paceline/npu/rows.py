"""The KV rows of one sequence as a neural processor reads them: integers, the values transposed, in tensors of a fixed size.

A call's new rows are copied in as they are, because a slice has the scale of its tensor, and so has every reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from paceline.kv_cache import KVCache, aligned_zeros
from paceline.npu.profile import NpuProfile
from paceline.npu.signatures import cache_slice, context_of, slots
from paceline.signatures import CacheKind, CacheSpec


class NpuRows:
    """Tensors for the rows that a `KVCache` counts.

    Attributes:
        context: slots of the full caches now.
        arrays: name -> keys [1, K, S, H] or values [1, K, H, S], as the graphs are given them.
        views: name -> the same memory as [1, K, S, H]; the cache moves rows in it.
    """

    def __init__(self, cache: KVCache, profile: NpuProfile, part: str, specs: Sequence[CacheSpec]):
        self.cache, self.profile, self.part, self.specs = cache, profile, part, tuple(specs)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.views: dict[str, NDArray[Any]] = {}
        self._sizes: dict[int, dict[str, NDArray[Any]]] = {}  # context -> arrays; local caches are in all of them
        cache.forms.append(self.views)
        self.context = profile.contexts[0]
        self._take(self.context)

    def pieces(self, start: int, count: int) -> Iterator[tuple[int, int]]:
        """Cuts a call's rows, `count` from `start` on, where caches of another size begin; goes to these while they are used.

        Yields the first row and the number of rows of each piece.
        """
        first = start
        while first < start + count:
            self.at(first)
            own = [row for row in range(first, start + count) if context_of(row, self.profile.contexts) == self.context]
            yield first, len(own)
            first += len(own)

    def at(self, row: int) -> None:
        """Goes to caches of the size where a row is computed, with the rows below it that there are."""
        needed = context_of(row, self.profile.contexts)
        if needed == self.context:
            return
        old = dict(self.views)
        self.context = needed
        self._take(needed)
        for spec in self.specs:
            if spec.kind is CacheKind.FULL:
                for name in (spec.key, spec.value):
                    kept = min(row, old[name].shape[2])  # costs are measured behind rows that nobody has written
                    self.views[name][:, :, :kept] = old[name][:, :, :kept]

    def _take(self, context: int) -> None:
        if context not in self._sizes:
            self._sizes[context] = {**self.arrays} | self._made(context)
        self.arrays.clear()
        self.arrays.update(self._sizes[context])
        turned = {spec.value for spec in self.specs}
        self.views.clear()
        self.views.update({name: a.swapaxes(2, 3) if name in turned else a for name, a in self.arrays.items()})

    def _made(self, context: int) -> dict[str, NDArray[Any]]:
        """New arrays: of the full caches, and at first of the local ones."""
        made = {}
        for spec in self.specs:
            if spec.kind is CacheKind.LOCAL and spec.key in self.arrays:
                continue
            held = slots(spec.kind, self.cache.window, context)
            made[spec.key] = aligned_zeros((1, spec.kv_heads, held, spec.head_dim), self.profile.dtype)
            made[spec.value] = aligned_zeros((1, spec.kv_heads, spec.head_dim, held), self.profile.dtype)
        return made

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
