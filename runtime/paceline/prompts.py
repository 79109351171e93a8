"""Prompts that come with paceline, for checks and measurements where a user brings none: code, chat, JSON and prose."""

from __future__ import annotations

import json
from pathlib import Path

from paceline import reading
from paceline.errors import InputError

PROMPTS = (
    "def read_lines(path, encoding='utf-8'):\n    ",
    "import os\nimport sys\n\n\nclass Config:\n    ",
    "for key, value in sorted(counts.items()):\n    ",
    "try:\n    result = connection.recv(1024)\nexcept ",
    "<|turn>user\nReturn the number of items in the queue.<turn|>\n<|turn>model\n",
    "<|turn>user\nWrite one sentence about the sea.<turn|>\n<|turn>model\n",
    "<|turn>user\nWhat is the difference between a list and a tuple?<turn|>\n<|turn>model\n",
    '{"name": "queue", "items": [1, 2, 3], "closed": false}\n{"name": "stack", "items": ',
    '[\n  {"id": 1, "title": "First"},\n  {"id": 2, "title": ',
    "A queue keeps items in the order in which they arrive. When it is empty, the consumer ",
    "The old lighthouse had not been lit for years, but that night ",
    "Returns a copy of the string in which each ",
)
FILE = Path(__file__).parent / "prompts.json"
TURN = "<|turn>user\n{}<turn|>\n<|turn>model\n"  # how Gemma 4 writes a question, for the prompts of chat
YOURS = "yours"  # the class of prompts that come without one


def prompts_by_class() -> dict[str, list[str]]:
    """Some hundred prompts, written for this project, by what kind of text they ask for."""
    found: dict[str, list[str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found | {"chat": [TURN.format(question) for question in found["chat"]]}


def chosen(file: Path | None) -> tuple[str, ...]:
    """The prompts of a user's file, of all classes, or ours where there is none. Raises InputError as `read_prompts`."""
    return PROMPTS if file is None else tuple(prompt for some in read_prompts(file).values() for prompt in some)


def read_prompts(file: Path) -> dict[str, list[str]]:
    """The prompts of a user's file by class: a JSON object of lists, a JSON list, or a text with one in each line.

    Raises:
        InputError: it cannot be read, is none of these, or has no prompts.
    """
    try:
        text = reading.read_text(file)
        found = reading.parse_json(text) if file.suffix == ".json" else text.splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}); give a JSON list of texts or a text file.") from None
    classes = found if isinstance(found, dict) else {YOURS: found}
    if not all(isinstance(some, list) and all(isinstance(prompt, str) for prompt in some) for some in classes.values()):
        raise InputError(
            f'{file} is not a list of texts; write it as in ["one", "two"], or by class as in {{"mine": ["one"]}}.'
        )
    kept = {name: [prompt for prompt in some if prompt.strip()] for name, some in classes.items()}
    if not any(kept.values()):
        raise InputError(f"{file} has no prompts; give at least one.")
    return {name: some for name, some in kept.items() if some}
