"""Options of how a bundle is loaded, the same for every command that runs one."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console

from paceline.backends import BACKENDS
from paceline.bundle import Bundle
from paceline.model import Model, load


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


def loaded(options: Namespace, backend: str | None) -> Model:
    """The bundle on a backend. A first load checks every file and packs the weights; on a terminal it says that it is at work.

    Raises:
        InputError: see `paceline.model.load`.
    """
    with Console(stderr=True).status(f"loading {options.bundle}"):
        return opened(options, backend, options.bundle)


def opened(options: Namespace, backend: str | None, bundle: Path | Bundle) -> Model:
    """A bundle, which need not be the options' own, on a backend. Raises as `loaded`."""
    return load(
        bundle,
        backend=backend,
        threads=options.threads,
        capacity=options.capacity,
        weight_cache=options.weight_cache,
    )
