"""`paceline demo`: export the small pair that comes with paceline, and run it with and without drafting."""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console
from rich.table import Table

import paceline
from paceline.cli.command import Command, ExitCode
from paceline.cli.run import acceptance
from paceline.errors import InputError
from paceline.model import DEFAULT_DRAFT_LENGTH
from paceline_export.bundle import export, export_bytes
from paceline_export.cli.progress import export_progress

PROMPT = "<|turn>user\nRead a line from the file and return it as a string.<turn|>\n<|turn>model\n"
NEW_TOKENS = 128
REPEATS = 5


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("-o", "--out", type=Path, metavar="OUT", help="keep the bundle here (default: a temporary directory)")
    parser.add_argument("-p", "--prompt", default=PROMPT, help="text to continue")


def run(options: Namespace) -> ExitCode:
    folder = small_pair()
    out = options.out or Path(tempfile.mkdtemp(prefix="paceline-demo-")) / "bundle"
    with export_progress(export_bytes(folder / "target", folder / "drafter")) as report:
        export(folder / "target", folder / "drafter", out, report)
    model = paceline.load(out)

    def measure(draft_length: int) -> tuple[list[int], str, paceline.Stats]:
        pieces = list(model.generate(options.prompt, max_new_tokens=NEW_TOKENS, draft_length=draft_length))
        assert pieces[-1].stats is not None
        return [p.token for p in pieces], "".join(p.text for p in pieces), pieces[-1].stats

    # In turns, so that both sides see the same machine; the fastest of each counts, since noise only adds time.
    runs = [(measure(0), measure(DEFAULT_DRAFT_LENGTH)) for _ in range(REPEATS)]
    plain = min((a[2] for a, _ in runs), key=lambda stats: stats.decode_ms)
    drafted = min((b[2] for _, b in runs), key=lambda stats: stats.decode_ms)
    (tokens, text, _), (drafted_tokens, _, _) = runs[0]
    print(options.prompt + text)
    title = f"{len(tokens)} tokens, {paceline.distinct_4grams(tokens):.0%} distinct 4-grams, best of {REPEATS} runs in turns"
    table = Table("", "tokens/s", "tokens a target pass", "accepted", title=title)
    table.add_row("plain", f"{plain.tokens_per_s:.0f}", "1.00", "")
    table.add_row(
        f"{DEFAULT_DRAFT_LENGTH} drafts", f"{drafted.tokens_per_s:.0f}", f"{drafted.tokens_per_round:.2f}", acceptance(drafted)
    )
    Console().print(table)
    print("Greedy text of a small model repeats itself, which flatters acceptance; models/README.md has measured figures.")
    same = tokens == drafted_tokens
    print("the text is the same with and without drafting" if same else "the texts DIFFER: please report this")
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
