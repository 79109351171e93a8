"""Bodies of answers, whole or as the events of a stream, in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import time
from typing import Any, Protocol
from uuid import uuid4

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline.model import Piece
from paceline.stats import Stats

DONE = b"data: [DONE]\n\n"
# What of the statistics OpenAI's usage has no place for, or not under its own name.
SHOWN = ["rounds", "drafted", "accepted", "tokens_per_round", "acceptance_by_position"]
SHOWN += ["tokens_per_s", "prefill_ms", "draft_ms", "verify_ms"]


@dataclass
class Answer:
    """What was written so far for a prompt."""

    prompt_tokens: int
    pieces: list[Piece] = field(default_factory=list)

    def text(self, thought: bool) -> str:
        """What the model thought, or what it says after that."""
        return "".join(piece.text for piece in self.pieces if piece.thought is thought)

    @property
    def stats(self) -> Stats:
        """Of the whole answer, once its last piece is there."""
        stats = self.pieces[-1].stats
        assert stats is not None
        return stats

    @property
    def reason(self) -> str:
        """Why it ended."""
        reason = self.pieces[-1].finish_reason
        assert reason is not None
        return reason.value

    def usage(self) -> dict[str, Any]:
        """OpenAI's counts, and what drafting brought."""
        stats, counters, tokens = self.stats, self.stats.to_json(), len(self.pieces)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "prompt_tokens_details": {"cached_tokens": self.prompt_tokens - stats.prompt_tokens},
            "completion_tokens_details": {
                "accepted_prediction_tokens": stats.accepted,
                "rejected_prediction_tokens": stats.drafted - stats.accepted,
                "reasoning_tokens": sum(piece.thought for piece in self.pieces),
            },
            "paceline": {name: counters[name] for name in SHOWN},
        }


class Form(Protocol):
    """How one kind of answer is written.

    Attributes:
        prefix: of ids.
        whole, chunk: what the objects are called.
        opening, closing: of the choice in a stream's first and last event.
    """

    prefix: str
    whole: str
    chunk: str
    opening: dict[str, Any]
    closing: dict[str, Any]

    def choice(self, answer: Answer) -> dict[str, Any]:
        """Of a whole answer."""

    def delta(self, piece: Piece) -> dict[str, Any]:
        """Of the choice in an event with text."""


class ChatForm:
    """Chat completions."""

    prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self) -> None:
        self.opening: dict[str, Any] = {"delta": {"role": "assistant", "content": ""}}
        self.closing: dict[str, Any] = {"delta": {}}

    def choice(self, answer: Answer) -> dict[str, Any]:
        """See `Form`."""
        thought = answer.text(thought=True)
        message = {"role": "assistant", "content": answer.text(thought=False)}
        return {"message": message | ({"reasoning_content": thought} if thought else {})}

    def delta(self, piece: Piece) -> dict[str, Any]:
        """See `Form`."""
        return {"delta": {"reasoning_content" if piece.thought else "content": piece.text}}


class TextForm:
    """Completions, where a thought is text like any other."""

    prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"

    def __init__(self) -> None:
        self.opening: dict[str, Any] = {"text": ""}
        self.closing: dict[str, Any] = {"text": ""}

    def choice(self, answer: Answer) -> dict[str, Any]:
        """See `Form`."""
        return {"text": "".join(piece.text for piece in answer.pieces)}

    def delta(self, piece: Piece) -> dict[str, Any]:
        """See `Form`."""
        return {"text": piece.text}


class Writer:
    """Writes one answer.

    Args:
        form: chat or text.
        model: its id.
        with_usage: whether a stream ends with its usage.
    """

    def __init__(self, form: Form, model: str, with_usage: bool):
        self.form, self.with_usage = form, with_usage
        self._head = {"id": form.prefix + uuid4().hex, "created": int(time()), "model": model}

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choice = {"index": 0, **self.form.choice(answer), "logprobs": None, "finish_reason": answer.reason}
        return {**self._head, "object": self.form.whole, "choices": [choice], "usage": answer.usage()}

    def opening(self) -> bytes:
        """A stream's first event."""
        return self._event(self.form.opening)

    def delta(self, piece: Piece) -> bytes:
        """The event of a piece."""
        return self._event(self.form.delta(piece))

    def closing(self, answer: Answer) -> bytes:
        """A stream's last events."""
        last = self._event(self.form.closing, answer.reason)
        if self.with_usage:
            last += event(self._chunk([]) | {"usage": answer.usage()})
        return last + DONE

    def _event(self, choice: dict[str, Any], reason: str | None = None) -> bytes:
        return event(self._chunk([{"index": 0, **choice, "logprobs": None, "finish_reason": reason}]))

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"usage": None} if self.with_usage else {}
        return {**self._head, "object": self.form.chunk, "choices": choices, **usage}


class EventStream(Response):
    """Sends events as they come. It does not watch for the client's leaving, which ends the events by itself.

    Args:
        first, rest: the events.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncIterator[bytes]):
        super().__init__(headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self.first, self.rest = first, rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.first, "more_body": True})
        async for each in self.rest:
            await send({"type": "http.response.body", "body": each, "more_body": True})
        await send({"type": "http.response.body"})


def event(body: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
