"""The target on one sequence: prefill in chunks, verify, commit."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import numpy as np

from paceline.backends.base import Graphs, Verified
from paceline.drafts import RowPath
from paceline.errors import CancelledError
from paceline.kv_cache import KVCache
from paceline.signatures import PREFILL_CHUNK


class Target:
    """Drives the target's graph and the length of its cache; the only caller of `KVCache.commit`."""

    def __init__(self, graphs: Graphs, cache: KVCache):
        self.graphs, self.cache = graphs, cache

    def prefill(self, tokens: Sequence[int], cancel: Event | None = None) -> None:
        """Writes and commits the KV rows of `tokens`, a chunk at a time.

        Raises:
            CapacityError: they do not fit; raised before any graph runs.
            CancelledError: `cancel` was set, between two chunks.
        """
        self.cache.require_room(len(tokens))
        for start in range(0, len(tokens), PREFILL_CHUNK):
            if cancel and cancel.is_set():
                raise CancelledError("the generation was cancelled before its first token.")
            chunk = np.asarray(tokens[start : start + PREFILL_CHUNK], np.int64)
            self.cache.make_room(len(chunk))
            self.graphs.prefill(chunk)
            self.cache.commit(len(chunk))

    def verify(self, tokens: Sequence[int], paths: Sequence[RowPath] = ()) -> Verified:
        """One pass over [pending, draft 1, ..]; its rows stay invisible until `commit`. One token is decode.

        Args:
            paths: what the rows see of each other, see `Drafts.paths`.

        Raises:
            CapacityError: they do not fit; raised before the graph runs.
        """
        self.cache.make_room(len(tokens))
        return self.graphs.verify(np.asarray(tokens, np.int64), paths)

    def keep(self, rows: RowPath) -> None:
        """Moves rows of the last pass, a path behind row 0, to where `commit` takes them from."""
        if rows != tuple(range(1, len(rows) + 1)):
            self.cache.compact(rows)

    def commit(self, rows: int) -> None:
        """Keeps the first `rows` rows of the last pass; the rest is rolled back by never becoming visible."""
        self.cache.commit(rows)
