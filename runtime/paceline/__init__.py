"""Runs a Gemma 4 pair from a bundle: the target verifies what its drafter proposes, on a phone or a laptop CPU.

>>> import paceline
>>> model = paceline.load("bundle")  # doctest: +SKIP
>>> for piece in model.generate("def main():", max_new_tokens=64):  # doctest: +SKIP
...     print(piece.text, end="")
"""

from paceline.chat import Chat
from paceline.chat_template import ChatTemplate
from paceline.errors import CancelledError, CapacityError, InputError, PacelineError, RollbackError
from paceline.generate import FinishReason
from paceline.model import Model, Piece, load
from paceline.rules import Drafting
from paceline.sampling import Sampling
from paceline.stats import Stats, distinct_4grams

__all__ = [
    "CancelledError",
    "CapacityError",
    "Chat",
    "ChatTemplate",
    "Drafting",
    "FinishReason",
    "InputError",
    "Model",
    "PacelineError",
    "Piece",
    "RollbackError",
    "Sampling",
    "Stats",
    "distinct_4grams",
    "load",
]
