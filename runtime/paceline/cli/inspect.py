"""`paceline inspect`: what a bundle holds."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.backends.names import LITERT
from paceline.bundle import Bundle
from paceline.cli.command import Command, ExitCode
from paceline.errors import InputError, printable
from paceline.manifest import Manifest
from paceline.signatures import CacheKind, local_slots
from paceline.stored_weights import StoredWeight, read_weights, summary

FLOAT_BYTES = 4


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="directory made by paceline export")
    parser.add_argument("--check", action="store_true", help="hash every file and compare with the manifest")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the manifest as JSON")
    form.add_argument("--weights", action="store_true", help="list what every weight is stored as, the largest error first")


def run(options: Namespace) -> ExitCode:
    bundle = Bundle.read(options.bundle)
    damage = _damage(bundle) if options.check else None
    if options.json:
        if not options.check:
            bundle.check_sizes()
        print(json.dumps(json.loads(bundle.manifest.to_json())))
    elif options.weights:
        bundle.check_sizes()
        weights = read_weights(options.bundle)
        Console().print(weights_table(weights))
        Console().print(summary(weights), highlight=False, markup=False)
    elif not damage:
        _print_tables(Bundle.open(options.bundle))  # opened, because graphs are run
    if damage:
        print(f"paceline: {damage}", file=sys.stderr)
        return ExitCode.CHECK_FAILED
    if options.check and not options.json:
        print("every file has the hash that the manifest states")
    return ExitCode.SUCCESS


def _damage(bundle: Bundle) -> InputError | None:
    """What is wrong with the files, by size and hash."""
    try:
        bundle.check_sizes()
        bundle.check_hashes()
    except InputError as error:
        return error
    return None


def _print_tables(bundle: Bundle) -> None:
    console, manifest = Console(), bundle.manifest
    operators = _operators_table(bundle) if LITERT in manifest.graphs else None  # first, because it may refuse
    for table in manifest_tables(manifest):
        console.print(table)
    if operators:
        console.print(operators)


def manifest_tables(manifest: Manifest) -> Iterator[Table]:
    """What the manifest says of the model, of the files, and of every graph's first signature."""
    yield _model_table(manifest)
    yield _files_table(manifest)
    for backend, graphs in manifest.graphs.items():
        for file, entries in graphs.signatures.items():
            first, *others = entries
            title = f"{file} ({backend}), signature {first}" + (f"; others: {', '.join(others)}" if others else "")
            yield _signature_table(title, entries[first])


def _model_table(manifest: Manifest) -> Table:
    table = Table(show_header=False, title=_shown(f"made by {manifest.made_by}, recipe {manifest.recipe}"))
    table.add_row("vocabulary", f"{manifest.vocab_size:,}")
    table.add_row("width", f"{manifest.hidden_size:,}")
    table.add_row("window of local layers", f"{manifest.window:,} rows")
    table.add_row("longest context", f"{manifest.max_positions:,} tokens")
    table.add_row("stop ids", ", ".join(map(str, manifest.stop_ids)))
    local = sum(2 * c.kv_heads * c.head_dim for c in manifest.caches if c.kind is CacheKind.LOCAL)
    full = sum(2 * c.kv_heads * c.head_dim for c in manifest.caches if c.kind is CacheKind.FULL)
    fixed = local * FLOAT_BYTES * local_slots(manifest.window)
    table.add_row("KV cache", f"{fixed / 1e6:.2f} MB fixed, and {full * FLOAT_BYTES / 1e3:.2f} kB a token of context")
    table.add_row("drafter reads layers", ", ".join(map(str, manifest.drafter_layers)))
    return table


def _files_table(manifest: Manifest) -> Table:
    table = Table("file", "bytes", "sha256", title="files")
    for name, stored in sorted(manifest.files.items()):
        table.add_row(_shown(name), f"{stored.size:,}", stored.sha256[:16])
    return table


def weights_table(weights: list[StoredWeight]) -> Table:
    """What every weight is stored as, the largest error first."""
    table = Table("model", "weight", "shape", "stored as", "bytes", "relative error", title="weights")
    for weight in sorted(weights, key=lambda weight: -weight.relative_error):
        shape, error = " x ".join(map(str, weight.shape)), f"{weight.relative_error:.2%}" if weight.relative_error else ""
        cells = (weight.model, weight.name, shape, weight.stored_as, f"{weight.bytes:,}", error)
        table.add_row(*map(_shown, cells))
    return table


def _signature_table(title: str, signature: dict[str, dict[str, list[object]]]) -> Table:
    table = Table("", "name", "dtype", "shape", title=_shown(title))
    for direction in ("inputs", "outputs"):
        for name, (dtype, shape) in signature[direction].items():
            table.add_row(direction[:-1], *(_shown(str(cell)) for cell in (name, dtype, shape)))
    return table


def _shown(text: str) -> Text:
    """A bundle's text in a table, where brackets would be styles."""
    return Text(printable(text))


def _operators_table(bundle: Bundle) -> Table:
    """Every TFLite signature's operators, and who runs them."""
    from paceline.backends.litert.model import Environment

    environment = Environment()  # refuses where the package is missing that the next import needs
    from paceline.backends.litert.delegation import delegation
    from paceline.backends.litert.expected import expected_signatures

    table = Table("file", "signature", "operators", "run by XNNPACK", "matrix products", "left to LiteRT")
    graphs = bundle.manifest.graphs[LITERT]
    for part, file in graphs.parts.items():
        for name in expected_signatures(bundle.manifest, part):
            ran = delegation(environment, bundle, part, name)
            products = f"{ran.delegated_products} of {ran.products}"
            left = ", ".join(f"{count} {operator}" for operator, count in sorted(ran.own.items()))
            table.add_row(_shown(file), name, str(ran.operators.total()), str(ran.delegated.total()), products, left)
    return table


COMMAND = Command(
    summary="Show what a bundle holds, and check that it is intact.",
    examples="""  paceline inspect my-bundle
  paceline inspect my-bundle --check
  paceline inspect my-bundle --weights""",
    configure=configure,
    run=run,
)
