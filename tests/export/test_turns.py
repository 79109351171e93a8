"""What a bundle says of a conversation's turns is what its template writes, and nothing is said of other templates."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_pair import TARGET

from paceline.bundle import CHAT_TEMPLATE, Bundle
from paceline.chat_template import ChatTemplate
from paceline.manifest import ChatTurns
from paceline_export.turns import chat_turns, turns_of

# Turns as Gemma's, a text in front of all, and an empty thought in front of an answer.
THINKING = """{{ bos_token }}Rules apply.
{% for message in messages -%}
<|turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ message.content | trim }}<turn|>
{% endfor %}{% if add_generation_prompt %}<|turn>model
<|channel>thought
<channel|>{% endif %}"""


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<bos>"})


def test_the_turns_of_the_small_pair_are_gemmas(small_bundle: Path) -> None:
    turns = Bundle.read(small_bundle).manifest.chat_turns
    assert turns == ChatTurns("", ("<|turn>user\n", "<turn|>\n"), ("<|turn>model\n", "<turn|>\n"), "<|turn>model\n")
    assert turns_of(template((TARGET / CHAT_TEMPLATE).read_text()), "<bos>") == turns


def test_what_stands_in_front_and_what_opens_an_answer_are_found() -> None:
    opened = "<|turn>model\n<|channel>thought\n<channel|>"
    expected = ChatTurns("Rules apply.\n", ("<|turn>user\n", "<turn|>\n"), ("<|turn>model\n", "<turn|>\n"), opened)
    assert turns_of(template(THINKING), "<bos>") == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | length }}",  # without the contents
        "{% for m in messages %}[{{ loop.index }}]{{ m.content }}{% endfor %}",  # turns that know their number
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",  # a content that stands there twice
        "{% for m in messages[-2:] %}<{{ m.role }}>{{ m.content }}{% endfor %}",  # earlier turns that are left out
    ],
)
def test_a_template_that_does_something_else_has_no_turns(source: str) -> None:
    assert turns_of(template(source), "<bos>") is None


def test_a_template_that_refuses_or_asks_for_the_time_has_none(copy: Path) -> None:
    manifest = Bundle.read(copy).manifest
    for source in ("{{ raise_exception('no') }}", "{{ strftime_now('%Y') }}" + THINKING, "{% for %}"):
        (copy / CHAT_TEMPLATE).write_text(source)
        assert chat_turns(copy, manifest) is None
