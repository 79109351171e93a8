"""The errors a caller may catch. The command line turns each into one sentence and an exit code."""

from __future__ import annotations

HEAD, TAIL = 3000, 600  # characters of a text that are kept where it is longer: what was found, and the next step


class PacelineError(Exception):
    """Base of every error that paceline raises on purpose; its text is one sentence for the user.

    It names what files hold, and these come from strangers: so it is one line, not endless, and cannot steer a terminal.
    """

    def __init__(self, text: str = ""):
        super().__init__(printable(text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} … {text[-TAIL:]}"))


class InputError(PacelineError):
    """The input is refused (exit code 2): the text names what was found, what is allowed and what to do next."""


class CapacityError(InputError):
    """The tokens asked for do not fit in the KV cache, or that not in memory; raised before any graph is called."""


class CancelledError(PacelineError):
    """A generation was cancelled before it wrote a token; the rows of its prompt that were computed are kept."""


class RollbackError(PacelineError):
    """A rollback to rows that the KV cache no longer holds; never a quiet no-op."""


def printable(text: str) -> str:
    """A text of a stranger as one line, with what would steer a terminal spelled out."""
    return "".join(each if each.isprintable() else " " if each.isspace() else _spelled(each) for each in text)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()
