"""`paceline bench`: drafted against plain decoding, in turns, on this machine."""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from paceline.backends import BACKENDS
from paceline.bench import Plan, fit_prompt, measure, named
from paceline.bench import Progress as Tell
from paceline.bench_report import Report
from paceline.bench_tables import notes, sheets
from paceline.bundle import Bundle
from paceline.cli import loading
from paceline.cli.command import Command, ExitCode
from paceline.cli.sheets import show
from paceline.errors import InputError
from paceline.generate import MAX_DRAFT_LENGTH
from paceline.model import Model
from paceline.partial import partial_name, write_whole

PROMPT = """A queue keeps items in the order in which they arrive. A producer adds an item at the back, and a consumer takes the
next one from the front. When the queue is empty the consumer waits, and when it is full the producer waits. The function
below reads the lines of a file and puts each of them into a queue.

def read_lines(path, queue):
"""


def configure(parser: ArgumentParser) -> None:
    plan = Plan()
    loading.configure(parser)
    parser.add_argument(
        "-k",
        "--draft-lengths",
        type=draft_lengths,
        default=plan.draft_lengths,
        metavar="K[,K]",
        help=f"drafts a round, 0 to {MAX_DRAFT_LENGTH}, or auto for as many as pay (default "
        f"{','.join(map(named, plan.draft_lengths))}); 0, plain decoding, is always measured",
    )
    parser.add_argument("-p", "--prompt", default=PROMPT, help="text to continue (default: a paragraph and a line of Python)")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="cut or repeat the prompt to N tokens")
    parser.add_argument(
        "-n",
        "--new-tokens",
        type=int,
        default=plan.new_tokens,
        metavar="N",
        help=f"tokens of every run; stop tokens do not end it (default {plan.new_tokens})",
    )
    parser.add_argument(
        "--repeats", type=int, default=plan.repeats, metavar="N", help=f"counted runs of each way (default {plan.repeats})"
    )
    parser.add_argument(
        "--backend",
        type=backends,
        metavar="B[,B]",
        help=f"what runs the graphs, of {', '.join(BACKENDS)} (default: all that the bundle has graphs for)",
    )
    parser.add_argument(
        "--synthetic-acceptance",
        type=float,
        metavar="P",
        help="accept each draft by chance with probability P until the first rejection, whatever the target says: "
        "the speed at a stated acceptance, where no trained weights are at hand; the text is NOT the model's",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object")
    shape.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="also write an HTML page with charts, which must not exist; times more calls for them; needs paceline[report]",
    )


def run(options: Namespace) -> ExitCode:
    wanted = options.report is not None
    plan = Plan(options.draft_lengths, options.new_tokens, options.repeats, options.synthetic_acceptance, all_calls=wanted)
    if wanted:
        check_report(options.report)
    models = _load(options)
    prompt = fit_prompt(next(iter(models.values())), options.prompt, options.prompt_tokens)
    with _progress(len(models) * (1 + plan.repeats + 1)) as tell:
        report = measure(models, prompt, plan, tell)
    if options.json:
        print(json.dumps(report.to_json()))
    elif options.markdown:
        print("\n".join(_markdown(report)))
    else:
        show(sheets(report), notes(report))
    if wanted:
        from paceline.bench_page.page import page  # matplotlib's memory is not the model's

        check_report(options.report)  # it took a while
        write_whole(options.report, page(report, command_line(options)))
        print(f"the report is in {options.report}", file=sys.stderr)
    return ExitCode.CHECK_FAILED if report.same_tokens is False else ExitCode.SUCCESS


def check_report(file: Path, command: str = "bench") -> None:
    """Refuses what could not be written, before anything is measured for it."""
    if find_spec("matplotlib") is None:
        raise InputError(
            f"paceline {command} --report needs the package matplotlib; install it with: pip install 'paceline[report]'"
        )
    try:
        if os.path.lexists(file):
            raise InputError(f"{file} exists already; choose another name with --report, or remove it first.")
        tried = partial_name(file)
        tried.touch()
        tried.unlink()
    except OSError as error:
        raise InputError(f"{file} cannot be written ({error.strerror}); choose another name with --report.") from None


def command_line(options: Namespace) -> list[str]:
    """The command that these options came from, in words that a shell takes. Defaults are spelled out, but for the prompt."""
    words = [
        f"--draft-lengths={','.join(map(named, options.draft_lengths))}",
        f"--new-tokens={options.new_tokens}",
        f"--repeats={options.repeats}",
    ]
    given = {
        "prompt": None if options.prompt == PROMPT else options.prompt,
        "prompt-tokens": options.prompt_tokens,
        "backend": options.backend and ",".join(options.backend),
        "synthetic-acceptance": options.synthetic_acceptance,
        "threads": options.threads,
        "capacity": options.capacity,
        "report": options.report,
    }
    words += [f"--{name}={value}" for name, value in given.items() if value is not None]
    cached = [] if options.weight_cache else ["--no-weight-cache"]
    return [shlex.quote(word) for word in ("paceline", "bench", str(options.bundle), *words, *cached)]


def _load(options: Namespace) -> dict[str, Model]:
    held = Bundle.read(options.bundle).manifest.graphs
    names = options.backend or [name for name in BACKENDS if name in held] or [None]  # none: `load` says what is held
    models: dict[str, Model] = {}
    for name in names:
        model = loading.loaded(options, name)
        models[model.backend.name] = model
    return models


@contextmanager
def _progress(steps: int) -> Iterator[Tell]:
    """A bar on stderr; silent where stderr is not a terminal. It is drawn between runs only, not by a thread beside them."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=steps)

        def tell(what: str) -> None:
            bar.update(task, description=what, refresh=True)
            bar.advance(task)  # shown with the next step, when this one is done

        yield tell


def _markdown(report: Report) -> Iterator[str]:
    for sheet in sheets(report):
        yield f"**{sheet.title}**\n"
        for row in (sheet.columns, ("---",) * len(sheet.columns), *sheet.rows):
            yield f"| {' | '.join(row)} |"
        yield ""
    for note in notes(report):
        yield f"- {note}"


def draft_lengths(text: str) -> tuple[int | None, ...]:
    """The value of --draft-lengths; `Plan` says which numbers are allowed."""
    try:
        return tuple(None if part == "auto" else int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,1,3, or auto") from None


def backends(text: str) -> list[str]:
    """The value of --backend, each name once."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in BACKENDS:
            raise ArgumentTypeError(f"{name!r} is not a backend; allowed are {' and '.join(BACKENDS)}")
    return names


COMMAND = Command(
    summary="Measure plain and drafted decoding against each other, in turns.",
    examples="""  paceline bench my-bundle
  paceline bench my-bundle -k 1,3,auto --prompt-tokens 512 -n 256 --repeats 9
  paceline bench my-bundle --backend litert --threads 4 --markdown
  paceline bench my-bundle --synthetic-acceptance 0.7 --json > bench.json
  paceline bench my-bundle --report bench.html""",
    configure=configure,
    run=run,
)
