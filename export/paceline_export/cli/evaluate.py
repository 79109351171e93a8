"""`paceline evaluate`: how many of a drafter's drafts are accepted, and what that should bring."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.backends import BACKENDS
from paceline.cli.bench import check_report
from paceline.cli.command import Command, ExitCode
from paceline.cli.sheets import show
from paceline.errors import InputError
from paceline.model import Model, load
from paceline.partial import write_whole
from paceline.prompts import prompts_by_class, read_prompts
from paceline_export.cli.torch_needed import torch_for
from paceline_export.evaluate.bundles import LoadedBundle
from paceline_export.evaluate.measure import measure, measured_ratios
from paceline_export.evaluate.report import Report
from paceline_export.evaluate.tables import notes, sheets
from paceline_export.evaluate.traces import Source, Tell, Texts
from paceline_export.recipes import F32, RECIPES, recipe


def configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "pair",
        type=Path,
        nargs="+",
        metavar="BUNDLE | TARGET DRAFTER",
        help="a bundle, whose own graphs run, or the directories of two checkpoints (needs paceline[torch])",
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="your prompts: a JSON list of texts, a JSON object of such lists by class, or a text file with one in each line "
        "(default: some hundreds that come with paceline: code, chat, JSON and prose)",
    )
    parser.add_argument("-n", "--new-tokens", type=int, default=64, metavar="N", help="tokens of each text (default 64)")
    parser.add_argument("--most", type=int, metavar="N", help="take only the first N prompts of each class")
    parser.add_argument(
        "--temperature", type=float, default=0.7, metavar="X", help="of the sampled texts; 0 leaves them out (default 0.7)"
    )
    parser.add_argument(
        "--backend", choices=BACKENDS, help="what runs a bundle's graphs (default: litert if it has TFLite graphs)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a bundle's target (default: the machine's cores)")
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"of checkpoints: as which their weights would be exported: {', '.join(RECIPES)} (default {F32.name})",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of checkpoints: where they run (default cpu)")
    parser.add_argument(
        "--costs", type=Path, metavar="BUNDLE", help="of checkpoints: predict speed-up by what this bundle's calls cost here"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="also write an HTML page with charts, which must not exist; needs paceline[report]",
    )


def run(options: Namespace) -> ExitCode:
    ways = [Texts(temperature, options.new_tokens) for temperature in dict.fromkeys((0.0, options.temperature))]
    classes = read_prompts(options.prompts) if options.prompts else prompts_by_class()
    if options.most is not None:
        if options.most < 1:
            raise InputError(f"--most is {options.most}; give 1 or more.")
        classes = {kind: some[: options.most] for kind, some in classes.items()}
    if options.report:
        check_report(options.report, "evaluate")
    with _progress(len(ways) * sum(map(len, classes.values()))) as tell:
        report = _measured(options, classes, ways, tell)
    if options.json:
        print(json.dumps(report.to_json()))
    else:
        show(sheets(report), notes(report))
    if options.report:
        from paceline_export.evaluate.page import page  # matplotlib's memory is not the model's

        check_report(options.report, "evaluate")  # it took a while
        write_whole(options.report, page(report, [shlex.quote(word) for word in ("paceline", *sys.argv[1:])]))
        print(f"the report is in {options.report}", file=sys.stderr)
    return ExitCode.SUCCESS


def _measured(options: Namespace, classes: Mapping[str, Sequence[str]], ways: Sequence[Texts], tell: Tell) -> Report:
    what = {
        "pair": " and ".join(map(str, options.pair)),
        "prompts": f"{sum(map(len, classes.values()))}, " + (str(options.prompts) if options.prompts else "paceline's own"),
        "texts": f"{options.new_tokens} tokens each, or up to a stop token",
    }
    if len(options.pair) == 1:
        for name in ("recipe", "costs"):
            if vars(options)[name] is not None:
                raise InputError(
                    f"--{name} is for two checkpoints; a bundle has its own. Leave it out, or give TARGET and DRAFTER."
                )
        model = _loaded(options, options.pair[0], options.backend)
        what |= {"weights": model.manifest.recipe, "ran on": model.backend.describe()}
        return measure(LoadedBundle(model), classes, ways, what, measured_ratios(model), tell)
    if len(options.pair) > 2:
        raise InputError(f"{len(options.pair)} directories are given; give a bundle, or a TARGET and a DRAFTER.")
    chosen = recipe(options.recipe or F32.name)
    with torch_for("paceline evaluate of checkpoints"):
        from paceline_export.evaluate.checkpoints import Checkpoints
    source: Source = Checkpoints.open(options.pair[0], options.pair[1], chosen, options.device)
    ratios = measured_ratios(_loaded(options, options.costs, options.backend)) if options.costs else None
    what |= {
        "weights": f"checkpoints, rounded as {chosen.name}" if chosen is not F32 else "checkpoints",
        "ran on": options.device,
    }
    return measure(source, classes, ways, what, ratios, tell)


def _loaded(options: Namespace, bundle: Path, backend: str | None) -> Model:
    return load(bundle, backend=backend, threads=options.threads)


@contextmanager
def _progress(prompts: int) -> Iterator[Tell]:
    """A bar on stderr; silent where stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("texts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=prompts)

        def tell(done: int) -> None:
            bar.update(task, advance=done, refresh=True)

        yield tell


COMMAND = Command(
    summary="Tell how many drafts are accepted, by kind of text and draft length.",
    examples="""  paceline evaluate my-bundle
  paceline evaluate my-e2b my-drafter --prompts my-prompts.json
  paceline evaluate my-e2b my-drafter --recipe mixed-wi4c --costs my-bundle --json > acceptance.json
  paceline evaluate my-bundle --backend onnxruntime -n 128 --report acceptance.html""",
    configure=configure,
    run=run,
)
