"""Messages to a prompt, by the checkpoint's own chat template, rendered as transformers does.

A template is a program from somewhere else, so it runs in jinja2's sandbox, and not for ever. Source of what it may use:
transformers 5.24, utils/chat_template_utils.py, `_cached_compile_jinja_template`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Sized
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from tokenizers import Tokenizer

from paceline.bounded import bounded
from paceline.bundle import CHAT_TEMPLATE
from paceline.errors import InputError
from paceline.manifest import Manifest
from paceline.reading import read_text

MOST_SIZE = 1 << 22  # characters of a prompt, and of what one product makes


class ChatTemplate:
    """A compiled template.

    Args:
        source: its text.
        special_tokens: the texts that it knows as variables, `bos_token` and `eos_token`; one may be absent.
        where: what errors call it.

    Raises:
        InputError: the text is not a template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str = CHAT_TEMPLATE):
        self.special_tokens, self.where = dict(special_tokens), where
        try:
            self._template = bounded(partial(_environment().from_string, source))
        except TemplateSyntaxError as error:
            raise InputError(f"{where}, line {error.lineno}, is not a template ({error}); correct it.") from None
        except Exception as error:  # Python's own compiler has limits, too
            raise InputError(f"{where} is not a template ({type(error).__name__}: {error}); correct it.") from None

    @classmethod
    def load(cls, folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> ChatTemplate:
        """The template of a bundle. A bundle knows all stop tokens; the first one is taken for <eos>.

        Raises:
            InputError: the bundle has no template, or it cannot be read.
        """
        file = folder / CHAT_TEMPLATE
        if CHAT_TEMPLATE not in manifest.files:
            raise InputError(
                f"{folder} has no {CHAT_TEMPLATE}, which a chat needs; put one into the target's checkpoint and export again, "
                "or continue a prompt as it is with paceline run."
            )
        try:
            source = read_text(file)
        except (OSError, ValueError) as error:
            raise InputError(f"{file} cannot be read ({error}); export the bundle again.") from None
        ids = {"bos_token": manifest.bos_id, "eos_token": next(iter(manifest.stop_ids), None)}
        texts = {name: tokenizer.id_to_token(token) for name, token in ids.items() if token is not None}
        return cls(source, {name: text for name, text in texts.items() if text is not None}, str(file))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text.

        Args:
            messages: with a role and a content each, and whatever else the template knows; a value of None is left out.
            add_generation_prompt: whether the assistant's turn is opened at the end.
            tools: JSON schemas of functions.
            variables: others that the template knows, such as `enable_thinking`.

        Raises:
            InputError: the template refuses these messages, fails, or takes more time or memory than any that is meant well.
        """
        plain = [{name: value for name, value in message.items() if value is not None} for message in messages]
        given: dict[str, Any] = {
            **self.special_tokens,
            "tools": tools,
            "documents": None,
            **variables,
            "messages": plain,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = bounded(partial(self._template.render, given))
        except Exception as error:  # a program can fail in any way, and all of them are the template's or the messages'
            said = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
            raise InputError(f"{self.where} refuses these messages ({said}); change them or the template.") from None
        if len(text) > MOST_SIZE:
            raise InputError(f"{self.where} renders {len(text)} characters; allowed are {MOST_SIZE}; shorten the messages.")
        return text


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses products and powers of a size that no prompt needs: each is a single step, whatever time and memory it takes."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _size(operator, left, right) > MOST_SIZE:
            raise SecurityError("a product or power is too large for a template")
        return super().call_binop(context, operator, left, right)


def _size(operator: str, left: Any, right: Any) -> int:
    """Bits of a whole number, or items of a text or list, that `operator` would make."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    items, times = (right, left) if isinstance(left, int) else (left, right)
    return len(items) * times if isinstance(items, Sized) and isinstance(times, int) else 0


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here it only renders its inside, in a scope of its own."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller: Macro) -> str:
        return caller()


class _Dict:
    """`dict` without attributes by which a template could leave the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(Namespace):
    """`namespace` that takes no underscored names, which could reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # jinja2's own signature, so that `self` can be a name
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _check_name(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore, and this is {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; jinja2's own filter escapes HTML."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
