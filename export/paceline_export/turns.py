"""How a checkpoint's chat template writes a conversation, for the C++ core, which runs no templates."""

from __future__ import annotations

from pathlib import Path

from paceline.bundle import CHAT_TEMPLATE
from paceline.chat_template import ChatTemplate
from paceline.errors import InputError
from paceline.manifest import ChatTurns, Manifest
from paceline.text import load_tokenizer

CLOCK = "strftime_now"  # a function that templates have
CONTENTS = ("Aq1", "Bq2", "Cq3", "Dq4")  # what no template writes by itself


def chat_turns(folder: Path, manifest: Manifest) -> ChatTurns | None:
    """What stands around the turns of a conversation, without a system message, tools or thinking.

    Returns:
        None where a bundle has no template, or one that writes something else than texts around the contents; and where it
        asks for the time, which a bundle must not depend on.
    """
    try:
        template = ChatTemplate.load(folder, manifest, load_tokenizer(folder))
        if CLOCK in (folder / CHAT_TEMPLATE).read_text(encoding="utf-8"):
            return None
        return turns_of(template, template.special_tokens.get("bos_token", ""))
    except InputError:
        return None


def turns_of(template: ChatTemplate, bos: str) -> ChatTurns | None:
    """A template is a program, which can do anything with its messages, so what was found in two turns must write four.

    Args:
        bos: the text of <bos>, left out in front; empty where the model has none.

    Raises:
        InputError: the template refuses a conversation of user and model.
    """
    texts = [_conversation(template, count) for count in (1, 2, 3, 4)]
    opened = template.render(_messages(3))
    first, second, third, _ = CONTENTS
    try:
        before_first, behind_first = texts[0].split(first)
        between, behind_second = texts[1].removeprefix(before_first + first).split(second)
        again = texts[2].removeprefix(texts[1].removesuffix(behind_second)).split(third)[0]
    except ValueError:  # a content that does not stand there once
        return None
    # The user's turn opens with what follows the model's, the model's with what follows the user's.
    user_open = again.removeprefix(behind_second)
    model_open = between.removeprefix(behind_first)
    start = before_first.removesuffix(user_open)
    answer = opened.removeprefix(texts[2])
    found = ChatTurns(start.removeprefix(bos), (user_open, behind_first), (model_open, behind_second), answer)
    return found if [bos + written(found, count) for count in (1, 2, 3, 4)] == texts and opened == texts[2] + answer else None


def written(turns: ChatTurns, count: int) -> str:
    """The first CONTENTS, user and model in turn."""
    parts = [
        around[0] + text + around[1] for around, text in zip((turns.user, turns.model) * 2, CONTENTS[:count], strict=False)
    ]
    return turns.start + "".join(parts)


def _conversation(template: ChatTemplate, count: int) -> str:
    return template.render(_messages(count), add_generation_prompt=False)


def _messages(count: int) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 2, CONTENTS[:count], strict=False)]
