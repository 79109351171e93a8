"""`paceline chat`: a conversation on the terminal.

Answers go to stdout and everything else to stderr, so that a pipe gets the answers alone.
"""

from __future__ import annotations

import json
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from types import FrameType

from rich.console import Console

from paceline.chat import Chat
from paceline.cli import drafting, loading, sampling
from paceline.cli.command import Command, ExitCode
from paceline.cli.run import stats_table
from paceline.errors import CancelledError, InputError
from paceline.generate import FinishReason
from paceline.partial import write_whole
from paceline.settings import GenerateOptions

HELP = """/reset      start a new conversation, with the same system message
/stats      the last answer's numbers, and those of all answers
/save FILE  write the messages as JSON; a file that exists is kept as it is
/help       these lines
/quit       leave, and so do Ctrl-D, and Ctrl-C where a message is typed
Ctrl-C while an answer is written ends the answer. A message that begins with a slash needs a space before it."""


def configure(parser: ArgumentParser) -> None:
    loading.configure(parser, capacity="for the whole conversation")
    parser.add_argument("--system", metavar="TEXT", help="system message that every conversation begins with")
    parser.add_argument(
        "--think",
        action="store_true",
        help="ask the template to let the model think before it answers; thoughts are shown dimmed, on stderr",
    )
    drafting.configure(parser)
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="end an answer after N tokens (default: its own end)")
    loading.configure_backend(parser)
    loading.configure_placement(parser)
    sampling.configure(parser, "These change what the checkpoint's own generation_config.json says.")


def run(options: Namespace) -> ExitCode:
    model = loading.loaded(options, options.backend, loading.placement(options))
    settings: GenerateOptions = {
        "max_new_tokens": options.max_new_tokens,
        "draft_length": options.draft,
        "sampling": sampling.chosen(options, model.sampling),
        "drafting": options.drafting,
    }
    with Chat(model, options.system, enable_thinking=options.think) as chat:
        for line in lines():
            if not line.strip():
                continue
            if line.split()[0] == "/quit" and line.startswith("/"):
                break
            try:
                if line.startswith("/"):
                    obey(line, chat)
                else:
                    answer(line, chat, settings)
            except InputError as error:  # of this line only: the conversation is as it was before
                say(str(error))
    return ExitCode.SUCCESS


def lines() -> Iterator[str]:
    """What the user types, with the line editor and its history where Python has it; or the lines of a pipe.

    Raises:
        InputError: it is not text.
    """
    prompt = ""
    if sys.stdin.isatty():
        with suppress(ImportError):  # not on Windows
            import readline  # noqa: F401  (input() uses it once it is imported)
        prompt = "> "
        say("/help says what can be typed beside messages.")
    while True:
        try:
            yield input(prompt)
        except (EOFError, KeyboardInterrupt):
            if prompt:
                print()
            return
        except UnicodeDecodeError as error:
            raise InputError(f"what was typed or piped in is not text ({error}); use {sys.stdin.encoding}.") from None


def answer(text: str, chat: Chat, settings: GenerateOptions) -> None:
    """Streams one answer, which Ctrl-C ends."""
    cancel = Event()
    cancellable = settings.copy()
    cancellable["cancel"] = cancel
    reason, stderr = FinishReason.CANCELLED, Console(stderr=True)
    with ctrl_c_sets(cancel):
        try:
            for piece in chat.send(text, **cancellable):
                if piece.thought:
                    stderr.print(piece.text, end="", style="dim", markup=False, highlight=False, soft_wrap=True)
                else:
                    print(piece.text, end="", flush=True)
                reason = piece.finish_reason or reason
        except (CancelledError, KeyboardInterrupt):  # before the first token; the second one
            pass
    print(flush=True)
    if reason is FinishReason.LENGTH:
        say("(the answer ends here because of --max-new-tokens, or because the KV cache is full; /reset empties it)")
    elif reason is FinishReason.CANCELLED:
        say("(stopped)")


@contextmanager
def ctrl_c_sets(cancel: Event) -> Iterator[None]:
    """The first Ctrl-C asks the generation to end after its next token; one more interrupts even a long prefill."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def obey(line: str, chat: Chat) -> None:
    """Runs a line that begins with a slash.

    Raises:
        InputError: there is no such command, or it cannot be done.
    """
    name, _, rest = line.strip().partition(" ")
    if name == "/save":
        save(rest.strip(), chat)
    elif rest or name not in ("/reset", "/stats", "/help"):
        raise InputError(f"{line.strip()!r} is no command; /help lists them.")
    elif name == "/reset":
        chat.reset()
        say("A new conversation.")
    elif name == "/stats":
        show_stats(chat)
    else:
        say(HELP)


def save(file: str, chat: Chat) -> None:
    """Writes the messages.

    Raises:
        InputError: no file is named, it exists, or it cannot be written.
    """
    if not file:
        raise InputError("/save needs the name of a file, as in /save chat.json.")
    text = json.dumps(chat.messages, indent=2, ensure_ascii=False) + "\n"
    try:
        target = Path(file).expanduser()
        if target.exists():
            raise InputError(f"{file} exists and is kept as it is; name another file.")
        write_whole(target, text)
    except (OSError, ValueError, RuntimeError) as error:  # a ~ of nobody
        raise InputError(f"{file} cannot be written ({error}); name another file.") from None
    say(f"{len(chat.messages)} messages are in {file}.")


def show_stats(chat: Chat) -> None:
    """The last answer's numbers as a table, and one line of all answers."""
    if chat.last_stats is None:
        say("No answer yet.")
        return
    Console(stderr=True).print(stats_table(chat.last_stats, "last answer"))
    total = chat.stats
    say(
        f"all {chat.turns} answers: {total.prompt_tokens} prompt tokens computed in {total.prefill_ms:.0f} ms, "
        f"{total.emitted} tokens of output, {total.accepted} of {total.drafted} drafts accepted, "
        f"{total.tokens_per_round:.2f} tokens a round"
    )


def say(text: str) -> None:
    """To the person, not into the answers."""
    print(text, file=sys.stderr, flush=True)


COMMAND = Command(
    summary="Chat with a model, sampling as its generation_config.json says unless an option says otherwise.",
    examples="""  paceline chat my-bundle
  paceline chat my-bundle --system "Answer in one sentence." --draft 3
  paceline chat my-bundle --temperature 0 --max-new-tokens 256""",
    configure=configure,
    run=run,
)
