"""What the server refuses, and that neither that nor a client's leaving or a failure harms the next answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI
from serving import ENDLESS, QUEUE, Served

import paceline
from paceline.target import Target

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPTS = ["def read_lines(path):\n", "import os\nimport sys\n\nclass Config", "for key, value in ", "try:\n    result = "]
USER = {"role": "user", "content": "x"}


@pytest.fixture(scope="module")
def expected(running: tuple[Served, paceline.Model]) -> dict[str, str]:
    """Texts that were written by a server with nothing else to do."""
    with running[0].client() as client:
        return {prompt: completed(client, prompt) for prompt in PROMPTS}


def completed(client: OpenAI, prompt: str) -> str:
    text: str = client.completions.create(model="small", prompt=prompt, max_tokens=40).choices[0].text
    return text


@pytest.fixture
def _well_afterwards(served: Served, client: OpenAI, expected: dict[str, str]) -> Iterator[None]:
    """Whatever a test did to the server, it writes the same texts after it."""
    yield
    served.until(busy=False, waiting=0)
    for prompt in (PROMPTS[0], PROMPTS[1]):
        assert completed(client, prompt) == expected[prompt]


@pytest.mark.parametrize(
    ("path", "body", "words", "param"),
    [
        (CHAT, {}, "messages is missing; add it", "messages"),
        (CHAT, {"messages": "x"}, "messages is 'x'; allowed is a valid array", "messages"),
        (CHAT, {"messages": [{"role": "user", "content": 3}]}, "allowed is a valid string", "messages.0.content"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "this model reads text only, .* not 'image_url'",
            "messages.0.content",
        ),
        (CHAT, {"messages": [{"role": "user", "content": ["text"]}]}, "reads text only", "messages.0.content"),
        (CHAT, {"messages": [USER], "temperature": "1"}, "temperature is '1'; allowed is a valid number", "temperature"),
        (CHAT, {"messages": [USER], "temperature": -1}, "temperature is -1.0; allowed is a number from", "temperature"),
        (CHAT, {"messages": [USER], "top_p": 1.5}, "top_p is 1.5; allowed is a number from 0 to 1", "top_p"),
        (CHAT, {"messages": [USER], "max_tokens": 0}, "max_tokens is 0; allowed is at least 1", "max_tokens"),
        (CHAT, {"messages": [USER], "stop": ["a"] * 5}, "allowed is a string, or a list of up to 4", "stop"),
        (CHAT, {"messages": [USER], "stop": ""}, "none of them empty", "stop"),
        (CHAT, {"messages": [USER], "n": 2}, "n is 2; allowed is 1: leave it out", "n"),
        (CHAT, {"messages": [USER], "logprobs": True}, "logprobs is True; allowed is False: leave it out", "logprobs"),
        (CHAT, {"messages": [USER], "response_format": {"type": "json_object"}}, "allowed is 'text'", "response_format.type"),
        (CHAT, {"messages": [USER], "tool_choice": "required"}, "tool_choice is 'required'", "tool_choice"),
        (CHAT, {"messages": [USER], "draft_length": 8}, "a whole number from 0 to 7, or 'auto'", "draft_length"),
        (CHAT, {"messages": [USER], "drafting": "no"}, "drafting is 'no'; allowed is 'greedy', ", "drafting"),
        (CHAT, {"messages": [USER], "logit_bias": {"x": 1}}, "logit_bias", "logit_bias.x.[key]"),
        (CHAT, {"messages": [USER], "logit_bias": {"99999": 1}}, "99999; allowed is a whole number from 0 to 4095", None),
        (CHAT, {"messages": [USER], "chat_template_kwargs": 1}, "chat_template_kwargs is 1", "chat_template_kwargs"),
        (TEXT, {"prompt": ["a", "b"]}, "send several prompts one by one", "prompt"),
        (TEXT, {"prompt": []}, "the prompt has no tokens", None),
        (TEXT, {"prompt": [4096]}, "prompt token 4096 is not in the vocabulary", None),
        (TEXT, {"prompt": "x", "echo": True}, "echo is True; allowed is False", "echo"),
        (TEXT, {"prompt": "x", "best_of": 2}, "best_of is 2; allowed is 1", "best_of"),
        (TEXT, {"prompt": "x", "logprobs": 1}, "logprobs is 1; allowed is null", "logprobs"),
        (TEXT, {"prompt": "x", "suffix": "y"}, "suffix is 'y'; allowed is ''", "suffix"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    client: OpenAI, path: str, body: dict[str, Any], words: str, param: str | None
) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as refused:
        client.post(path.removeprefix("/v1"), body=body | {"model": "small", "stream": True}, cast_to=object)
    assert (refused.value.type, refused.value.param) == ("invalid_request_error", param)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            CHAT,
            {"messages": [USER], "n": 1, "logprobs": False, "response_format": {"type": "text"}, "tool_choice": "auto"}
            | {"temperature": None, "stop": None, "stream": None, "draft_length": None, "nobody_knows": [1]},
        ),
        (TEXT, {"prompt": "x", "best_of": 1, "echo": False, "logprobs": None, "suffix": None, "stop": []}),
    ],
)
def test_a_field_that_says_what_happens_anyway_is_taken(served: Served, path: str, body: dict[str, Any]) -> None:
    """And so is one that nobody here knows, and a request without a model's name."""
    status, answer = served.raw("POST", path, json.dumps(body | {"max_tokens": 2}).encode())
    assert (status, answer["usage"]["completion_tokens"]) == (200, 2)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"\xff", 400, "the body is not JSON"),
        (b'{"prompt": "\\ud800"}', 400, "the body is not JSON"),
        (b'{"prompt": "x", "tools": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "the body is not JSON"),
        (b"[]", 400, "the body is []; allowed is an object"),
        (b'{"prompt": "x", "temperature": NaN}', 400, "temperature is nan; allowed is a number from"),
        (b'{"prompt": "' + b"x" * 2**20 + b'"}', 413, "the body has 1048590 bytes; allowed are 1048576"),
    ],
    ids=["cut", "not text", "half a character", "deep", "list", "nan", "large"],
)
def test_a_body_that_is_no_request_is_refused(served: Served, body: bytes, status: int, words: str) -> None:
    found, answer = served.raw("POST", TEXT, body)
    assert found == status
    assert words in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_what_is_not_here_is_said(served: Served, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="model 'other' is not here; this server has 'small'") as refused:
        client.completions.create(model="other", prompt="x")
    assert refused.value.code == "model_not_found"
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", TEXT, 405), ("POST", "/health", 405)):
        found, answer = served.raw(method, path)
        assert (found, "this server has POST /v1/chat" in answer["error"]["message"]) == (status, True)


