"""What a client is told when a request is refused or fails, in OpenAI's form."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from paceline.errors import InputError
from paceline.serve.engine import QueueFullError, StoppedError

MOST_SHOWN = 60  # characters of a wrong value
PATHS = "this server has POST /v1/chat/completions, POST /v1/completions, GET /v1/models and GET /health"
RETRY_AFTER_S = 1  # a guess: nobody knows how long the answers before it become


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP.
        message: one sentence with what was found, what is allowed, and the next step.
        param: the request's field that it is about.
        code: OpenAI's name of the error, where it has one.
        headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    def body(self) -> dict[str, Any]:
        """As JSON."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """As a whole answer."""
        return JSONResponse(self.body(), self.status, self.headers)


def api_error(error: Exception) -> ApiError:
    """What a client is told of any error; the trace of one that nobody expected goes to stderr."""
    match error:
        case ApiError():
            return error
        case ValidationError():
            return _invalid(error)
        case InputError():
            return ApiError(400, str(error))
        case QueueFullError():
            return ApiError(
                429,
                "all places of the queue are taken; try again later.",
                code="queue_full",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        case StoppedError():
            return ApiError(503, "the answer was cancelled; the client has left, or the server is shutting down.")
        case HTTPException():
            return ApiError(error.status_code, f"{error.detail}; {PATHS}.", headers=error.headers)
    traceback.print_exception(error)
    return ApiError(500, f"the answer failed ({type(error).__name__}: {error}); the server's log says where.")


def _invalid(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON ({first['ctx']['error']}); send one JSON object.")
    param = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return ApiError(400, f"{param} is missing; add it.", param=param)
    found = _shortened(repr(first["input"]))
    allowed = first["msg"].removeprefix("Value error, ").replace("Input should be", "allowed is")
    allowed = allowed.replace("greater than or equal to", "at least")
    hint = "leave it out" if first["type"] in ("literal_error", "none_required") else "correct it"
    return ApiError(400, f"{param or 'the body'} is {found}; {allowed}: {hint}.", param=param or None)


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
