"""A conversation on one KV cache: a turn computes only what the cache does not hold yet.

Every turn renders all messages anew and keeps the rows that the new tokens share with the old ones. So the answer is that of a
fresh sequence, also where the template or the tokenizer writes an answer in other tokens than the model did.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, Unpack

from paceline.chat_template import ChatTemplate
from paceline.drafter import Drafter
from paceline.errors import CapacityError, InputError, RollbackError
from paceline.kv_cache import KVCache
from paceline.model import Model, Piece
from paceline.ngram import Lookup
from paceline.rules import Rule, rule_for
from paceline.settings import GenerateOptions, Settings
from paceline.stats import SourceStats, Stats
from paceline.target import Target

Message = dict[str, str]


class Chat:
    """Turns of a user and a model. Holds one of the model's sequences from the first turn until it is closed.

    Args:
        model: that answers; other generations may use it between turns.
        system: what the conversation begins with; None is no system message.
        template: None is the bundle's own.
        variables: that the template knows, such as `enable_thinking`.

    Attributes:
        turns: that were answered, in part at least; `reset` keeps this and `stats`.
        stats: all turns together.
        last_stats: the last turn's; its prompt_tokens are those that had to be computed. A turn that was left by closing its
            iterator counts tokens only.
    """

    def __init__(self, model: Model, system: str | None = None, template: ChatTemplate | None = None, **variables: Any):
        self.model, self.system, self.variables = model, system, variables
        self.template = template or model.template
        self.turns, self.stats = 0, Stats()
        self.last_stats: Stats | None = None
        self._stack = ExitStack()
        self._sequence: tuple[Target, Drafter] | None = None
        self._tokens: list[int] = []  # of the text so far; the cache holds rows of the first ones
        self._answer: Generator[Piece, None, None] | None = None
        self._messages: list[Message] = []
        self.reset()

    @property
    def messages(self) -> list[Message]:
        """The conversation so far, as copies; an answer that is being written is there as far as it is."""
        return [dict(message) for message in self._messages]

    def send(self, text: str, **options: Unpack[GenerateOptions]) -> Iterator[Piece]:
        """One turn. Leaving the iterator early is allowed: what was emitted is the answer then, and the next turn goes on.

        Args:
            text: the user's message.
            options: as of `Model.generate`; the default of `sampling` is the checkpoint's own.

        Returns:
            an iterator of pieces. The messages change when its first piece is there.

        Raises:
            InputError: an option is out of range, or the template refuses the conversation.
            CapacityError: the conversation does not fit any more. Nothing has changed then.
        """
        self._end_answer()
        options.setdefault("sampling", self.model.sampling)
        settings = Settings(**options)
        user = {"role": "user", "content": text}
        tokens = self.model.encode(self.template.render([*self._messages, user], **self.variables))
        if len(tokens) > self.model.capacity:
            raise CapacityError(
                f"the conversation has {len(tokens)} tokens with this message and the KV cache {self.model.capacity} rows; "
                "start a new one with /reset, or load the bundle with a larger capacity."
            )
        if not tokens:
            raise InputError(f"{self.template.where} renders nothing; correct it.")
        rule = rule_for(settings.sampling, settings.drafting, self.model.manifest.vocab_size, tokens)
        self.model.draft_length(settings.draft_length)  # times calls, once, in a sequence that can then become ours
        self._answer = self._answering(user, tokens, rule, settings)
        return self._answer

    def _answering(self, user: Message, tokens: list[int], rule: Rule, settings: Settings) -> Generator[Piece, None, None]:
        if self._sequence is None:
            self._sequence = self._stack.enter_context(self.model.sequence())
        target, drafter = self._sequence
        kept = self._keep(target.cache, tokens)
        new, self._tokens = tokens[kept:], list(tokens)
        answer, emitted, stats = {"role": "assistant", "content": ""}, 0, None
        try:
            for piece in self.model.continue_sequence(target, drafter, new, rule, Lookup(tokens), settings):
                if not emitted:
                    self._messages += [user, answer]
                emitted, stats = emitted + 1, piece.stats
                self._tokens.append(piece.token)
                if not piece.thought:  # the model's card asks to leave thoughts out of later turns
                    answer["content"] += piece.text
                yield piece
        except GeneratorExit:  # between two tokens, where the cache is in order
            raise
        except BaseException:  # anywhere, even in the midst of moving rows
            target.cache.reset()
            raise
        finally:
            if emitted:
                self.turns += 1
                self.last_stats = stats or Stats(prompt_tokens=len(new), emitted=emitted)
                add(self.stats, self.last_stats)

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

    def reset(self) -> None:
        """Starts a new conversation with the same system message, whose rows are kept where the cache still has them."""
        self._end_answer()
        self._messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def close(self) -> None:
        """Gives the sequence back to the model. A turn after that takes another, and computes all tokens anew."""
        self._end_answer()
        self._stack.close()
        self._sequence, self._tokens = None, []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _end_answer(self) -> None:
        """An answer that was left, but whose iterator somebody still has, must not go on in the cache."""
        if self._answer is not None:
            self._answer.close()
            self._answer = None


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def add(total: Stats, turn: Stats) -> None:
    """Counts a turn into a total."""
    for name, value in vars(turn).items():
        if isinstance(value, int | float):
            vars(total)[name] += value
    for ours, theirs in ((total.accepted_at, turn.accepted_at), (total.drafted_at, turn.drafted_at)):
        ours.extend([0] * (len(theirs) - len(ours)))
        for position, count in enumerate(theirs):
            ours[position] += count
    for source, own in turn.sources.items():
        so_far = total.sources.setdefault(source, SourceStats())
        so_far.rounds += own.rounds
        so_far.drafted += own.drafted
        so_far.accepted += own.accepted