@pytest.mark.usefixtures("_well_afterwards")
def test_a_prompt_that_does_not_fit_is_refused_and_one_that_fits_is_answered(model: paceline.Model, client: OpenAI) -> None:
    capacity = model.capacity
    with pytest.raises(openai.BadRequestError, match=f"has {capacity + 1} tokens and the KV cache {capacity} rows") as refused:
        client.completions.create(model="small", prompt=[7] * (capacity + 1))
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="messages has") as refused:
        client.chat.completions.create(model="small", messages=[{"role": "user", "content": "word " * capacity}])
    assert refused.value.code == "context_length_exceeded"
    answer = client.completions.create(model="small", prompt=[7] * capacity)
    assert (answer.choices[0].finish_reason, answer.usage and answer.usage.completion_tokens) == ("length", 1)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Host": "evil.example:80"}, "the request is for host 'evil.example:80'"),
        ({"Origin": "https://evil.example"}, "the request comes from a page of 'https://evil.example'"),
        ({"Origin": "null"}, "only pages of this machine may ask"),
        ({"Host": "[::1]:80", "Origin": "http://localhost:3000"}, ""),
    ],
)
def test_pages_from_elsewhere_may_not_ask(served: Served, headers: dict[str, str], words: str) -> None:
    status, answer = served.raw("POST", TEXT, b'{"prompt": "x", "max_tokens": 1}', **headers)
    assert (status, words in str(answer)) == (403 if words else 200, True)


