"""`paceline npu`: compile a bundle's graphs for a chip, run them on its emulator, or hold a file against NNAPI."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from paceline import prompts
from paceline.bundle import Bundle
from paceline.cli.command import Command, ExitCode
from paceline.errors import InputError
from paceline_export.npu.compare import ALIKE
from paceline_export.npu.compile import compile_bundle
from paceline_export.npu.compiled import Placement
from paceline_export.npu.nnapi import PROMISED_LEVEL, lint, lint_table

if TYPE_CHECKING:
    from paceline_export.npu.emulate import Emulation

SOC = "SM8750"


def configure(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    compiles = actions.add_parser("compile", help="ahead of time, with the vendor's compiler; the programs go into the bundle")
    _bundle(compiles)
    compiles.add_argument(
        "--soc", required=True, type=lambda text: text.split(","), metavar="SOC[,SOC]", help="chips, e.g. SM8750,SM8650"
    )
    compiles.add_argument(
        "--share-weights",
        action="store_true",
        help="one copy of the weights for all signatures and not one for each; the emulator cannot run such programs",
    )
    emulates = actions.add_parser("emulate", help="the compiled programs, without a chip, beside the same graphs on the CPU")
    _bundle(emulates)
    emulates.add_argument("--soc", default=SOC, metavar="SOC", help=f"chip that the bundle is compiled for (default {SOC})")
    emulates.add_argument("-p", "--prompt", action="append", metavar="TEXT", help="text to continue (repeatable)")
    emulates.add_argument("--prompts", type=Path, metavar="FILE", help="a JSON list of texts, or one in each line")
    emulates.add_argument("-n", "--new-tokens", type=int, default=16, metavar="N", help="tokens of each text (default 16)")
    emulates.add_argument("--draft", type=int, default=3, metavar="N", help="drafts of each round (default 3)")
    lints = actions.add_parser("lint", help="whether a .tflite file keeps to what NNAPI can run")
    lints.add_argument("file", type=Path, metavar="FILE", help="a .tflite file")
    lints.add_argument(
        "--nnapi", type=int, default=PROMISED_LEVEL, metavar="LEVEL", help=f"feature level (default {PROMISED_LEVEL})"
    )


def _bundle(parser: ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="directory made by paceline export --profile npu")


def run(options: Namespace) -> ExitCode:
    actions: dict[str, Callable[[Namespace], ExitCode]] = {"compile": _compile, "emulate": _emulate, "lint": _lint}
    return actions[options.action](options)


def _compile(options: Namespace) -> ExitCode:
    whole = True
    for soc in dict.fromkeys(options.soc):
        with Console(stderr=True).status("") as status:
            bundle = Bundle.open(options.bundle)
            found = compile_bundle(bundle, soc, options.share_weights, lambda text: status.update(f"compiling {text}"))
        Console().print(placements_table(found, soc))
        if all(placed.whole for part in found.values() for placed in part):
            print(f"{options.bundle} has graphs for {soc} now")
        else:
            whole = False
            print(
                f"{options.bundle} stays as it was: {soc} would need the CPU inside a call; older chips take --npu-recipe a8w8"
            )
    return ExitCode.SUCCESS if whole else ExitCode.CHECK_FAILED


def placements_table(found: dict[str, list[Placement]], soc: str) -> Table:
    """Where every signature runs, for a person."""
    table = Table(title=f"compiled for {soc}")
    for column in ("part", "signature", "programs", "left to the CPU", "bytes of the programs"):
        table.add_column(column)
    for part, placed in found.items():
        for each in placed:
            left = ", ".join(f"{count} {name}" for name, count in each.on_cpu.items()) or "nothing"
            table.add_row(part, each.signature, str(each.partitions), left, f"{each.program_bytes:,}")
    return table


def _emulate(options: Namespace) -> ExitCode:
    if options.new_tokens < 1 or not 0 <= options.draft <= 7:
        raise InputError(f"--new-tokens is {options.new_tokens} and --draft {options.draft}; give 1 or more, and 0 to 7.")
    from paceline_export.npu.emulate import apart  # with onnxruntime, which the other actions do not need

    texts = options.prompt or prompts.chosen(options.prompts)
    with Console(stderr=True).status("emulating; a call takes some tenths of a second or more"):
        found = apart(options.bundle, options.soc, tuple(texts), options.new_tokens, options.draft)
    Console().print(_emulation_table(found))
    for part, cosine in found.cosines.items():
        print(f"{part}: the smallest cosine of its logits with the CPU's is {cosine:.6f}; allowed is {ALIKE[found.dtype]}")
    print("emulated times say nothing of a chip's, and are not shown; no chip has run this bundle here")
    return ExitCode.SUCCESS if found.agrees else ExitCode.CHECK_FAILED


def _emulation_table(found: Emulation) -> Table:
    table = Table(title=f"emulated {found.soc} beside the CPU, the same integer graphs")
    for column in ("prompt", "tokens", "the CPU's are"):
        table.add_column(column)
    for text in found.texts:
        verdict = "equal"
        if text.differs_at is not None:
            explained = "rounding" if text.explained(found.difference) else "a fault"
            verdict = f"others from {text.differs_at} on, where two are {text.margin:.4f} apart: {explained}"
        table.add_row(repr(text.prompt[:40]), str(text.tokens), verdict)
    return table


def _lint(options: Namespace) -> ExitCode:
    report = lint(options.file, options.nnapi)
    if report.findings:
        Console().print(lint_table(report))
        print(
            f"{options.file}: {len(report.findings)} of {report.operators} operators' rules are broken at level {options.nnapi}"
        )
        return ExitCode.CHECK_FAILED
    print(f"{options.file}: {report.operators} operators, all within NNAPI level {report.needed_level}; NNAPI never ran it")
    return ExitCode.SUCCESS


COMMAND = Command(
    summary="Compile for a neural processor, emulate one, or check a file against NNAPI.",
    examples="""  paceline npu compile my-bundle --soc SM8750
  paceline npu emulate my-bundle --soc SM8750 -p "Once upon a time"
  paceline npu lint my-bundle/drafter.nnapi.tflite --nnapi 6""",
    configure=configure,
    run=run,
)
