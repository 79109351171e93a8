"""`paceline distill`: a drafter learns what a target, often a fine-tuned one, really says."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from paceline.cli.command import Command, ExitCode
from paceline.prompts import read_prompts
from paceline_export.cli.torch_needed import torch_for
from paceline_export.recipes import DEFAULT_RECIPE, RECIPES, recipe

if TYPE_CHECKING:
    from paceline_export.distill.train import Moment, Tell

MINUTES = 30.0


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("target", type=Path, metavar="TARGET", help="directory of a Gemma 4 checkpoint, your fine-tuned one")
    begin = parser.add_mutually_exclusive_group(required=True)
    begin.add_argument("--drafter", type=Path, metavar="DRAFTER", help="directory of a drafter to begin with: the stock one")
    begin.add_argument("--fresh", action="store_true", help="begin with a new drafter, for a target that has none")
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument(
        "--text",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="text of the kind that the target shall write: text files, .json (a list of texts) or .jsonl (texts, or objects "
        "with the field text)",
    )
    data.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="prompts after which the target itself writes the text, greedily and sampled: a JSON list, or a text file with "
        "one in each line",
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="OUT", help="checkpoint to write; must not exist")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, metavar="N", help=f"train for at most so long (default {MINUTES:g})")
    length.add_argument("--steps", type=int, metavar="N", help="train for at most so many steps instead")
    parser.add_argument(
        "--recipe",
        default=DEFAULT_RECIPE.name,
        metavar="NAME",
        help=f"as which the pair will be exported, so that training sees its rounded weights: {', '.join(RECIPES)} "
        f"(default {DEFAULT_RECIPE.name})",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to train (default cpu)")
    parser.add_argument("--written", type=int, default=256, metavar="N", help="tokens after each of --prompts (default 256)")
    parser.add_argument(
        "--samples",
        type=int,
        default=1,
        metavar="N",
        help="texts sampled after each of --prompts beside a greedy one (default 1)",
    )
    parser.add_argument("--batch-tokens", type=int, default=2048, metavar="N", help="tokens of a step (default 2048)")
    parser.add_argument("--rate", type=float, default=1.0, metavar="X", help="factor on the learning rates (default 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of the text (default 0)")


def run(options: Namespace) -> ExitCode:
    chosen = recipe(options.recipe)
    prompts = [prompt for some in read_prompts(options.prompts).values() for prompt in some] if options.prompts else []
    minutes = MINUTES if options.minutes is None and options.steps is None else options.minutes
    with torch_for("paceline distill"):
        from paceline_export.distill import job
    asked = job.Job(
        target=options.target,
        drafter=options.drafter,
        out=options.out,
        text=options.text or (),
        prompts=prompts,
        minutes=minutes,
        steps=options.steps,
        recipe=chosen,
        device=options.device,
        written=options.written,
        samples=options.samples,
        batch_tokens=options.batch_tokens,
        rate=options.rate,
        seed=options.seed,
    )
    state = options.out.with_name(options.out.name + job.STATE_SUFFIX)
    try:
        with training_progress() as tell:
            trained = job.run(asked, lambda sentence: print(sentence, file=sys.stderr), tell)
    except KeyboardInterrupt:
        if state.exists():
            print(f"the same command goes on from what {state} holds", file=sys.stderr)
        raise
    first, best = trained.points[0].agreement, trained.best.agreement
    print(f"{options.out}: the drafter of step {trained.best.step} of {trained.step}, {trained.end.value}")
    print(
        f"agreement with the target's likeliest token on held-out text, drafts 1 to 4: {shares(first.own)} before, "
        f"{shares(best.own)} now"
    )
    print(f"next: paceline evaluate {options.target} {options.out}")
    print(f"      paceline export {options.target} --drafter {options.out} -o my-bundle --recipe {chosen.name}")
    return ExitCode.CHECK_FAILED if not trained.finite else ExitCode.SUCCESS


def shares(own: list[float]) -> str:
    """Percentages by position."""
    return " ".join(f"{100 * share:.1f}" for share in own) + " %"


@contextmanager
def training_progress() -> Iterator[Tell]:
    """A bar on stderr where that is a terminal, and a line for every evaluation anywhere."""
    console = Console(stderr=True)
    columns = (TextColumn("training"), BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=1.0)

        def tell(moment: Moment) -> None:
            bar.update(task, completed=moment.fraction, description=_said(moment), refresh=True)
            if moment.point:
                print(f"{_said(moment)}; held out, drafts 1 to 4: {shares(moment.point.agreement.own)}", file=sys.stderr)

        yield tell


def _said(moment: Moment) -> str:
    loss = (moment.point.loss if moment.point else None) or moment.loss
    parts = [f"step {moment.step}"] + ([] if loss is None else [f"loss {loss:.3f}"])
    if moment.seconds_left is not None:
        minutes, seconds = divmod(round(moment.seconds_left), 60)
        parts.append(f"{minutes}:{seconds:02} left")
    return ", ".join(parts)


COMMAND = Command(
    summary="Train a drafter on what your target says; needs paceline[torch].",
    examples="""  paceline distill my-e2b --drafter gemma-4-E2B-it-assistant --text corpus/*.txt -o my-drafter
  paceline distill my-e2b --drafter gemma-4-E2B-it-assistant --prompts prompts.json -o my-drafter --minutes 240
  paceline distill my-gemma-4 --fresh --text corpus.jsonl -o new-drafter --device cuda --recipe mixed-wi4b32""",
    configure=configure,
    run=run,
)
