"""What an evaluation asks of whoever runs the pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.errors import InputError
from paceline_export.evaluate.replay import Trace

Tell = Callable[[int], None]  # prompts that are done, since the last call


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue, and their class."""

    kind: str
    tokens: Sequence[int]


@dataclass(frozen=True)
class Texts:
    """How texts are written.

    Attributes:
        temperature: 0 is greedy.
        new_tokens: of a text at most; rounds start in these.
    """

    temperature: float
    new_tokens: int

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise InputError(f"--temperature is {self.temperature}; give a number from 0 (greedy) to 100.")
        if self.new_tokens < 1:
            raise InputError(f"--new-tokens is {self.new_tokens}; give 1 or more.")

    def seed(self, index: int) -> int:
        """Of a prompt's random numbers, the same for every source."""
        return 7919 * index + 1

    @property
    def name(self) -> str:
        """For tables."""
        return "greedy" if self.temperature == 0 else f"sampled at {self.temperature:g}"


class Source(Protocol):
    """A pair that can be evaluated."""

    def encode(self, prompt: str) -> list[int]:
        """A prompt's tokens, <bos> in front."""

    def traces(self, prompts: Sequence[Prompt], texts: Texts, tell: Tell) -> list[Trace]:
        """Writes a text after each prompt, and drafts at each of its places."""


def encoded(source: Source, classes: Mapping[str, Sequence[str]]) -> list[Prompt]:
    """The prompts of all classes as tokens."""
    return [Prompt(kind, source.encode(prompt)) for kind, some in classes.items() for prompt in some]
