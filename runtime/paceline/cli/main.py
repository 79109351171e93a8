"""Finds the subcommand, runs it, and turns every error into one sentence and an exit code."""

from __future__ import annotations

import sys
import traceback
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version
from tempfile import NamedTemporaryFile

from paceline.cli.command import Command, ExitCode
from paceline.errors import InputError, PacelineError

GROUP = "paceline.commands"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `paceline ARGUMENTS` (those of the process when None) and returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(given)
    except InputError as error:
        return _say(f"paceline: {error}", ExitCode.REFUSED)
    except KeyboardInterrupt:
        return _say("paceline: interrupted; nothing half-written is left behind.", ExitCode.FAILED)
    except BrokenPipeError:  # the reader of a pipe has gone, as in `paceline run .. | head`
        sys.stderr.close()
        return ExitCode.FAILED
    except OSError as error:
        return _say(f"paceline: failed: {error}; nothing half-written is left behind.", ExitCode.FAILED)
    except (PacelineError, MemoryError) as error:
        return _say(f"paceline: failed: {str(error) or type(error).__name__}", ExitCode.FAILED)
    except Exception as error:  # a bug of ours: its trace is what a report needs, and not what a user needs
        with NamedTemporaryFile("w", prefix="paceline-trace-", suffix=".txt", delete=False) as trace:
            traceback.print_exc(file=trace)
        what = f"{type(error).__name__}: {error}"
        return _say(f"paceline: failed: {what}; this is a bug, please report it with {trace.name}", ExitCode.FAILED)


def _dispatch(given: list[str]) -> int:
    available = {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}
    if given and given[0] in available:
        command = _load(available[given[0]])
        parser = ArgumentParser(
            prog=f"paceline {given[0]}",
            description=command.summary,
            epilog=f"examples:\n{command.examples}",
            formatter_class=RawDescriptionHelpFormatter,
        )
        command.configure(parser)
        return command.run(parser.parse_args(given[1:]))
    parser = ArgumentParser(
        prog="paceline",
        description="Exports a Gemma 4 target and its drafter, and runs the draft-verify loop on them.",
        epilog="commands:\n" + "\n".join(f"  {name:9} {_summary(point)}" for name, point in available.items()),
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"paceline {version('paceline')}")
    parser.add_argument("command", choices=list(available), metavar="COMMAND", help="one of those below")
    parser.parse_args(given)
    raise AssertionError("argparse exits when no command is given")


def _load(point: EntryPoint) -> Command:
    try:
        command: Command = point.load()
    except ModuleNotFoundError as error:
        extra = point.extras[0] if point.extras else "export"
        raise InputError(
            f"paceline {point.name} needs the package {error.name}; install it with: pip install 'paceline[{extra}]'"
        ) from None
    return command


def _summary(point: EntryPoint) -> str:
    try:
        return _load(point).summary
    except InputError as error:
        return f"({error})"


def _say(sentence: str, code: ExitCode) -> ExitCode:
    print(sentence, file=sys.stderr)
    return code
