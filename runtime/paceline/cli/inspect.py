"""`paceline inspect`: what a bundle holds."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paceline.bundle import Bundle, Manifest
from paceline.cli.command import Command, ExitCode
from paceline.errors import InputError
from paceline.signatures import PREFILL_CHUNK
from paceline.signatures import CacheKind

FLOAT_BYTES = 4


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="directory made by paceline export")
    parser.add_argument("--check", action="store_true", help="hash every file and compare with the manifest")
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON")


def run(options: Namespace) -> ExitCode:
    bundle = Bundle.read(options.bundle)
    if not options.check:
        bundle.check_sizes()
    console = Console()
    if options.json:
        print(json.dumps(json.loads(bundle.manifest.to_json())))
    else:
        console.print(_model_table(bundle.manifest))
        console.print(_files_table(bundle.manifest))
        for backend, graphs in bundle.manifest.graphs.items():
            for name, signature in graphs.signatures.items():
                console.print(_signature_table(f"{name} ({backend})", signature))
    if options.check:
        try:
            bundle.check_sizes()
            bundle.check_hashes()
        except InputError as error:
            print(f"paceline: {error}", file=sys.stderr)
            return ExitCode.CHECK_FAILED
        if not options.json:
            console.print("every file has the hash that the manifest states")
    return ExitCode.SUCCESS


def _model_table(manifest: Manifest) -> Table:
    table = Table(show_header=False, title=f"made by {manifest.made_by}, recipe {manifest.recipe}")
    table.add_row("vocabulary", f"{manifest.vocab_size:,}")
    table.add_row("width", f"{manifest.hidden_size:,}")
    table.add_row("window of local layers", f"{manifest.window:,} rows")
    table.add_row("longest context", f"{manifest.max_positions:,} tokens")
    table.add_row("stop ids", ", ".join(map(str, manifest.stop_ids)))
    local = sum(2 * c.kv_heads * c.head_dim for c in manifest.caches if c.kind is CacheKind.LOCAL)
    full = sum(2 * c.kv_heads * c.head_dim for c in manifest.caches if c.kind is CacheKind.FULL)
    fixed = local * FLOAT_BYTES * (manifest.window + PREFILL_CHUNK)
    table.add_row("KV cache", f"{fixed / 1e6:.2f} MB fixed, and {full * FLOAT_BYTES / 1e3:.2f} kB a token of context")
    table.add_row("drafter reads layers", ", ".join(map(str, manifest.drafter_layers)))
    return table


def _files_table(manifest: Manifest) -> Table:
    table = Table("file", "bytes", "sha256", title="files")
    for name, stored in sorted(manifest.files.items()):
        table.add_row(name, f"{stored.size:,}", stored.sha256[:16])
    return table


def _signature_table(title: str, signature: dict[str, dict[str, list[object]]]) -> Table:
    table = Table("", "name", "dtype", "shape", title=title)
    for direction in ("inputs", "outputs"):
        for name, (dtype, shape) in signature[direction].items():
            table.add_row(direction[:-1], name, str(dtype), str(shape))
    return table


COMMAND = Command(
    summary="Show what a bundle holds, and check that it is intact.",
    examples="""  paceline inspect my-bundle
  paceline inspect my-bundle --check""",
    configure=configure,
    run=run,
)
