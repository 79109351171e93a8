"""A conversation on one KV cache: a turn computes only what the cache does not hold yet.

Every turn renders all messages anew and keeps the rows that the new tokens share with the old ones. So the answer is that of a
fresh sequence, also where the template or the tokenizer writes an answer in other tokens than the model did.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any, Self, Unpack

from paceline.chat_template import ChatTemplate
from paceline.errors import CapacityError, InputError
from paceline.kept_sequence import KeptSequence
from paceline.model import Model, Piece
from paceline.settings import GenerateOptions, Settings
from paceline.stats import Stats

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
        self._sequence = KeptSequence(model)
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
        self._answer = self._answering(user, len(tokens), self._sequence.continue_with(tokens, settings))
        return self._answer

    def _answering(self, user: Message, prompt_tokens: int, pieces: Iterator[Piece]) -> Generator[Piece, None, None]:
        answer, emitted, stats = {"role": "assistant", "content": ""}, 0, None
        try:
            for piece in pieces:
                if not emitted:
                    self._messages += [user, answer]
                emitted, stats = emitted + 1, piece.stats
                if not piece.thought:  # the model's card asks to leave thoughts out of later turns
                    answer["content"] += piece.text
                yield piece
        finally:
            if emitted:
                self.turns += 1
                self.last_stats = stats or Stats(prompt_tokens=prompt_tokens - self._sequence.kept, emitted=emitted)
                self.stats.add(self.last_stats)

    def reset(self) -> None:
        """Starts a new conversation with the same system message, whose rows are kept where the cache still has them."""
        self._end_answer()
        self._messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def close(self) -> None:
        """Gives the sequence back to the model. A turn after that takes another, and computes all tokens anew."""
        self._end_answer()
        self._sequence.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _end_answer(self) -> None:
        """An answer that was left, but whose iterator somebody still has, must not go on in the cache."""
        if self._answer is not None:
            self._answer.close()
            self._answer = None
