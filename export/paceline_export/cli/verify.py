"""`paceline verify`: whether a bundle is whole, does what it must, and computes what its checkpoints do."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import ModuleType

from rich.console import Console

from paceline import checks
from paceline.backends import BACKENDS
from paceline.bundle import Bundle
from paceline.checks import Check, Outcome
from paceline.cli import checked, loading
from paceline.cli.command import Command, ExitCode
from paceline.errors import InputError
from paceline_export.checkpoint import open_pair


def configure(parser: ArgumentParser) -> None:
    loading.configure(parser)
    parser.add_argument(
        "--against",
        type=Path,
        nargs=2,
        metavar=("TARGET", "DRAFTER"),
        help="checkpoints to compare the graphs with, a tensor in memory at a time; needs paceline[torch]",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(options: Namespace) -> ExitCode:
    console = Console(stderr=True)
    with console.status("") as status:

        def progress(name: str) -> None:
            status.update(f"checking {name}")

        found = _checked(options, progress)
    if options.json:
        print(json.dumps({"bundle": str(options.bundle), "checks": checked.to_json(found)}))
    else:
        checked.show(found)
    return checked.exit_code(found)


def _checked(options: Namespace, progress: checks.Progress) -> list[Check]:
    bundle = Bundle.read(options.bundle)
    pair = open_pair(*options.against) if options.against else None
    found = list(checks.run([("files", lambda: checks.files(bundle))], progress))
    if found[0].outcome is Outcome.FAILED:  # the graphs are not what they were
        return found
    models = {name: loading.loaded(options, name) for name in BACKENDS if name in bundle.manifest.graphs}
    for name, model in models.items():
        least = min(checks.LEAST_CAPACITY, model.manifest.max_positions)
        if model.capacity < least:
            raise InputError(f"capacity is {model.capacity} on {name}; the checks need {least}.")
    found += checks.run(checks.trials(models), progress)
    if pair:
        found += checks.run(_parity().trials(models, *pair, bundle.manifest), progress)
    return found


def _parity() -> ModuleType:
    try:
        from paceline_export import parity
    except ModuleNotFoundError as error:
        raise InputError(f"--against needs the package {error.name}; install it with: pip install 'paceline[torch]'") from None
    return parity


COMMAND = Command(
    summary="Check a bundle: its files, its graphs, rollback, stops, acceptance, and parity with the checkpoints.",
    examples="""  paceline verify my-bundle
  paceline verify my-bundle --against models/target models/drafter
  paceline verify my-bundle --json > verify.json""",
    configure=configure,
    run=run,
)
