"""Tokens to text and back, with the checkpoint's own tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer

from paceline.errors import InputError
from paceline.reading import read_bytes

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_BYTES = 256 << 20  # Gemma 4's has 33 million
THOUGHT_OPENS, THOUGHT_CLOSES = "<|channel>", "<channel|>"  # Gemma 4's; the channel's name is the first line between them
BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Reads a bundle's tokenizer. Raises InputError when it cannot be read."""
    file = folder / TOKENIZER_FILE
    with _refusing(f"{file} cannot be read", "export the bundle again"):
        tokenizer = Tokenizer.from_buffer(read_bytes(file, TOKENIZER_BYTES))
        # Settings of whoever trained with it would cut or fill prompts.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text.

    Raises:
        InputError: the text has half of a character, or the tokenizer fails.
    """
    with _refusing("the text cannot be made into tokens", "change it, or export the bundle again"):
        text.encode()
        tokens: list[int] = tokenizer.encode(text).ids
    return tokens


@contextmanager
def _refusing(what: str, step: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:  # the library raises plain Exception, and PanicException, which is none, where it is wrong
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise InputError(f"{what} ({error}); {step}.") from None
        raise


class StopTexts:
    """Ends a text in front of the first of some strings, whichever tokens and rounds they span.

    What could be the beginning of one is held back until more is known.
    """

    def __init__(self, stops: Sequence[str]):
        self.stops, self.held = stops, ""

    def push(self, text: str) -> tuple[str, bool]:
        """What of the text so far can be shown, and whether a stop ended it."""
        self.held += text
        found = [start for stop in self.stops if (start := self.held.find(stop)) >= 0]
        if found:
            shown, self.held = self.held[: min(found)], ""
            return shown, True
        most = max((len(stop) - 1 for stop in self.stops), default=0)
        waiting = next(
            (size for size in range(min(most, len(self.held)), 0, -1) if self._begins(self.held[-size:])),
            0,
        )
        shown, self.held = self.held[: len(self.held) - waiting], self.held[len(self.held) - waiting :]
        return shown, False

    def finish(self) -> str:
        """What was held back, when the text ends by itself."""
        held, self.held = self.held, ""
        return held

    def _begins(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self.stops)


class Thoughts:
    """Tells what a model thinks before it answers from the answer; a vocabulary without the tokens around it has none."""

    def __init__(self, tokenizer: Tokenizer):
        self.opens, self.closes = tokenizer.token_to_id(THOUGHT_OPENS), tokenizer.token_to_id(THOUGHT_CLOSES)
        self.inside = self.named = False

    def push(self, token: int, text: str) -> tuple[str, bool]:
        """A token and the text that it completed -> that text without the channel's name, and whether it is a thought."""
        if token == self.opens:
            self.inside, self.named = True, False
        elif self.inside and not self.named:
            _, newline, text = text.partition("\n")
            self.named = bool(newline)
        thought = self.inside
        if token == self.closes:
            self.inside = False
        return text, thought


class TextStream:
    """Turns tokens into text as they come, without ever showing half a character.

    A character outside the vocabulary is spelled in byte tokens, and a run of them is decoded as a whole (one wrong
    byte spoils all of it), so a run is shown when the token behind it arrives.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self.settled: list[int] = []  # the last token whose text is out: the next one may depend on it
        self.waiting: list[int] = []

    def push(self, token: int) -> str:
        """The text that this token settles; empty inside a run of byte tokens."""
        self.waiting.append(token)
        if token in self.special or BYTE_TOKEN.fullmatch(self.tokenizer.id_to_token(token) or ""):
            return ""  # special tokens are skipped, and so do not end a run
        return self.finish()

    def finish(self) -> str:
        """The text of all waiting tokens; at the end also of a character that was never completed."""
        before, after = self._decode(self.settled), self._decode(self.settled + self.waiting)
        self.settled, self.waiting = (self.settled + self.waiting)[-1:], []
        return after[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text
