"""`paceline export`: a target and its drafter become a bundle."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from paceline import prompts
from paceline.backends.names import NNAPI, NPU
from paceline.cli.command import Command, ExitCode
from paceline.stored_weights import read_weights, summary
from paceline_export.bundle import ALL_FORMATS, DEFAULT_FORMATS, export, export_bytes
from paceline_export.cli.progress import export_progress
from paceline_export.npu.write import NPU_RECIPES, NpuOptions
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
    static = parser.add_argument_group("graphs for neural processors, beside the TFLite ones")
    static.add_argument(
        "--profile",
        type=profiles,
        default=(),
        metavar="P[,P]",
        help="npu: graphs of integers, to be compiled for a chip; nnapi: within what NNAPI's feature level 6 can run",
    )
    static.add_argument(
        "--npu-recipe",
        default=NpuOptions.recipe,
        metavar="NAME",
        help=f"bits of activations and weights of npu: {', '.join(NPU_RECIPES)} (default {NpuOptions.recipe})",
    )
    static.add_argument(
        "--npu-contexts",
        type=sizes,
        default=NpuOptions.contexts,
        metavar="N[,N]",
        help="rows of the full KV caches, of each size that the graphs have "
        f"(default {','.join(map(str, NpuOptions.contexts))}; none is larger than the model allows)",
    )
    static.add_argument(
        "--npu-unroll",
        type=int,
        default=1,
        metavar="N",
        help="a second drafter signature of N steps, with the token table inside: 2 bytes for each value of it",
    )
    static.add_argument(
        "--npu-prompts",
        type=Path,
        metavar="FILE",
        help="your prompts, on which ranges are measured: a JSON list of texts, or one in each line (default: ours)",
    )


def formats(text: str) -> tuple[str, ...]:
    """The value of --format."""
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in ALL_FORMATS:
            raise ArgumentTypeError(f"{name!r} is not a format; allowed are {', '.join(ALL_FORMATS)}, separated by commas")
    return names


def profiles(text: str) -> tuple[str, ...]:
    """The value of --profile."""
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in (NPU, NNAPI):
            raise ArgumentTypeError(f"{name!r} is not a profile; allowed are {NPU} and {NNAPI}, separated by a comma")
    return names


def sizes(text: str) -> tuple[int, ...]:
    """The value of --npu-contexts."""
    try:
        return tuple(sorted({int(size) for size in text.split(",")}))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number, or numbers separated by commas") from None


def run(options: Namespace) -> ExitCode:
    chosen = recipe(options.recipe)
    notes: list[str] = []
    static = None
    if options.profile:
        sized = options.npu_recipe, options.npu_contexts, options.npu_unroll
        static = NpuOptions(prompts.chosen(options.npu_prompts), options.profile, *sized, onnx="onnx" in options.format)
    with export_progress(export_bytes(options.target, options.drafter, options.format, chosen, static)) as report:
        manifest = export(options.target, options.drafter, options.out, report, options.format, chosen, notes.append, static)
    size = sum(file.size for file in manifest.files.values())
    print(f"{options.out}: {size / 1e6:.1f} MB in {len(manifest.files)} files")
    print(summary(read_weights(options.out)))
    for note in notes:
        print(f"note: {note}")
    print(f'next: paceline run {options.out} -p "Once upon a time" --stats')
    if NPU in options.profile:
        print(f"      paceline npu compile {options.out} --soc SM8750")
    return ExitCode.SUCCESS


COMMAND = Command(
    summary="Export a Gemma 4 target and its drafter to a bundle of graphs.",
    examples="""  paceline export gemma-4-E2B-it --drafter gemma-4-E2B-it-assistant -o e2b-bundle
  paceline export models/target --drafter models/drafter -o small-bundle --format tflite,onnx
  paceline export models/target --drafter models/drafter -o float-bundle --recipe f32
  paceline export models/target --drafter models/drafter -o npu-bundle --profile npu --npu-contexts 1024""",
    configure=configure,
    run=run,
)
