"""What a caller may say of a generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import TypedDict

from paceline.errors import InputError
from paceline.generate import MAX_DRAFT_LENGTH
from paceline.rules import Drafting
from paceline.sampling import GREEDY, Sampling


class GenerateOptions(TypedDict, total=False):
    """The keyword arguments of `Model.generate`; see `Settings`."""

    max_new_tokens: int | None
    draft_length: int | None
    sampling: Sampling
    drafting: Drafting
    stop: Sequence[str]
    cancel: Event | None


@dataclass(frozen=True)
class Settings:
    """How to generate.

    Attributes:
        max_new_tokens: at least 1; None is no limit but the capacity.
        draft_length: drafts a round, 0 to 7; 0 is plain decoding, None takes as many as pay.
        sampling: how the target chooses tokens; greedily unless it says otherwise.
        drafting: how drafts are drawn where the target samples.
        stop: texts in front of which the output ends.
        cancel: ends the generation once it is set, from any thread: after its next token, or chunk of the prompt.

    Raises:
        InputError: a value is out of range.
    """

    max_new_tokens: int | None = None
    draft_length: int | None = None
    sampling: Sampling = GREEDY
    drafting: Drafting = Drafting.GREEDY
    stop: Sequence[str] = ()
    cancel: Event | None = None

    def __post_init__(self) -> None:
        if self.draft_length is not None and not 0 <= self.draft_length <= MAX_DRAFT_LENGTH:
            raise InputError(f"draft length is {self.draft_length}; allowed are 0 (off) to {MAX_DRAFT_LENGTH}, or None.")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}; give 1 or more.")
        if isinstance(self.stop, str) or not all(self.stop):
            raise InputError(f"stop is {self.stop!r}; give a list of texts that are not empty.")
