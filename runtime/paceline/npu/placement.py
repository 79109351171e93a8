"""Where target and drafter run. Nothing moves silently: a place that cannot be had is an error, or a fallback that is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from paceline.backends.base import Backend
from paceline.backends.names import NPU
from paceline.bundle import Bundle
from paceline.errors import InputError


class Place(Enum):
    """A processor."""

    CPU = "cpu"
    NPU = "npu"


@dataclass(frozen=True)
class Placement:
    """Where both models run.

    Attributes:
        allow_fallback: whether they may run on the CPU where an NPU cannot be had.
    """

    target: Place = Place.CPU
    drafter: Place = Place.CPU
    allow_fallback: bool = False

    @property
    def on_npu(self) -> tuple[str, ...]:
        """The models that run on an NPU."""
        places = {"target": self.target, "drafter": self.drafter}
        return tuple(model for model, place in places.items() if place is Place.NPU)


ON_CPU = Placement()


def open_placed(
    bundle: Bundle, placement: Placement, threads: int | None, weight_cache: bool, note: Callable[[str], None]
) -> Backend | None:
    """A bundle with models on an NPU.

    Args:
        placement: with one of them there at least.
        threads, weight_cache: of what runs on the CPU, see `paceline.backends.open_backend`.
        note: called with a sentence when the CPU takes over.

    Returns:
        None where the CPU is to run both instead.

    Raises:
        InputError: an NPU cannot be had, and a fallback is not allowed; the text says why.
    """
    from paceline.npu.backend import NpuBackend, onnx_graphs
    from paceline.npu.qnn import QnnOnnx, require_chip

    wanted = " and ".join(placement.on_npu)
    try:
        graphs = onnx_graphs(bundle)
        require_chip()
        return NpuBackend(bundle, QnnOnnx(graphs, None), placement.on_npu, threads, weight_cache)
    except InputError as error:
        if not placement.allow_fallback:
            raise InputError(f"{wanted} cannot run on an NPU here: {error} To run on the CPU: --allow-fallback.") from None
        note(f"{wanted} on the CPU instead of an NPU: {error}")
    return None


def longest_context(bundle: Bundle) -> int:
    """Rows that the largest caches of a bundle's NPU graphs have; where it has no such graphs, those of the model."""
    from paceline.npu.backend import read_profile

    return read_profile(bundle).contexts[-1] if NPU in bundle.manifest.graphs else bundle.manifest.max_positions