@pytest.mark.usefixtures("_well_afterwards")
def test_requests_at_once_get_the_texts_that_they_get_alone(client: OpenAI, expected: dict[str, str]) -> None:
    with ThreadPoolExecutor(1 + QUEUE) as clients:
        texts = clients.map(lambda prompt: completed(client, prompt), PROMPTS + PROMPTS[:1])
        assert list(texts) == [expected[prompt] for prompt in PROMPTS + PROMPTS[:1]]


@pytest.mark.usefixtures("_well_afterwards")
def test_a_full_queue_is_said_and_nobody_in_it_loses_a_place(served: Served, client: OpenAI, expected: dict[str, str]) -> None:
    running = client.completions.create(model="small", prompt="x", stream=True, **ENDLESS)
    next(running)
    with ThreadPoolExecutor(QUEUE) as clients:
        waiting = [clients.submit(completed, client, prompt) for prompt in PROMPTS]
        served.until(busy=True, waiting=QUEUE)
        for _ in range(2):
            with pytest.raises(openai.RateLimitError, match="all places of the queue are taken; try again") as refused:
                completed(client, "x")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        running.close()
        assert [each.result() for each in waiting] == [expected[prompt] for prompt in PROMPTS]


@pytest.mark.usefixtures("_well_afterwards")
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_answer_wherever_it_is(
    served: Served, model: paceline.Model, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """While it is written, and while it waits."""
    passes = watched(monkeypatch)
    body = {"prompt": "x", "stream": stream} | ENDLESS | ENDLESS["extra_body"]
    running = served.send(TEXT, body)
    served.until(busy=True, waiting=0)
    waiting = [served.send(TEXT, body) for _ in range(QUEUE)]
    served.until(busy=True, waiting=QUEUE)
    waiting.pop(1).close()
    served.until(busy=True, waiting=QUEUE - 1)
    running.close()
    served.until(busy=True, waiting=QUEUE - 2)
    for connection in waiting:
        connection.close()
    served.until(busy=False, waiting=0)
    assert 0 < len(passes) < model.capacity // 2  # an answer that nobody ends has as many as the capacity


def watched(monkeypatch: pytest.MonkeyPatch, fails_at: int | None = None) -> list[Sequence[int]]:
    """What the target's passes are given. One of them may fail."""
    verify, passes = Target.verify, list[Sequence[int]]()

    def verified(target: Target, tokens: Sequence[int], *more: Any) -> Any:
        passes.append(tokens)
        if len(passes) == fails_at:
            raise RuntimeError("the graph broke")
        return verify(target, tokens, *more)

    monkeypatch.setattr(Target, "verify", verified)
    return passes


@pytest.mark.usefixtures("_well_afterwards")
def test_a_failure_is_said_and_the_server_goes_on(client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    watched(monkeypatch, fails_at=1)
    with pytest.raises(openai.InternalServerError, match=r"the answer failed \(RuntimeError: the graph broke\)"):
        client.completions.create(model="small", prompt=PROMPTS[0], stream=True)


@pytest.mark.usefixtures("_well_afterwards")
def test_a_failure_in_the_midst_of_a_stream_is_its_last_event(
    client: OpenAI, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched(monkeypatch, fails_at=3)
    chunks: list[Any] = []
    with pytest.raises(openai.APIError, match=r"the answer failed \(RuntimeError: the graph broke\)"):
        chunks.extend(client.completions.create(model="small", prompt=PROMPTS[0], stream=True))
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text
    assert expected[PROMPTS[0]].startswith(text)
