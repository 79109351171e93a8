"""`paceline demo`: export the small pair that comes with paceline, and run it with and without drafting."""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console
from rich.table import Table

import paceline
from paceline.backends import BACKENDS
from paceline.cli.command import Command, ExitCode
from paceline.cli.run import acceptance
from paceline.errors import InputError
from paceline_export.bundle import FORMATS, export, export_bytes
from paceline_export.cli.progress import export_progress
from paceline_export.recipes import F32

PROMPT = "<|turn>user\nRead a line from the file and return it as a string.<turn|>\n<|turn>model\n"
NEW_TOKENS, DRAFT_LENGTH = 128, 3
REPEATS = 5


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("-o", "--out", type=Path, metavar="OUT", help="keep the bundle here (default: a temporary directory)")
    parser.add_argument("-p", "--prompt", default=PROMPT, help="text to continue")


def run(options: Namespace) -> ExitCode:
    folder = small_pair()
    out = options.out or Path(tempfile.mkdtemp(prefix="paceline-demo-")) / "bundle"
    with export_progress(export_bytes(folder / "target", folder / "drafter", tuple(FORMATS), F32)) as report:
        export(folder / "target", folder / "drafter", out, report, tuple(FORMATS), F32)
    # A temporary bundle leaves nothing behind in the cache directory.
    models = {name: paceline.load(out, backend=name, weight_cache=options.out is not None) for name in BACKENDS}
    ways = [(name, length) for name in BACKENDS for length in (0, DRAFT_LENGTH)]

    def measure(backend: str, draft_length: int) -> tuple[list[paceline.Piece], paceline.Stats]:
        pieces = list(models[backend].generate(options.prompt, max_new_tokens=NEW_TOKENS, draft_length=draft_length))
        assert pieces[-1].stats is not None
        return pieces, pieces[-1].stats

    # In turns, so that all see the same machine; the fastest run of each counts, since noise only adds time.
    runs = [{way: measure(*way) for way in ways} for _ in range(REPEATS)]
    texts = {way: [piece.token for piece in runs[0][way][0]] for way in ways}
    tokens = texts[ways[0]]
    print(options.prompt + "".join(piece.text for piece in runs[0][ways[0]][0]))
    title = f"{len(tokens)} tokens, {paceline.distinct_4grams(tokens):.0%} distinct 4-grams, best of {REPEATS} runs in turns"
    table = Table("backend", "drafts", "tokens/s", "tokens a target pass", "accepted", title=title)
    for backend, length in ways:
        best = min((run[backend, length][1] for run in runs), key=lambda stats: stats.decode_ms)
        accepted = acceptance(best) if length else ""
        table.add_row(backend, str(length or "off"), f"{best.tokens_per_s:.0f}", f"{best.tokens_per_round:.2f}", accepted)
    Console().print(table)
    for name, model in models.items():
        print(f"{name}: {model.backend.describe()}")
    print("Greedy text of a small model repeats itself, which flatters acceptance; models/README.md has measured figures.")
    same = all(text == tokens for text in texts.values())
    print(
        "the text is the same with and without drafting, on both backends" if same else "the texts DIFFER: please report this"
    )
    print(f"bundle: {out}")
    return ExitCode.SUCCESS if same else ExitCode.CHECK_FAILED


def small_pair() -> Path:
    """The directory with the small pair's `target` and `drafter`: installed beside this package, or in the repository.

    Raises:
        InputError: neither is there.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "small_pair", package.parents[1] / "models"):
        if (folder / "target" / "config.json").is_file():
            return folder
    raise InputError("this installation lacks the small pair's weights; install paceline from its repository again.")


COMMAND = Command(
    summary="Export the small pair that comes with paceline, and run it with and without drafting.",
    examples="""  paceline demo
  paceline demo -o small-bundle -p "def main():" """.rstrip(),
    configure=configure,
    run=run,
)
