"""`paceline calibrate`: what suits a bundle on the user's own prompts."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paceline.bundle import Bundle
from paceline.cli import loading
from paceline.cli.command import Command, ExitCode
from paceline.draft_length import AdaptiveLimits
from paceline.errors import InputError
from paceline.model import Way
from paceline.prompts import chosen
from paceline.stats import Stats
from paceline.tuning import BACKUP, DRAFT_LENGTH, Limits, Offsets, measure_limits, measure_offsets, write_tuned

FIXED = (0, 1, 3, 7)  # draft lengths that are shown for comparison


def configure(parser: ArgumentParser) -> None:
    loading.configure(parser)
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="your prompts: a JSON list of texts, or a text with one in each line (default: twelve that come with paceline)",
    )
    parser.add_argument("-n", "--new-tokens", type=int, default=64, metavar="N", help="tokens of each text (default 64)")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be written")
    loading.configure_backend(parser)


def run(options: Namespace) -> ExitCode:
    if options.new_tokens < 2:
        raise InputError(f"--new-tokens is {options.new_tokens}; give 2 or more.")
    prompts = chosen(options.prompts)
    bundle = Bundle.open(options.bundle)
    with Console(stderr=True).status("loading") as status:
        progress, opened = status.update, partial(loading.opened, options, options.backend)
        offsets = measure_offsets(bundle, opened, prompts, options.new_tokens, progress)
        limits = measure_limits(opened(bundle), prompts, FIXED, options.new_tokens, progress)
    console = Console()
    console.print(_offsets(offsets))
    console.print(_limits(limits))
    better = [f"draft_position_offset {offsets.best} instead of {offsets.present}"] if offsets.best != offsets.present else []
    if limits.best != limits.present:
        better.append(f"adaptive drafting with {_named(limits.best)} instead of {_named(limits.present)}")
    if not better:
        print(f"the manifest stays as it is: draft_position_offset {offsets.present}, {_named(limits.present)}")
    elif options.dry_run:
        print(f"better, and not written: {'; '.join(better)}")
    else:
        write_tuned(bundle, offsets.best, limits.best)
        print(f"written: {'; '.join(better)}; the manifest as it was is in {options.bundle / BACKUP}")
    return ExitCode.SUCCESS


def _offsets(offsets: Offsets) -> Table:
    table = Table(
        "draft_position_offset", "% accepted at 1, 2, ..", "mean", "better by", title=f"drafts accepted of {DRAFT_LENGTH}"
    )
    for offset, stats in offsets.by_offset.items():
        gain = "" if offset == offsets.present else f"{offsets.gain(offset):+.1f} standard errors"
        name = f"{offset} (the bundle's)" if offset == offsets.present else str(offset)
        table.add_row(name, _by_position(stats), f"{stats.accepted / stats.rounds:.2f}", gain)
    return table


def _limits(limits: Limits) -> Table:
    table = Table(
        "drafts",
        "tokens/s",
        "plain = 1",
        "tokens a round",
        "% accepted at 1, 2, ..",
        "of lookup",
        title="draft lengths and proposers",
    )
    for way, runs in limits.by_way.items():
        stats = Stats()
        for run in runs:
            stats.add(run)
        lookup = stats.sources.get("lookup")
        found = f"{lookup.accepted} of {lookup.drafted}" if lookup else ""
        name = f"{_named(way)} (the bundle's)" if way == limits.present else _named(way)
        rates = f"{1000 * stats.emitted / stats.decode_ms:.1f}", f"{limits.speed(way, over=0):.2f}"
        table.add_row(name, *rates, f"{stats.tokens_per_round:.2f}", _by_position(stats), found)
    return table


def _named(way: Way) -> str:
    if isinstance(way, AdaptiveLimits):
        return f"auto, at most {way.most_drafts}" + (" and lookup" if way.lookup else "") if way.most_drafts else "auto, off"
    return "off" if way == 0 else str(way)


def _by_position(stats: Stats) -> str:
    return " ".join(f"{100 * share:.0f}" for share in stats.acceptance_by_position)


COMMAND = Command(
    summary="Measure what suits a bundle on your own prompts, and write what is better into its manifest.",
    examples="""  paceline calibrate my-bundle
  paceline calibrate my-bundle --prompts my-prompts.txt -n 128
  paceline calibrate my-bundle --prompts my-prompts.json --dry-run""",
    configure=configure,
    run=run,
)
