"""The LiteRT backend: one buffer for every KV tensor, which all graphs of the pair read and write where it lies."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import signatures
from paceline.backends.base import DraftStep, Verified, identity
from paceline.backends.litert.c_api import PACKAGE
from paceline.backends.litert.calls import CacheViews, DrafterCall, TargetCall
from paceline.backends.litert.expected import expected_signatures, require_parts, require_signatures
from paceline.backends.litert.lookups import TABLES, TokenTables
from paceline.backends.litert.model import CompiledModel, Environment
from paceline.backends.litert.weight_cache import WeightCache
from paceline.backends.names import LITERT
from paceline.bundle import Bundle
from paceline.drafts import RowPath
from paceline.errors import InputError
from paceline.kv_cache import KVCache
from paceline.machine import usable_cores
from paceline.manifest import Manifest
from paceline.signatures import PREFILL, VERIFY

# A draft step of a small model is too short to share; E2B's drafter, of 44 MB, is a third faster on two threads, and twice
# as fast at 4,096 rows of context. The limit between is a guess.
SHARED_DRAFTER_BYTES = 16 << 20
SHORT_PREFILL, LONG_PREFILL = sorted(PREFILL)
MODELS = ("target", "drafter")  # the parts that have something that XNNPACK packs; the token tables have not


class LiteRtBackend:
    """The compiled graphs, without any state of a sequence."""

    name = LITERT

    def __init__(self, bundle: Bundle, threads: int | None, weight_cache: bool, models: Collection[str] = MODELS):
        """Loads the graphs.

        Args:
            bundle: an opened bundle that holds TFLite graphs.
            threads: for the target; None takes the cores that this process may use.
            weight_cache: keep the weights as XNNPACK wants them in a file of the user's cache directory.
            models: of MODELS, those that will be run here; the token tables always are.

        Raises:
            InputError: no TFLite graphs, no LiteRT, or graphs that are not those of the manifest; or the cache
                directory has no room.
        """
        graphs = bundle.manifest.graphs.get(LITERT)
        if graphs is None:
            raise InputError(f"{bundle.folder} has no TFLite graphs; export it with --format tflite.")
        require_parts(bundle.manifest, graphs.parts)
        self.bundle, self.manifest, self.environment = bundle, bundle.manifest, Environment()
        self.threads = threads or usable_cores()
        self._packed: dict[str, Path] = {}
        self.models = {
            part: self._load(part, bundle.folder / name, weight_cache)
            for part, name in graphs.parts.items()
            if part in models or part in TABLES
        }
        m = bundle.manifest
        sizes: dict[str, tuple[int, ...]] = {signatures.EMBEDDINGS: (m.hidden_size,)}
        if m.per_layer_size:
            sizes[signatures.PER_LAYER_EMBEDDINGS] = m.layers, m.per_layer_size
        self.tables = TokenTables(self.environment, self.models, sizes)

    def _load(self, part: str, file: Path, weight_cache: bool) -> CompiledModel:
        shared = part == "target" or (part == "drafter" and self.manifest.files[file.name].size >= SHARED_DRAFTER_BYTES)
        threads = self.threads if shared else 1
        if weight_cache and part in MODELS:
            cache = WeightCache(file, self.manifest.files[file.name].sha256, self.environment.library.version)
            with cache.opened() as packed:
                model = CompiledModel(self.environment, file, threads, packed)
            if cache.file.is_file():
                self._packed[part] = cache.file
        else:
            model = CompiledModel(self.environment, file, threads)
        require_signatures(file, model, expected_signatures(self.manifest, part))
        return model

    def bind(self, cache: KVCache) -> LiteRtGraphs:
        """See `Backend.bind`."""
        return LiteRtGraphs(self, cache)

    def embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32] | None:
        """See `Backend.embeddings`."""
        found = np.empty((len(tokens), self.manifest.hidden_size), np.float32)
        for index, token in enumerate(tokens):
            found[index] = self.tables.look_up(np.array([token]), 1)[signatures.EMBEDDINGS][0, 0]
        return found

    def describe(self) -> str:
        """See `Backend.describe`; runs a decode call under the profiler."""
        from paceline.backends.litert.delegation import delegation  # slow to import, and needed only here

        ran = delegation(self.environment, self.bundle, "target", VERIFY[1], self._packed.get("target"))
        return f"LiteRT {self.environment.library.version}, {self.threads} threads; in a decode call {ran}"

    def identity(self, manifest: Manifest) -> dict[str, Any]:
        """See `Backend.identity`."""
        return identity(LITERT, PACKAGE, manifest)


class LiteRtGraphs:
    """The pair's graphs on one cache; implements `Graphs`."""

    def __init__(self, backend: LiteRtBackend, cache: KVCache):
        self.cache, self.models = cache, backend.models
        self.views = CacheViews(backend.environment, cache)
        self._calls: dict[int, TargetCall] = {}
        self._offset = backend.manifest.draft_position_offset
        self._drafter: DrafterCall | None = None

    def prefill(self, tokens: NDArray[np.int64]) -> None:
        """See `Graphs.prefill`."""
        start = 0
        while start < len(tokens):
            left = len(tokens) - start
            rows = LONG_PREFILL if signatures.in_steps(left, SHORT_PREFILL) >= LONG_PREFILL else SHORT_PREFILL
            self._call(rows).run(tokens[start : start + rows], self.cache.length + start)
            start += rows

    def verify(self, tokens: NDArray[np.int64], paths: Sequence[RowPath]) -> Verified:
        """See `Graphs.verify`; at most as many tokens as the largest verify signature has rows."""
        count = len(tokens)
        call = self._call(min(rows for rows in VERIFY if rows >= count))
        call.run(tokens, self.cache.length, paths)
        return Verified(call.arrays[signatures.LOGITS][0, :count], call.arrays[signatures.ACTIVATIONS][0, :count])

    def draft(self, token: int, hidden: NDArray[np.float32]) -> DraftStep:
        """See `Graphs.draft`."""
        if self._drafter is None:
            self._drafter = DrafterCall(self.models, self.views, self._offset)
        return self._drafter.run(token, hidden)

    def _call(self, rows: int) -> TargetCall:
        if rows not in self._calls:
            self._calls[rows] = TargetCall(self.models, self.views, rows)
        return self._calls[rows]
