"""The routes: what is asked, what is answered, and what becomes of it when the client leaves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import time
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.errors import InputError
from paceline.serve.engine import Engine, Generation, QueueFullError, StoppedError
from paceline.serve.errors import ApiError, api_error
from paceline.serve.guard import Guard
from paceline.serve.requests import ChatRequest, CompletionRequest, Request
from paceline.serve.responses import Answer, ChatForm, EventStream, Form, TextForm, Writer, event
from paceline.settings import Settings

MOST_BODY_BYTES = 2**20
REFUSALS = (ApiError, ValidationError, InputError, QueueFullError, StoppedError, HTTPException)


def application(engine: Engine, name: str, defaults: Settings, *, local: bool, key: str | None = None) -> Starlette:
    """The server.

    Args:
        engine: an open one.
        name: the model's id.
        defaults: of generations, where a request does not say otherwise.
        local, key: see `Guard`.
    """
    api = Api(engine, name, defaults)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", api.chat, methods=["POST"]),
            Route("/v1/completions", api.completion, methods=["POST"]),
            Route("/v1/models", api.models),
            Route("/v1/models/{id:path}", api.model),
            Route("/health", api.health),
        ],
        middleware=[Middleware(Guard, local=local, key=key)],
        exception_handlers=dict.fromkeys((*REFUSALS, Exception), _refused),
    )


class Api:
    """The endpoints of one model."""

    def __init__(self, engine: Engine, name: str, defaults: Settings):
        self.engine, self.name, self.defaults = engine, name, defaults
        self.created = int(time())

    async def chat(self, http: HttpRequest) -> Response:
        """POST /v1/chat/completions."""
        return await self._answer(http, ChatRequest, ChatForm())

    async def completion(self, http: HttpRequest) -> Response:
        """POST /v1/completions."""
        return await self._answer(http, CompletionRequest, TextForm())

    async def models(self, http: HttpRequest) -> Response:
        """GET /v1/models."""
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def model(self, http: HttpRequest) -> Response:
        """GET /v1/models/ID."""
        self._require_known(http.path_params["id"])
        return JSONResponse(self._described())

    async def health(self, http: HttpRequest) -> Response:
        """GET /health."""
        engine = self.engine
        return JSONResponse({"status": "ok", "model": self.name, "busy": engine.busy, "waiting": engine.waiting})

    async def _answer(self, http: HttpRequest, kind: type[Request], form: Form) -> Response:
        asked = kind.model_validate_json(await _body(http))
        self._require_known(asked.model or self.name)
        tokens = await run_in_threadpool(asked.tokens, self.engine.model)  # touches no graph, and long prompts take a while
        settings, answer = asked.settings(self.defaults), Answer(len(tokens))
        writer = Writer(form, self.name, bool(asked.stream_options and asked.stream_options.include_usage))
        if asked.stream:
            events = self._events(http, tokens, settings, answer, writer)
            return EventStream(await anext(events), events)  # what fails before the first token has its own status
        async with self._generating(http, tokens, settings) as generation:
            async for piece in generation:
                answer.pieces.append(piece)
        _say(http, 200, summary(answer))
        return JSONResponse(writer.whole(answer))

    async def _events(
        self, http: HttpRequest, tokens: list[int], settings: Settings, answer: Answer, writer: Writer
    ) -> AsyncIterator[bytes]:
        async with self._generating(http, tokens, settings) as generation:
            answer.pieces.append(await anext(generation))
            yield writer.opening() + writer.delta(answer.pieces[0])
            try:
                async for piece in generation:
                    answer.pieces.append(piece)
                    if piece.text:
                        yield writer.delta(piece)
            except Exception as error:  # the status is sent already
                failed = api_error(error)
                _say(http, failed.status, f"{failed.message} ({len(answer.pieces)} tokens were sent)")
                yield event(failed.body())
                return
        _say(http, 200, summary(answer))
        yield writer.closing(answer)

    @asynccontextmanager
    async def _generating(self, http: HttpRequest, tokens: list[int], settings: Settings) -> AsyncIterator[Generation]:
        """A generation that ends when the client leaves or the answer is left."""
        generation = self.engine.submit(tokens, settings)

        async def watch() -> None:
            while (await http.receive())["type"] != "http.disconnect":
                pass
            self.engine.cancel(generation)

        watching = asyncio.create_task(watch())
        try:
            yield generation
        finally:
            watching.cancel()
            self.engine.cancel(generation)

    def _require_known(self, model: str) -> None:
        if model != self.name:
            raise ApiError(
                404, f"model {model!r} is not here; this server has {self.name!r}.", param="model", code="model_not_found"
            )

    def _described(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "paceline"}


async def _body(http: HttpRequest) -> bytes:
    body, size = bytearray(), 0
    try:
        async for chunk in http.stream():  # to its end, because a client reads no answer before it has sent everything
            size += len(chunk)
            if size <= MOST_BODY_BYTES:
                body += chunk
    except ClientDisconnect:
        raise StoppedError from None
    if size > MOST_BODY_BYTES:
        raise ApiError(413, f"the body has {size} bytes; allowed are {MOST_BODY_BYTES}: send a shorter prompt.")
    return bytes(body)


async def _refused(http: HttpRequest, error: Exception) -> Response:
    failed = api_error(error)
    _say(http, failed.status, failed.message)
    return failed.response()


def summary(answer: Answer) -> str:
    """One answer in a line of the log."""
    stats = answer.stats
    return (
        f"{answer.prompt_tokens} tokens of prompt, {answer.prompt_tokens - stats.prompt_tokens} of them kept, "
        f"{stats.emitted} of answer, {stats.tokens_per_s:.1f} tokens/s, {stats.accepted} of {stats.drafted} drafts accepted"
    )


def _say(http: HttpRequest, status: int, text: str) -> None:
    line = f"{http.method} {http.scope['path']} {status}: {text}"
    print("".join(c if c.isprintable() else "?" for c in line), file=sys.stderr, flush=True)  # some of it is the client's
