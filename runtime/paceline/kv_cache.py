"""The KV rows of one sequence: one buffer a tensor, shared by every target call and by the drafter.

Full caches hold every row. Local caches hold the newest `window` rows and some slack: when the slack is used up, the
window's rows move to the front, once in more than a hundred tokens. So neither memory nor attention cost of a local layer grows
with the context, and a rollback is exact, because only committed rows are ever moved. They move by whole blocks, so that
the result of a row does not depend, not even in its last bit, on where its window lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from paceline.errors import CapacityError, RollbackError
from paceline.signatures import GROWTH_SLOTS, PREFILL, ROW_BLOCK, CacheKind, CacheSpec, in_steps, local_slots

ALIGNMENT_BYTES = 64  # what LiteRT asks of a tensor buffer
PADDING = min(PREFILL) - 1  # rows that a graph of fixed size may write beyond those asked for


class KVCache:
    """Owns the buffers, and the count of rows that are valid.

    Attributes:
        length: committed rows; rows at and above it are never visible.
        capacity: rows that the full caches can hold.
        local_start: position of the row in slot 0 of the local caches.
        buffers: tensor name -> float32 [1, K, slots, H].
        forms: these, and what else holds the same rows, tensor name -> [1, K, slots, H]; rows move in all of them.
    """

    def __init__(self, specs: Sequence[CacheSpec], window: int, capacity: int):
        """Allocates the buffers.

        Raises:
            CapacityError: they are larger than the machine's memory.
        """
        self.specs = tuple(specs)
        self.window, self.capacity = window, capacity
        self.local_slots = local_slots(window)
        self.length = self.local_start = 0
        slots = {CacheKind.LOCAL: self.local_slots, CacheKind.FULL: self.visible_slots(capacity)}
        shapes = {name: (1, s.kv_heads, slots[s.kind], s.head_dim) for s in self.specs for name in (s.key, s.value)}
        _require_memory(sum(prod(shape) for shape in shapes.values()) * np.dtype(np.float32).itemsize, capacity)
        self.buffers: dict[str, NDArray[np.float32]] = {name: aligned_zeros(shape) for name, shape in shapes.items()}
        self.forms: list[dict[str, NDArray[Any]]] = [self.buffers]

    def require_room(self, tokens: int) -> None:
        """Refuses `tokens` more rows than the capacity allows; changes nothing.

        Raises:
            CapacityError: with the numbers.
        """
        if self.length + tokens > self.capacity:
            raise CapacityError(
                f"{self.length + tokens} tokens do not fit in a KV cache of capacity {self.capacity}; "
                "shorten the prompt or load the bundle with a larger capacity."
            )

    def make_room(self, tokens: int) -> None:
        """Prepares for a call that writes rows length .. length + tokens - 1, at most PREFILL_CHUNK of them.

        The call may be padded by up to PADDING rows, which fall on slots of no meaning.

        Raises:
            CapacityError: they do not fit. Nothing has changed then.
        """
        self.require_room(tokens)
        if self.length - self.local_start + in_steps(tokens, PADDING + 1) > self.local_slots:
            self._move_window()

    def commit(self, rows: int) -> None:
        """Makes the first `rows` rows of the last call valid."""
        self.length += rows

    def compact(self, rows: Sequence[int]) -> None:
        """Moves rows that the last call wrote, counted from `length`, together behind its first one; their order stays."""
        for spec in self.specs:
            first = self.length - (self.local_start if spec.kind is CacheKind.LOCAL else 0)
            for tensor in self._tensors(spec):
                written = tensor[:, :, first:]
                written[:, :, 1 : 1 + len(rows)] = written[:, :, rows]

    def rollback(self, length: int) -> None:
        """Forgets the rows at and above `length`.

        Raises:
            RollbackError: `length` is beyond what is committed, or so far back that a local cache has lost rows.
        """
        oldest = 0 if self.local_start == 0 else self.local_start + self.window
        if not oldest <= length <= self.length:
            raise RollbackError(f"cannot roll back from {self.length} to {length} rows; {oldest} is as far as it goes")
        self.length = length

    def reset(self) -> None:
        """Starts a new sequence in the same buffers."""
        self.length = self.local_start = 0

    def visible_slots(self, rows: int) -> int:
        """Slots of a full cache that are enough for `rows` rows and PADDING; grows in steps."""
        return in_steps(rows + PADDING, GROWTH_SLOTS)

    def heads(self, kind: CacheKind, slots: int) -> dict[str, NDArray[np.float32]]:
        """The first `slots` slots of every KV tensor of a kind, by kv head: name -> [1, 1, S, H], contiguous, no copy."""
        return {
            name: self.buffers[tensor][:, head : head + 1, :slots]
            for spec in self.specs
            if spec.kind is kind
            for tensor in (spec.key, spec.value)
            for head, name in enumerate(spec.head_names(tensor))
        }

    def view(self, spec: CacheSpec, name: str, head: int) -> NDArray[np.float32]:
        """The committed rows that a drafter may see, of one kv head: [1, S, H], contiguous, no copy.

        A local cache gives the newest `window` rows, a full one gives all.
        """
        first, last = 0, self.length
        if spec.kind is CacheKind.LOCAL:
            first = max(self.local_start, self.length - self.window) - self.local_start
            last = self.length - self.local_start
        return self.buffers[name][:, head, first:last]

    def _move_window(self) -> None:
        start = (self.length - self.window) // ROW_BLOCK * ROW_BLOCK
        first, kept = start - self.local_start, self.length - start
        for spec in self.specs:
            if spec.kind is CacheKind.LOCAL:
                for tensor in self._tensors(spec):
                    tensor[:, :, :kept] = tensor[:, :, first : first + kept]
        self.local_start = start

    def _tensors(self, spec: CacheSpec) -> list[NDArray[Any]]:
        return [form[name] for form in self.forms for name in (spec.key, spec.value) if name in form]


def _require_memory(needed: int, capacity: int) -> None:
    """Numbers of a manifest or a user may ask for anything; what a system says of it, or does, differs."""
    held = psutil.virtual_memory().total
    if needed > held:
        raise CapacityError(
            f"a KV cache of capacity {capacity} takes {needed / 1e9:,.1f} GB and this machine has {held / 1e9:,.1f} GB of "
            "memory; load the bundle with a smaller capacity, or take a smaller model."
        )


def aligned_zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Zeros at an aligned address; the pages take memory only once they are written."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    zeros: NDArray[Any] = raw[start : start + size].view(dtype).reshape(shape)
    return zeros
