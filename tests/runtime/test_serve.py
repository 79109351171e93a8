"""The server, driven by OpenAI's own client: its texts are those of the Python API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from serving import Served

import paceline
from paceline.chat import Chat
from paceline.chat_template import ChatTemplate
from paceline.sampling import Sampling

QUESTIONS = [
    "Return the number of items in the queue.",
    "Open the file and return its first line.",
]
PROMPT = "def read_lines(path):\n"
SAMPLED = {"temperature": 0.9, "seed": 7}


@pytest.fixture(scope="module")
def alone(small_bundle: Path) -> paceline.Model:
    """What the server's texts are compared with."""
    return paceline.load(small_bundle, threads=1)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chatted(client: OpenAI, messages: list[Any], **options: Any) -> Any:
    return client.chat.completions.create(model="small", messages=messages, **options)


def completed(client: OpenAI, prompt: Any = PROMPT, **options: Any) -> Any:
    return client.completions.create(model="small", prompt=prompt, **options)


def streamed(chunks: Any) -> tuple[str, str | None]:
    """The text of a stream, and why it ended."""
    text, reason = "", None
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or "" if chunk.object == "chat.completion.chunk" else choice.text
            reason = choice.finish_reason or reason
    return text, reason


def generated(model: paceline.Model, prompt: Any = PROMPT, **options: Any) -> str:
    return "".join(piece.text for piece in model.generate(prompt, draft_length=3, **options))


def test_a_conversation_is_chats_own_and_a_turn_keeps_the_rows_of_those_before(client: OpenAI, alone: paceline.Model) -> None:
    messages: list[Any] = []
    with Chat(alone) as chat:
        for question in QUESTIONS:
            expected = "".join(piece.text for piece in chat.send(question, max_new_tokens=40, draft_length=3))
            messages.append(user(question))
            whole = chatted(client, messages, max_tokens=40)
            assert whole.choices[0].message.content == expected
            assert whole.usage.prompt_tokens_details.cached_tokens >= len(messages) // 2 * 19
            assert streamed(chatted(client, messages, max_completion_tokens=40, stream=True)) == (expected, "length")
            messages.append({"role": "assistant", "content": expected})
    parts = [user(QUESTIONS[0]) | {"content": [{"type": "text", "text": "Return the number "}, {"type": "text", "text": "of"}]}]
    joined = [user("Return the number of")]
    assert chatted(client, parts, max_tokens=8).choices == chatted(client, joined, max_tokens=8).choices


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT], [2, 40, 41, 42]], ids=["text", "list", "tokens"])
def test_a_completion_is_generates_own(client: OpenAI, alone: paceline.Model, prompt: Any) -> None:
    expected = generated(alone, PROMPT if prompt == [PROMPT] else prompt, max_new_tokens=32)
    assert completed(client, prompt, max_tokens=32).choices[0].text == expected
    assert streamed(completed(client, prompt, max_tokens=32, stream=True)) == (expected, "length")


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        ({"temperature": 0.9, "seed": 7}, {}),
        ({"temperature": 0.9, "seed": 7, "top_p": 0.6}, {"drafting": "block"}),
        ({"temperature": 1.4, "seed": 1}, {"top_k": 5, "min_p": 0.05}),
        ({"presence_penalty": 1.5, "frequency_penalty": 0.7}, {"repetition_penalty": 1.3}),
        ({"logit_bias": {"40": 1000}}, {}),
    ],
)
def test_sampling_fields_reach_the_sampler(
    client: OpenAI, alone: paceline.Model, options: dict[str, Any], extra: dict[str, Any]
) -> None:
    """As in the Python API, and twice the same."""
    given = options | {name: value for name, value in extra.items() if name != "drafting"}
    given |= {"logit_bias": {int(token): bias for token, bias in options.get("logit_bias", {}).items()}}
    drafting = paceline.Drafting(extra.get("drafting", "greedy"))
    expected = generated(alone, max_new_tokens=24, sampling=Sampling(**given), drafting=drafting)
    assert expected != generated(alone, max_new_tokens=24)
    for _ in range(2):
        assert completed(client, max_tokens=24, extra_body=extra, **options).choices[0].text == expected


def test_fields_change_what_they_name_and_leave_the_checkpoints_own(client: OpenAI, alone: paceline.Model) -> None:
    seeds = {completed(client, max_tokens=24, temperature=1.5).choices[0].text for _ in range(3)}
    assert len(seeds) == 3  # without a seed every text is another
    off = completed(client, max_tokens=16, user="ada", extra_body={"top_k": 0, "store": True}).choices[0].text
    assert off == generated(alone, max_new_tokens=16)
    negative = completed(client, max_tokens=16, temperature=1, seed=-1).choices[0].text
    assert negative == generated(alone, max_new_tokens=16, sampling=Sampling(1.0, seed=2**64 - 1))


