"""`paceline doctor`: what this machine can run, and why a bundle drafts badly."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from functools import partial

from rich.console import Console
from rich.table import Table

from paceline import checks, probes
from paceline.backends import BACKENDS, usable
from paceline.backends.names import NPU
from paceline.bundle import Bundle
from paceline.checks import Check, SkippedError
from paceline.cli import checked, loading
from paceline.cli.command import Command, ExitCode
from paceline.errors import InputError
from paceline.machine import facts
from paceline.npu.backend import compiled_for, read_profile


def configure(parser: ArgumentParser) -> None:
    loading.configure(parser, optional=True)
    loading.configure_backend(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def run(options: Namespace) -> ExitCode:
    machine = facts() | {name: usable(name) for name in (*BACKENDS, NPU)}
    found = _probed(options) if options.bundle else []
    if options.json:
        print(json.dumps({"machine": machine, "checks": checked.to_json(found)}))
        return checked.exit_code(found)
    table = Table(show_header=False, title="this machine")
    for name, value in machine.items():
        table.add_row(name, value)
    Console().print(table)
    if found:
        checked.show(found)
    return checked.exit_code(found)


def _probed(options: Namespace) -> list[Check]:
    bundle = Bundle.open(options.bundle)
    held = bundle.manifest.graphs
    names = [options.backend] if options.backend else [name for name in BACKENDS if name in held]
    found = list(checks.run([("graphs for an NPU", partial(_npu, bundle))], lambda _: None)) if NPU in held else []
    with Console(stderr=True).status("") as status:
        for name in names:
            status.update(f"loading {options.bundle} on {name}")
            trials = probes.trials(loading.opened(options, name, options.bundle))
            found += checks.run(
                [(f"{what}, {name}", trial) for what, trial in trials], lambda what: status.update(f"probing {what}")
            )
    return found


def _npu(bundle: Bundle) -> str:
    """What a bundle has for an NPU, and whether that can be used here."""
    profile = read_profile(bundle)
    chips = ", ".join(compiled_for(bundle))
    held = f"{profile.recipe}, caches of {' and '.join(map(str, profile.contexts))} rows, compiled for {chips or 'no chip'}"
    try:
        from paceline.npu.qnn import require_chip  # with onnxruntime, which is slow to load and may be missing

        require_chip()
    except (InputError, ImportError) as error:
        raise SkippedError(f"{held}; {error}") from None
    return held


COMMAND = Command(
    summary="Say what this machine can run and, of a bundle, what is wired wrongly.",
    examples="""  paceline doctor
  paceline doctor my-bundle
  paceline doctor my-bundle --backend litert --json""",
    configure=configure,
    run=run,
)
