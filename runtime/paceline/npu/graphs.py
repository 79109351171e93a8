"""The pair with target, drafter or both on a neural processor; the other one runs on the CPU's graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.backends.base import DraftStep, Graphs, Verified
from paceline.drafts import RowPath
from paceline.npu.calls import NpuDrafter, NpuTarget
from paceline.npu.rows import NpuRows
from paceline.signatures import CacheSpec


class NpuGraphs:
    """Implements `Graphs`. KV rows that the other processor reads, too, are translated as they are written."""

    def __init__(
        self,
        rows: NpuRows,
        target: NpuTarget | None,
        drafter: NpuDrafter | None,
        cpu: Graphs | None,
        cpu_reads: Sequence[CacheSpec] = (),
    ):
        """Puts both together.

        Args:
            target, drafter: on the neural processor; None where it is on the CPU.
            cpu: what runs the others.
            cpu_reads: caches that the CPU's drafter reads.
        """
        self.rows, self.target, self.drafter, self.cpu, self.cpu_reads = rows, target, drafter, cpu, tuple(cpu_reads)

    def prefill(self, tokens: NDArray[np.int64]) -> None:
        """See `Graphs.prefill`."""
        (self.target or self._cpu).prefill(tokens)
        self._translate(len(tokens))

    def verify(self, tokens: NDArray[np.int64], paths: Sequence[RowPath]) -> Verified:
        """See `Graphs.verify`."""
        verified = (self.target or self._cpu).verify(tokens, paths)
        self._translate(len(tokens))
        return verified

    def draft(self, token: int, hidden: NDArray[np.float32]) -> DraftStep:
        """See `Graphs.draft`."""
        return (self.drafter or self._cpu).draft(token, hidden)

    @property
    def _cpu(self) -> Graphs:
        assert self.cpu is not None, "one of the two runs on the CPU, and no graphs are there for it"
        return self.cpu

    def _translate(self, count: int) -> None:
        start = self.rows.cache.length
        if self.target is None:
            for first, some in self.rows.pieces(start, count):
                self.rows.from_floats(first, some)
        elif self.drafter is None:
            self.rows.to_floats(self.cpu_reads, start, count)