def test_draft_length_changes_the_rounds_and_not_the_text(client: OpenAI) -> None:
    texts, drafted = set(), {}
    for length in (0, 3, 7, "auto", None):
        answer = completed(client, max_tokens=32, extra_body={"draft_length": length})
        texts.add(answer.choices[0].text)
        drafted[length] = answer.usage.paceline["drafted"], answer.usage.paceline["rounds"]
    assert len(texts) == 1
    assert drafted[0] == (0, 31)
    assert drafted[3] == drafted[None]  # the server's default
    assert drafted[7][0] > drafted[3][0] > 0


def test_a_stop_text_ends_the_answer_in_front_of_it(client: OpenAI) -> None:
    text = completed(client, max_tokens=40).choices[0].text
    stop = text[20:23]
    for given in (stop, ["never there", stop]):
        answer = completed(client, max_tokens=40, stop=given).choices[0]
        assert (answer.text, answer.finish_reason) == (text[: text.index(stop)], "stop")
        assert streamed(completed(client, max_tokens=40, stop=given, stream=True)) == (text[: text.index(stop)], "stop")


def test_usage_counts_tokens_and_says_what_drafting_brought(client: OpenAI, alone: paceline.Model) -> None:
    pieces = list(alone.generate(PROMPT, max_new_tokens=32, draft_length=3))
    stats = pieces[-1].stats
    assert stats
    chunks = list(completed(client, max_tokens=32, stream=True, stream_options={"include_usage": True}))
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    again = completed(client, max_tokens=32)
    for usage in (chunks[-1].usage, again.usage):
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(alone.encode(PROMPT)), 32)
        assert usage.total_tokens == usage.prompt_tokens + 32
        details = usage.completion_tokens_details
        assert (details.accepted_prediction_tokens, details.reasoning_tokens) == (stats.accepted, 0)
        assert details.rejected_prediction_tokens == stats.drafted - stats.accepted
        for name in ("rounds", "drafted", "accepted", "tokens_per_round", "acceptance_by_position"):
            assert usage.paceline[name] == stats.to_json()[name]
        assert all(usage.paceline[name] > 0 for name in ("tokens_per_s", "prefill_ms", "draft_ms", "verify_ms"))
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
    assert all(chunk.usage is None for chunk in completed(client, max_tokens=2, stream=True))


def test_thoughts_are_told_from_the_answer(client: OpenAI, model: paceline.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [user(QUESTIONS[0])]
    plain = chatted(client, messages, max_tokens=24).choices[0].message.content
    tokens = model.encode(model.template.render(messages))
    texts = [
        model.tokenizer.id_to_token(piece.token)
        for piece in paceline.load(model.bundle.folder, threads=1).generate(tokens, max_new_tokens=24)
    ]
    opens = next(index for index, text in enumerate(texts) if texts.count(text) == 1)
    closes = next(index for index, text in enumerate(texts) if index > opens + 3 and texts.index(text) == index)
    monkeypatch.setattr("paceline.text.THOUGHT_OPENS", texts[opens])
    monkeypatch.setattr("paceline.text.THOUGHT_CLOSES", texts[closes])
    answer = chatted(client, messages, max_tokens=24)
    message = answer.choices[0].message
    assert answer.usage.completion_tokens_details.reasoning_tokens == closes - opens + 1
    assert message.reasoning_content
    assert 0 < len(message.content) < len(plain)
    deltas = [chunk.choices[0].delta for chunk in chatted(client, messages, max_tokens=24, stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == message.content
    assert "".join(delta.model_extra.get("reasoning_content", "") for delta in deltas) == message.reasoning_content


def test_tools_and_variables_reach_the_template(client: OpenAI, model: paceline.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "{{ tools[0].function.name }} {{ enable_thinking }} {% for m in messages %}{{ m.name }}{% endfor %}"
    monkeypatch.setattr(model, "template", ChatTemplate(source, {}))
    tool = {"type": "function", "function": {"name": "search"}}
    variables = {"enable_thinking": True, "self": "me", "messages": "no"}
    answer = chatted(
        client,
        [user("x") | {"name": "ada"}],
        tools=[tool],
        max_tokens=8,
        extra_body={"chat_template_kwargs": variables},
    )
    assert answer.choices[0].message.content == completed(client, "search True ada", max_tokens=8).choices[0].text


def test_a_character_of_several_tokens_comes_whole(client: OpenAI, model: paceline.Model) -> None:
    """Biases and penalties have the model write the four bytes in order."""
    tokens = [model.tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "😀".encode()]
    bias = {str(token): 1000 - 50 * place for place, token in enumerate(tokens)}
    penalties = {"presence_penalty": 100, "frequency_penalty": 100}
    chunks = list(completed(client, "x = ", max_tokens=4, logit_bias=bias, stream=True, **penalties))
    assert [chunk.choices[0].text for chunk in chunks if chunk.choices[0].text] == ["😀"]


def test_the_model_is_listed(client: OpenAI, served: Served) -> None:
    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").owned_by == "paceline"
    with pytest.raises(openai.NotFoundError, match="model 'other' is not here; this server has 'small'"):
        client.models.retrieve("other")
    assert served.health() == {"status": "ok", "model": "small", "busy": False, "waiting": 0}
