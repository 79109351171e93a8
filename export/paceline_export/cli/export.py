"""`paceline export`: a target and its drafter become a bundle."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from paceline.cli.command import Command, ExitCode
from paceline.stored_weights import read_weights, summary
from paceline_export.bundle import ALL_FORMATS, DEFAULT_FORMATS, export, export_bytes
from paceline_export.cli.progress import export_progress
from paceline_export.recipes import DEFAULT_RECIPE, RECIPES, recipe


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("target", type=Path, metavar="TARGET", help="directory of a Gemma 4 checkpoint")
    parser.add_argument("--drafter", type=Path, required=True, metavar="DRAFTER", help="directory of its drafter (assistant)")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="OUT", help="bundle to write; must not exist")
    parser.add_argument(
        "--format",
        type=formats,
        default=DEFAULT_FORMATS,
        metavar="F[,F]",
        help=f"one or more of {', '.join(ALL_FORMATS)}, separated by commas (default {','.join(DEFAULT_FORMATS)}); litertlm is "
        "a file for Google's LiteRT-LM beside the TFLite graphs",
    )
    parser.add_argument(
        "--recipe",
        default=DEFAULT_RECIPE.name,
        metavar="NAME",
        help=f"what the weights are stored as: {', '.join(RECIPES)} (default {DEFAULT_RECIPE.name})",
    )


def formats(text: str) -> tuple[str, ...]:
    """The value of --format."""
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in ALL_FORMATS:
            raise ArgumentTypeError(f"{name!r} is not a format; allowed are {', '.join(ALL_FORMATS)}, separated by commas")
    return names


def run(options: Namespace) -> ExitCode:
    chosen = recipe(options.recipe)
    notes: list[str] = []
    with export_progress(export_bytes(options.target, options.drafter, options.format, chosen)) as report:
        manifest = export(options.target, options.drafter, options.out, report, options.format, chosen, notes.append)
    size = sum(file.size for file in manifest.files.values())
    print(f"{options.out}: {size / 1e6:.1f} MB in {len(manifest.files)} files")
    print(summary(read_weights(options.out)))
    for note in notes:
        print(f"note: {note}")
    print(f'next: paceline run {options.out} -p "Once upon a time" --stats')
    return ExitCode.SUCCESS


COMMAND = Command(
    summary="Export a Gemma 4 target and its drafter to a bundle of graphs.",
    examples="""  paceline export gemma-4-E2B-it --drafter gemma-4-E2B-it-assistant -o e2b-bundle
  paceline export models/target --drafter models/drafter -o small-bundle --format tflite,onnx
  paceline export models/target --drafter models/drafter -o float-bundle --recipe f32""",
    configure=configure,
    run=run,
)
