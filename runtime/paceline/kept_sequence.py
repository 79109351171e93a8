"""A sequence that stays: a prompt keeps the KV rows that it shares with the text before it.

Every prompt is given whole, and what follows it is what a fresh sequence would write; only the tokens behind the shared ones
are computed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack

from paceline.drafter import Drafter
from paceline.errors import CancelledError, RollbackError
from paceline.kv_cache import KVCache
from paceline.model import Model, Piece
from paceline.ngram import Lookup
from paceline.rules import Rule, rule_for
from paceline.settings import Settings
from paceline.target import Target


class KeptSequence:
    """Holds one of the model's sequences from the first prompt until it is closed.

    Attributes:
        kept: tokens of the last prompt whose rows were there already; known once its first piece is.
    """

    def __init__(self, model: Model):
        self.model, self.kept = model, 0
        self._stack = ExitStack()
        self._sequence: tuple[Target, Drafter] | None = None
        self._tokens: list[int] = []  # of the text so far; the cache holds rows of the first ones
        self._pieces: Generator[Piece, None, None] | None = None

    def continue_with(self, tokens: Sequence[int], settings: Settings) -> Generator[Piece, None, None]:
        """Continues a prompt. Leaving the iterator early is allowed; the next prompt ends it.

        Args:
            tokens: the whole prompt, at least one token, at most the model's capacity.
            settings: of this generation.

        Raises:
            InputError: a biased or banned token is not in the vocabulary.
        """
        self._end()
        rule = rule_for(settings.sampling, settings.drafting, self.model.manifest.vocab_size, tokens)
        self.model.draft_length(settings.draft_length)  # times calls, once, in a sequence that can then become ours
        self._pieces = self._continuing(list(tokens), rule, settings)
        return self._pieces

    def _continuing(self, tokens: list[int], rule: Rule, settings: Settings) -> Generator[Piece, None, None]:
        if self._sequence is None:
            self._sequence = self._stack.enter_context(self.model.sequence())
        target, drafter = self._sequence
        self.kept = self._keep(target.cache, tokens)
        self._tokens = list(tokens)
        try:
            pieces = self.model.continue_sequence(target, drafter, tokens[self.kept :], rule, Lookup(tokens), settings)
            for piece in pieces:
                self._tokens.append(piece.token)
                yield piece
        except (GeneratorExit, CancelledError):  # between two tokens or chunks, where the cache is in order
            raise
        except BaseException:  # anywhere, even in the midst of moving rows
            target.cache.reset()
            raise

    def _keep(self, cache: KVCache, tokens: Sequence[int]) -> int:
        """Rolls the cache back to the rows that `tokens` begin with, and says how many there are.

        The last token is always left to compute, because its logits are wanted.
        """
        kept = common(self._tokens[: cache.length], tokens[:-1])
        try:
            cache.rollback(kept)
        except RollbackError:  # local caches have lost the rows before
            cache.reset()
            return 0
        return kept

    def close(self) -> None:
        """Gives the sequence back to the model. A prompt after that takes another, and computes all tokens anew."""
        self._end()
        self._stack.close()
        self._sequence, self._tokens = None, []

    def _end(self) -> None:
        """A generation that was left, but whose iterator somebody still has, must not go on in the cache."""
        if self._pieces is not None:
            self._pieces.close()
            self._pieces = None


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
