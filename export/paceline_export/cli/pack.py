"""`paceline pack`: a bundle becomes a file that Google's LiteRT-LM runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from paceline.bundle import Bundle
from paceline.cli.command import Command, ExitCode
from paceline_export.cli.progress import export_progress
from paceline_export.litertlm import pack
from paceline_export.lower.litertlm_signatures import LiteRtLmProfile


def configure(parser: ArgumentParser) -> None:
    profile = LiteRtLmProfile()
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="directory made by paceline export, with TFLite graphs")
    parser.add_argument("-o", "--out", type=Path, metavar="OUT", help="file to write (default: BUNDLE.litertlm beside it)")
    parser.add_argument(
        "--context",
        type=int,
        default=profile.context,
        metavar="N",
        help=f"tokens of prompt and output together; every call attends to all of them (default {profile.context})",
    )
    parser.add_argument(
        "--draft-length",
        type=int,
        default=profile.draft_length,
        metavar="N",
        help=f"drafts of a round, which LiteRT-LM cannot change later (default {profile.draft_length})",
    )


def run(options: Namespace) -> ExitCode:
    bundle = Bundle.open(options.bundle)
    out = options.out or options.bundle.resolve().with_name(f"{options.bundle.resolve().name}.litertlm")
    size = sum(file.size for name, file in bundle.manifest.files.items() if name.endswith(".tflite"))
    with export_progress(size) as report:
        profile = LiteRtLmProfile(options.context, options.draft_length)
        pack(bundle, out, profile, lambda tensor, count: report("pack", tensor, 2 * count))
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
    print(f"next: litert-lm run {out} --prompt 'Once upon a time' --speculative-decoding true")
    return ExitCode.SUCCESS


COMMAND = Command(
    summary="Pack a bundle into a .litertlm file for Google's LiteRT-LM; needs paceline[litertlm].",
    examples="""  paceline pack my-bundle
  paceline pack my-bundle -o phone.litertlm --context 2048 --draft-length 2""",
    configure=configure,
    run=run,
)
