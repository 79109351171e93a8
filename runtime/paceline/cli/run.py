"""`paceline run`: stream the continuation of a prompt."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace

from rich.console import Console
from rich.table import Table

from paceline.cli import drafting, loading, sampling
from paceline.cli.command import Command, ExitCode
from paceline.sampling import GREEDY
from paceline.stats import Stats


def configure(parser: ArgumentParser) -> None:
    loading.configure(parser)
    parser.add_argument("-p", "--prompt", required=True, help="text to continue")
    drafting.configure(parser)
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="stop after N tokens (default: the KV cache's end)")
    loading.configure_backend(parser)
    loading.configure_placement(parser)
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end in front of this text (repeatable)")
    parser.add_argument("--stats", action="store_true", help="print what drafting brought, to stderr")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of streaming text")
    sampling.configure(parser, "Greedy unless one of these or --sample says otherwise.")
    parser.add_argument("--sample", action="store_true", help="start from the checkpoint's own generation_config.json")


def run(options: Namespace) -> ExitCode:
    model = loading.loaded(options, options.backend, loading.placement(options))
    pieces = []
    generation = model.generate(
        options.prompt,
        max_new_tokens=options.max_new_tokens,
        draft_length=options.draft,
        sampling=sampling.chosen(options, model.sampling if options.sample else GREEDY),
        drafting=options.drafting,
        stop=options.stop,
    )
    for piece in generation:
        pieces.append(piece)
        if not options.json:
            print(piece.text, end="", flush=True)
    last = pieces[-1]
    assert last.finish_reason is not None
    assert last.stats is not None
    ran_on = model.backend.describe() if options.json or options.stats else ""
    if options.json:
        report = {
            "text": "".join(piece.text for piece in pieces),
            "tokens": [piece.token for piece in pieces],
            "finish_reason": last.finish_reason.value,
            "backend": model.backend.name,
            "ran_on": ran_on,
            "draft_length": "auto" if options.draft is None else options.draft,
            "stats": last.stats.to_json(),
        }
        print(json.dumps(report))
    else:
        print()
    if last.stats.drafter_is_hopeless:
        print(f"nearly all drafts were wrong; paceline doctor {options.bundle} says why", file=sys.stderr)
    if options.stats:
        Console(stderr=True).print(stats_table(last.stats, f"{model.backend.name}: {ran_on}"))
    return ExitCode.SUCCESS


def stats_table(stats: Stats, ran_on: str) -> Table:
    """The statistics of one generation for a person."""
    table = Table(show_header=False, title=ran_on)
    table.add_row("prompt", f"{stats.prompt_tokens} tokens, first token after {stats.prefill_ms:.0f} ms")
    table.add_row("output", f"{stats.emitted} tokens, {stats.tokens_per_s:.1f} tokens/s after the first")
    table.add_row("rounds", f"{stats.rounds}, {stats.tokens_per_round:.2f} tokens each")
    table.add_row("drafts", f"{stats.accepted} of {stats.drafted} accepted; {acceptance(stats)}")
    for name, own in sorted(stats.sources.items()):
        table.add_row(f"by {name}", f"{own.accepted} of {own.drafted} accepted in {own.rounds} rounds")
    table.add_row("time", f"drafting {stats.draft_ms:.0f} ms, verifying {stats.verify_ms:.0f} ms")
    return table


def acceptance(stats: Stats) -> str:
    """Acceptance per position in words."""
    shares = [f"{share:.0%} at {position}" for position, share in enumerate(stats.acceptance_by_position, 1)]
    return ", ".join(shares) or "drafting was off"


COMMAND = Command(
    summary="Continue a prompt with the draft-verify loop.",
    examples="""  paceline run my-bundle -p "def read_lines(path):" --stats
  paceline run my-bundle -p "Once upon a time" --draft off --max-new-tokens 64
  paceline run my-bundle -p "Once upon a time" --backend onnxruntime --threads 2 --stats
  paceline run my-bundle -p "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 7
  paceline run my-bundle -p "Once upon a time" --json > run.json""",
    configure=configure,
    run=run,
)
