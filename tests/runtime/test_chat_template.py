"""Chat templates: the text is transformers' own, and what cannot be rendered is one sentence."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_pair import TARGET
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

import paceline
from paceline import chat_template
from paceline.bounded import bounded
from paceline.bundle import CHAT_TEMPLATE, Bundle
from paceline.chat_template import ChatTemplate
from paceline.errors import InputError
from paceline.text import load_tokenizer

SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}
# Has what the published templates have: macros, namespaces, loop controls, thinking, tools, dates, and blocks to be trimmed.
GEMMA_4_LIKE = """\
{%- macro strip_thinking(text) -%}
    {%- set ns = namespace(result='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- if '<|channel>' in part -%}
            {%- set ns.result = ns.result + part.split('<|channel>')[0] -%}
        {%- else -%}
            {%- set ns.result = ns.result + part -%}
        {%- endif -%}
    {%- endfor -%}
    {{- ns.result | trim -}}
{%- endmacro -%}
{%- macro declare(tool) -%}
    <|tool>declaration:{{ tool['function']['name'] }}{{ tool['function'] | tojson }}<tool|>
{%- endmacro -%}
{{ bos_token }}
{%- set ns = namespace(messages=messages, turns=0) -%}
{%- if enable_thinking is defined and enable_thinking or tools or messages[0]['role'] in ['system', 'developer'] -%}
    {{- '<|turn>system\\n' -}}
    {%- if enable_thinking is defined and enable_thinking -%}
        {{- '<|think|>\\n' -}}
    {%- endif -%}
    {%- if messages[0]['role'] in ['system', 'developer'] -%}
        {{- messages[0]['content'] | trim -}}
        {%- set ns.messages = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] -%}
        {{- declare(tool) -}}
    {%- endfor -%}
    {{- '<turn|>\\n' -}}
{%- endif -%}
{% for message in ns.messages %}
    {% if message.role == 'note' %}
        {% continue %}
    {% endif %}
    {% if message.role not in ('user', 'assistant', 'tool') %}
        {{ raise_exception('the role ' + message.role + '\\nis unknown') }}
    {% endif %}
    {% set ns.turns = ns.turns + 1 %}
<|turn>{{ 'model' if message.role == 'assistant' else message.role }}
    {% if message.role == 'assistant' %}
    {% generation %}
{{ strip_thinking(message.content) }}<turn|>
    {% endgeneration %}
    {% elif message.content is string %}
{{ message.content | trim }}<turn|>
    {% else %}
{% for item in message.content %}{{ item.text | trim }}{% endfor %}<turn|>
    {% endif %}
    {% if loop.index > 20 %}
        {% break %}
    {% endif %}
{% endfor %}
{{ dict(turns=ns.turns) | tojson(indent=1) }} {{ strftime_now('%Y') }} {{ eos_token }}
{% if add_generation_prompt %}
<|turn>model
{% endif %}
"""
USER = {"role": "user", "content": "  How many <b>items</b> are “there”?\n"}
SYSTEM = {"role": "system", "content": "Be brief & kind.  "}
TURNS = [
    USER,
    {"role": "assistant", "content": "<|channel>thought\nThree?\n<channel|>Three.\n"},
    {"role": "user", "content": "And now?"},
]
TOOL = {
    "type": "function",
    "function": {"name": "count", "description": "Counts <items> — all.", "parameters": {"type": "object", "properties": {}}},
}
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one": ([USER], {}),
    "system": ([SYSTEM, USER], {}),
    "turns": ([SYSTEM, *TURNS], {}),
    "no prompt": (TURNS, {"add_generation_prompt": False}),
    "thinking": ([SYSTEM, USER], {"enable_thinking": True}),
    "no thinking": ([USER], {"enable_thinking": False}),
    "tools": ([SYSTEM, USER], {"tools": [TOOL]}),
    "tools and thinking": (TURNS, {"tools": [TOOL], "enable_thinking": True}),
    "a note": ([*TURNS, {"role": "note", "content": "-"}], {}),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}]}], {}),
}


@pytest.fixture(scope="module")
def oracle() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(TARGET)


@pytest.mark.parametrize("case", [name for name in CASES if name != "parts"])  # its content is not a text
def test_the_small_pairs_template_renders_as_transformers_does(case: str, oracle: PreTrainedTokenizerFast) -> None:
    messages, options = CASES[case]
    options = {"add_generation_prompt": True} | options
    template = ChatTemplate((TARGET / CHAT_TEMPLATE).read_text(), SPECIAL)
    assert template.render(messages, **options) == oracle.apply_chat_template(messages, tokenize=False, **options)


@pytest.mark.parametrize("case", CASES)
def test_a_rich_template_renders_as_transformers_does(case: str) -> None:
    messages, options = CASES[case]
    options = {"add_generation_prompt": True} | options
    ours = ChatTemplate(GEMMA_4_LIKE, SPECIAL).render(messages, **options)
    (theirs,), _ = render_jinja_template([messages], chat_template=GEMMA_4_LIKE, **SPECIAL, **options)
    assert ours == theirs
    assert str(datetime.now().year) in ours
    assert ("<|think|>" in ours) == options.get("enable_thinking", False)
    assert ('"description": "Counts <items> — all."' in ours) == ("tools" in options)
    assert "Three?" not in ours


def test_none_is_a_value_that_is_not_there() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.name is defined }}{{ m.content }}{% endfor %}", {})
    assert template.render([{"role": "user", "content": "x", "name": None}]) == "Falsex"


@pytest.mark.parametrize("backend", ["litert", "onnxruntime"])
def test_a_bundles_prompt_has_one_bos(small_bundle: Path, oracle: PreTrainedTokenizerFast, backend: str) -> None:
    model = paceline.load(small_bundle, backend=backend, threads=1, capacity=64)
    template = model.template
    assert template.special_tokens == SPECIAL
    tokens = model.encode(template.render(TURNS))
    assert tokens == oracle.apply_chat_template(TURNS, add_generation_prompt=True)["input_ids"]
    assert tokens.count(model.manifest.bos_id) == 1


def test_a_bundle_without_a_template_is_refused(small_bundle: Path) -> None:
    manifest = Bundle.read(small_bundle).manifest
    without = replace(manifest, files={name: file for name, file in manifest.files.items() if name != CHAT_TEMPLATE})
    with pytest.raises(InputError, match=r"has no chat_template.jinja, which a chat needs; .* export again"):
        ChatTemplate.load(small_bundle, without, load_tokenizer(small_bundle))


def test_what_is_no_template_is_refused() -> None:
    with pytest.raises(InputError, match=r"^a.jinja, line 2, is not a template \(.*\); correct it.$"):
        ChatTemplate("x\n{% for %}", SPECIAL, "a.jinja")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (GEMMA_4_LIKE, r"\(the role critic is unknown\)"),
        ("{{ messages[0].name.first }}", r"has no attribute 'name'"),
        ("{{ 1 / 0 }}", r"\(ZeroDivisionError: division by zero\)"),
        ("{{ messages.append(1) }}", r"append"),
        ("{{ ''.__class__.__mro__ }}", r"unsafe"),
        ("{% set n = namespace(_x=1) %}", r"underscore"),
        ("{% set n = namespace() %}{% set n.__class__ = 1 %}", r"underscore|__class__"),
    ],
)
def test_a_template_that_fails_is_one_sentence(source: str, says: str) -> None:
    """And the sandbox holds: a template changes no argument and does not reach into Python."""
    messages = [{"role": "critic", "content": "x"}]
    with pytest.raises(InputError, match=says) as caught:
        ChatTemplate(source, SPECIAL).render(messages)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("chat_template.jinja refuses these messages (")
    assert messages == [{"role": "critic", "content": "x"}]


REFUSED = [
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages[0].update(a=1) }}",
    "{{ messages[0].setdefault('a', 1) }}",
    "{{ messages.sort() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends '/etc/passwd' %}",
    "{{ range(10 ** 9) | list }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
]
EMPTY = [  # what the sandbox hides is undefined
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{a.__class__}'.format_map({'a': ''}) }}",
    "{{ (['{0.__class__}'.format] | first)('') }}",
    "{{ ('{0.__class__}' | attr('format'))('') }}",
    "{% set c = cycler('{0.__class__}') %}{{ c.next().format('') }}",
    "{{ lipsum.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ dict.fromkeys.__func__ }}",
    "{{ dict.__class__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ namespace(a=1)._Namespace__attrs }}",
    "{{ ''.format.__self__ }}",
]


@pytest.mark.parametrize("source", [*REFUSED, *EMPTY])
def test_no_known_way_leads_out_of_the_sandbox(source: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    if source in REFUSED:
        with pytest.raises(InputError, match=r"^chat_template.jinja refuses these messages \("):
            ChatTemplate(source, SPECIAL).render(messages)
    else:
        assert ChatTemplate(source, SPECIAL).render(messages) == ""
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) | list %}{% for a in r %}{% for b in r %}{% set c = b %}{% endfor %}{% endfor %}",
        "{{ lipsum(n=10 ** 6) }}",
    ],
)
def test_a_template_that_does_not_end_is_ended(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "bounded", partial(bounded, seconds=0.2))
    before = sys.gettrace()
    with pytest.raises(InputError, match=r"ExceededError: it does not end within 0.2 s"):
        ChatTemplate(source, SPECIAL).render([])
    assert sys.gettrace() is before


@pytest.mark.parametrize("doubled", ["'a'", "['a']"])
def test_a_template_that_takes_ever_more_memory_is_ended(doubled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "bounded", partial(bounded, most_bytes=1 << 26))
    source = f"{{% set n = namespace(x={doubled}) %}}{{% for i in range(99) %}}{{% set n.x = n.x + n.x %}}{{% endfor %}}"
    with pytest.raises(InputError, match=r"ExceededError: it takes more than 0.1 GB of memory"):
        ChatTemplate(source, SPECIAL).render([])


@pytest.mark.parametrize(
    "source", ["{{ 'a' * 10 ** 9 }}", "{{ 10 ** 9 * [1] }}", "{{ 2 ** (10 ** 9) }}", "{{ 3 * 2 ** 5000000 }}"]
)
def test_a_product_that_no_prompt_needs_is_refused(source: str) -> None:
    """Also where the compiler would compute it already."""
    with pytest.raises(InputError, match=r"\(a product or power is too large for a template\)"):
        ChatTemplate(source, SPECIAL).render([])


def test_products_of_a_usual_size_are_what_they_are() -> None:
    source = "{{ '-' * 20 }} {{ 3 * [1] }} {{ 2.5 * 2 }} {{ 2 ** 10 }} {{ 1700000000 * 1000 }} {{ 2 ** -1 }}"
    assert ChatTemplate(source, SPECIAL).render([]) == f"{'-' * 20} [1, 1, 1] 5.0 1024 1700000000000 0.5"


def test_a_prompt_that_is_too_long_for_any_model_is_refused() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    message = {"role": "user", "content": "x" * 1_000_000}
    assert len(ChatTemplate(source, SPECIAL).render(4 * [message])) == 4_000_000
    with pytest.raises(InputError, match="renders 5000000 characters; allowed are 4194304"):
        ChatTemplate(source, SPECIAL).render(5 * [message])


@pytest.mark.parametrize(
    "source", ["{{ " + 5000 * "(", "{{ " + 5000 * "9" + " }}", 30 * "{% for a in [1] %}" + 30 * "{% endfor %}", "{{ '\\ud8' }}"]
)
def test_what_a_compiler_cannot_take_is_no_template(source: str) -> None:
    with pytest.raises(InputError, match=r"^chat_template.jinja.* is not a template \("):
        ChatTemplate(source, SPECIAL)
