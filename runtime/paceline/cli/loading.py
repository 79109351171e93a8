"""Options of how a bundle is loaded, the same for every command that runs one."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console

from paceline.backends import BACKENDS
from paceline.bundle import Bundle
from paceline.model import Model, load
from paceline.npu.placement import ON_CPU, Place, Placement


def configure(parser: ArgumentParser, capacity: str = "prompt and output together", optional: bool = False) -> None:
    """Adds the bundle, which may be `optional`, and the options; `capacity` says what the rows of the KV cache are for."""
    parser.add_argument(
        "bundle", type=Path, nargs="?" if optional else None, metavar="BUNDLE", help="directory made by paceline export"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the target (default: the machine's cores)")
    parser.add_argument("--capacity", type=int, metavar="N", help=f"rows of the KV cache, {capacity}")
    parser.add_argument(
        "--no-weight-cache",
        action="store_false",
        dest="weight_cache",
        help="pack the weights at every start instead of keeping them in the cache directory (litert)",
    )


def configure_backend(parser: ArgumentParser) -> None:
    """Adds the choice of one backend."""
    parser.add_argument(
        "--backend", choices=BACKENDS, help="what runs the graphs (default: litert if the bundle has TFLite graphs)"
    )


def configure_placement(parser: ArgumentParser) -> None:
    """Adds where target and drafter run."""
    places = [place.value for place in Place]
    for model in ("target", "drafter"):
        parser.add_argument(
            f"--{model}-on", choices=places, default=Place.CPU.value, help=f"where the {model} runs (default cpu)"
        )
    parser.add_argument(
        "--allow-fallback",
        action="store_true",
        help="run on the CPU, and say why, where an NPU cannot be had; without it, stop",
    )


def placement(options: Namespace) -> Placement:
    """What `configure_placement` was told."""
    return Placement(Place(options.target_on), Place(options.drafter_on), options.allow_fallback)


def loaded(options: Namespace, backend: str | None, placed: Placement = ON_CPU) -> Model:
    """The bundle on a backend. A first load checks every file and packs the weights; on a terminal it says that it is at work.

    Raises:
        InputError: see `paceline.model.load`.
    """
    with Console(stderr=True).status(f"loading {options.bundle}"):
        return opened(options, backend, options.bundle, placed)


def opened(options: Namespace, backend: str | None, bundle: Path | Bundle, placed: Placement = ON_CPU) -> Model:
    """A bundle, which need not be the options' own, on a backend. Raises as `loaded`."""
    return load(
        bundle,
        backend=backend,
        threads=options.threads,
        capacity=options.capacity,
        weight_cache=options.weight_cache,
        placement=placed,
        note=lambda sentence: print(sentence, file=sys.stderr),
    )
