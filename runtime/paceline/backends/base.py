"""What the draft-verify loop asks of a backend. Everything above this line of the runtime is backend-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.drafts import RowPath
from paceline.kv_cache import KVCache
from paceline.manifest import Manifest


@dataclass(frozen=True)
class Verified:
    """What the target says of T rows; the arrays are the graph's own memory, valid until its next call."""

    logits: NDArray[np.float32]  # [T, V]
    activations: NDArray[np.float32]  # [T, D]


@dataclass(frozen=True)
class DraftStep:
    """What one drafter step proposes; the arrays are the graph's own memory, valid until its next call.

    Attributes:
        logsumexp: over the tokens that the drafter scored.
        state: [D] projected state, the next step's hidden.
        logits: [N] of the scored tokens.
        scored: [N] these tokens.
    """

    token: int
    logit: float
    logsumexp: float
    state: NDArray[np.float32]
    logits: NDArray[np.float32]
    scored: NDArray[Any]


class Graphs(Protocol):
    """The pair's graphs bound to one KV cache. The caller makes room before, and commits rows after, a call."""

    def prefill(self, tokens: NDArray[np.int64]) -> None:
        """Writes the KV rows of `tokens` [T] at cache.length and on."""

    def verify(self, tokens: NDArray[np.int64], paths: Sequence[RowPath]) -> Verified:
        """Writes the KV rows of `tokens` [T] at cache.length and on, and computes their logits; T = 1 is decode.

        A row sees the committed rows and those of its path, and its position is that of the path's end. A row for which
        there is no path continues the row before it.
        """

    def draft(self, token: int, hidden: NDArray[np.float32]) -> DraftStep:
        """One drafter step from `hidden` [D] over the committed rows; its position is that of the pending token."""


def identity(name: str, package: str, manifest: Manifest) -> dict[str, Any]:
    """`Backend.identity` of one whose graphs a package runs."""
    files = {part: manifest.files[file].sha256 for part, file in manifest.graphs[name].parts.items()}
    return {"backend": name, "runtime_version": version(package), "files": files}


class Backend(Protocol):
    """A loaded bundle."""

    name: str

    def bind(self, cache: KVCache) -> Graphs:
        """The graphs on one sequence's cache; weights are shared between all of them."""

    def embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32] | None:
        """[T, D], rows of the table as the target and the drafter get them; None where the graphs keep it inside."""

    def describe(self) -> str:
        """What really runs the graphs: runtime, version, threads, and who does the work inside it."""

    def identity(self, manifest: Manifest) -> dict[str, Any]:
        """What the costs of a bundle's calls depend on beside the machine: `backend`, `runtime_version`, `files`, for JSON."""
