"""What a client may ask for: OpenAI's fields, and a few of ours beside them.

A field that we cannot honour is refused unless it says what happens anyway; fields that nobody here knows are ignored, because
clients send many that do not change the text (`user`, `metadata`, `store`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from paceline.errors import InputError
from paceline.generate import MAX_DRAFT_LENGTH
from paceline.model import Model
from paceline.rules import Drafting
from paceline.sampling import MOST, Sampling
from paceline.serve.errors import ApiError
from paceline.settings import Settings

SAMPLING_FIELDS = {
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
}
MOST_STOPS = 4


def _as_stops(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise ValueError(f"allowed is a string, or a list of up to {MOST_STOPS}, none of them empty")
    return stops


def _as_draft_length(value: Any) -> Any:
    number = isinstance(value, int) and not isinstance(value, bool)
    if value != "auto" and not (number and 0 <= value <= MAX_DRAFT_LENGTH):
        raise ValueError(f"allowed is a whole number from 0 to {MAX_DRAFT_LENGTH}, or 'auto'")
    return value


def _as_text(value: Any) -> Any:
    if isinstance(value, list):
        for part in value:
            kind = part.get("type") if isinstance(part, dict) else part
            if not isinstance(part, dict) or kind != "text" or not isinstance(part.get("text"), str):
                raise ValueError(f"this model reads text only, so a part is {{'type': 'text', 'text': ..}} and not {kind!r}")
        return "".join(part["text"] for part in value)
    return value


def _as_prompt(value: Any) -> Any:
    prompt = value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list) else value
    tokens = isinstance(prompt, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in prompt)
    if not isinstance(prompt, str) and not tokens:
        raise ValueError("allowed is one text, or one list of token ids; send several prompts one by one")
    return prompt


class StreamOptions(BaseModel):
    """What a stream has beside the text."""

    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None


class ResponseFormat(BaseModel):
    """Text is all there is."""

    type: Literal["text"]


class Request(BaseModel):
    """What both kinds of request have in common. A field that is null or absent has its default."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Annotated[list[str], BeforeValidator(_as_stops)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    n: Literal[1] | None = None
    response_format: ResponseFormat | None = None
    # Not OpenAI's:
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    draft_length: Annotated[int | Literal["auto"], BeforeValidator(_as_draft_length)] | None = None
    drafting: Drafting | None = None

    @abstractmethod
    def tokens(self, model: Model) -> list[int]:
        """The prompt.

        Raises:
            ApiError, InputError: there is none, or it does not fit.
        """

    def most_tokens(self) -> int | None:
        """The limit of the answer, beside the KV cache's."""
        return self.max_tokens

    def settings(self, base: Settings) -> Settings:
        """What the request makes of the server's defaults.

        Raises:
            ApiError: a value is out of range.
        """
        return replace(
            base,
            max_new_tokens=self.most_tokens(),
            draft_length=self._draft_length(base.draft_length),
            sampling=self._sampling(base.sampling),
            drafting=self.drafting or base.drafting,
            stop=self.stop or (),
        )

    def _draft_length(self, default: int | None) -> int | None:
        if self.draft_length is None:
            return default
        return None if self.draft_length == "auto" else self.draft_length

    def _sampling(self, sampling: Sampling) -> Sampling:
        for name, value in self.model_dump(include=SAMPLING_FIELDS, exclude_none=True).items():
            if name == "top_k" and value == 0:  # how clients say that it is off
                value = None
            elif name == "seed":  # OpenAI's have a sign
                value %= MOST + 1
            try:
                sampling = replace(sampling, **{name: value})
            except InputError as error:
                raise ApiError(400, str(error), param=name) from None
        return sampling


class Message(BaseModel):
    """A message; what the template knows beside role and content is passed on as it is."""

    model_config = ConfigDict(strict=True, extra="allow")
    role: str
    content: Annotated[str, BeforeValidator(_as_text)] | None = None


class ChatRequest(Request):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    logprobs: Literal[False] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def most_tokens(self) -> int | None:
        """See `Request`; max_tokens is the older name."""
        return self.max_completion_tokens or self.max_tokens

    def tokens(self, model: Model) -> list[int]:
        """See `Request`."""
        messages = [message.model_dump() for message in self.messages]
        text = model.template.render(messages, **({"tools": self.tools} | (self.chat_template_kwargs or {})))
        return _fitting(model.prompt_tokens(text), model, "messages")


class CompletionRequest(Request):
    """POST /v1/completions."""

    prompt: Annotated[str | list[int], BeforeValidator(_as_prompt)]
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    logprobs: None = None
    suffix: Literal[""] | None = None

    def tokens(self, model: Model) -> list[int]:
        """See `Request`."""
        return _fitting(model.prompt_tokens(self.prompt), model, "prompt")


def _fitting(tokens: list[int], model: Model, param: str) -> list[int]:
    if len(tokens) > model.capacity:
        raise ApiError(
            400,
            f"{param} has {len(tokens)} tokens and the KV cache {model.capacity} rows; shorten it, or start the server with a "
            "larger --capacity.",
            param=param,
            code="context_length_exceeded",
        )
    return tokens
