"""The pair's signatures bound to one KV cache: every buffer is allocated once, and inputs are rewritten in place.

A target pass is three calls: the two token tables write their rows into the target's inputs, and the target runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import signatures
from paceline.backends.base import DraftStep
from paceline.backends.litert.lookups import Lookup
from paceline.backends.litert.model import BoundCall, CompiledModel, Environment, TensorBuffer
from paceline.backends.masks import Masks, path_of
from paceline.drafts import RowPath
from paceline.kv_cache import KVCache, aligned_zeros
from paceline.signatures import MASK, SIGNATURES, CacheKind


class CacheViews:
    """A cache's tensors as LiteRT buffers: local caches whole, full ones up to a number of slots that grows in steps.

    Attributes:
        names: of all KV tensors.
    """

    def __init__(self, environment: Environment, cache: KVCache):
        self.environment, self.cache = environment, cache
        self.names = {head for spec in cache.specs for name in (spec.key, spec.value) for head in spec.head_names(name)}
        self._local = self._buffers(CacheKind.LOCAL, cache.local_slots)
        self._full: dict[int, dict[str, TensorBuffer]] = {}

    def at(self, slots: int) -> dict[str, TensorBuffer]:
        """Every KV tensor by name; `slots` are those of the full caches."""
        if slots not in self._full:
            self._full[slots] = self._buffers(CacheKind.FULL, slots)
        return self._local | self._full[slots]

    def _buffers(self, kind: CacheKind, slots: int) -> dict[str, TensorBuffer]:
        views = self.cache.heads(kind, slots)
        return {name: TensorBuffer(self.environment, view) for name, view in views.items()}

    def cover(self, masks: Masks, rows: int, call: BoundCall, buffers: Mapping[str, TensorBuffer]) -> None:
        """Gives a call its buffers, masks and KV tensors, anew when `rows` cache rows need more or fewer slots."""
        if masks.cover(rows):
            shown = {MASK[kind]: TensorBuffer(self.environment, array) for kind, array in masks.arrays.items()}
            call.set_buffers({**buffers, **shown, **self.at(masks.slots)})


class TargetCall:
    """The target and the token tables for a fixed number of rows; calls with fewer tokens are padded.

    Attributes:
        arrays: the signature's own inputs and outputs by name; `logits` and `activations` are there after a verify call.
    """

    def __init__(self, models: Mapping[str, CompiledModel], views: CacheViews, rows: int):
        signature = SIGNATURES[rows]
        self.views, self.cache, self.rows = views, views.cache, rows
        self.call, self.masks = models["target"].bind(signature), Masks(views.cache, rows)
        self.arrays = _own_arrays(self.call, views)
        self.buffers = _buffers(views.environment, self.arrays)
        self.lookup = Lookup(views.environment, models, rows, self.buffers)

    def run(self, tokens: NDArray[np.int64], start: int, paths: Sequence[RowPath] = ()) -> None:
        """Writes the rows of `tokens`, at most as many as the call has, at slot `start` and on; paths as in `Graphs.verify`."""
        self.views.cover(self.masks, start + len(tokens), self.call, self.buffers)
        for kind, first_slot in ((CacheKind.FULL, start), (CacheKind.LOCAL, start - self.cache.local_start)):
            if signatures.CACHE_START[kind] in self.arrays:
                self.arrays[signatures.CACHE_START[kind]][2] = first_slot
        for row in range(self.rows):
            path = path_of(row, paths)
            self.arrays[signatures.INPUT_POS][row] = start + len(path) - 1
            self.masks.show(row, start, path)
        self.lookup.run(tokens)
        self.call.run()


class DrafterCall:
    """One draft step over the committed rows."""

    def __init__(self, models: Mapping[str, CompiledModel], views: CacheViews, offset: int):
        self.views, self.cache, self.offset = views, views.cache, offset
        self.call, self.masks = models["drafter"].bind(signatures.DRAFT), Masks(views.cache, 1)
        self.arrays = _own_arrays(self.call, views)
        self.buffers = _buffers(views.environment, self.arrays)
        joined = self.arrays[signatures.ACTIVATIONS]
        width = joined.shape[2] // 2
        self.hidden = joined[0, 0, width:]
        # The table writes the token's embedding straight into the first half of the drafter's input.
        embedded = TensorBuffer(views.environment, joined[:, :, :width])
        self.lookup = Lookup(views.environment, models, 1, {signatures.EMBEDDINGS: embedded})
        scored = self.arrays.get(signatures.DRAFT_SCORED)
        self.scored = np.arange(len(self.arrays[signatures.DRAFT_LOGITS])) if scored is None else scored
        self._shown: tuple[int, int] | None = None

    def run(self, token: int, hidden: NDArray[np.float32]) -> DraftStep:
        """See `Graphs.draft`."""
        cache = self.cache
        if self._shown != (cache.length, cache.local_start):
            self.views.cover(self.masks, cache.length, self.call, self.buffers)
            self.masks.show(0, cache.length)
            # Constant in a round: every step stands where the pending token will be written.
            self.arrays[signatures.INPUT_POS][0] = cache.length + self.offset
            self._shown = (cache.length, cache.local_start)
        self.hidden[:] = hidden
        self.lookup.run(np.array([token]))
        self.call.run()
        choice, logit, logsumexp = (
            self.arrays[name][0] for name in (signatures.DRAFT_TOKEN, signatures.DRAFT_LOGIT, signatures.DRAFT_LOGSUMEXP)
        )
        state, logits = self.arrays[signatures.PROJECTED_ACTIVATIONS][0, 0], self.arrays[signatures.DRAFT_LOGITS]
        return DraftStep(int(choice), float(logit), float(logsumexp), state, logits, self.scored)


def _own_arrays(call: BoundCall, views: CacheViews) -> dict[str, NDArray[Any]]:
    """Memory for all that is neither a mask nor a KV tensor."""
    others = {*MASK.values(), *views.names}
    tensors = (*call.info.inputs, *call.info.outputs)
    return {tensor.name: aligned_zeros(tensor.shape, tensor.dtype) for tensor in tensors if tensor.name not in others}


def _buffers(environment: Environment, arrays: Mapping[str, NDArray[Any]]) -> dict[str, TensorBuffer]:
    return {name: TensorBuffer(environment, array) for name, array in arrays.items()}
