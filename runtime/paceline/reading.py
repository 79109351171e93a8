"""Files that others made: only plain files are opened, only so much of them is read, and only strict JSON is taken.

What is wrong is a ValueError or an OSError whose text can stand in parentheses; callers know which file it is of, and the next
step.
"""

from __future__ import annotations

import json
import os
import stat
from math import isfinite
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

TEXT_BYTES = 4 << 20  # manifests, configurations, templates: of the largest models they have some hundred thousand
DEPTH = 32  # of objects and lists in each other; a manifest has nine
NAME_BYTES = 255  # what file systems allow
WHOLE, DIGITS = 1 << 63, 20  # whole numbers are below it, and not below its negative


def is_plain_name(name: object) -> bool:
    """Whether this names a file of the directory that it is looked up in, on any system."""
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and "\0" not in name
        and PurePosixPath(name).name == name == PureWindowsPath(name).name
        and len(os.fsencode(name)) <= NAME_BYTES
    )


def read_bytes(file: Path, most: int = TEXT_BYTES) -> bytes:
    """The content of a plain file of at most `most` bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is a directory, a pipe or a device, which may never end or begin; or it is larger.
    """
    if not stat.S_ISREG(file.stat().st_mode):
        raise ValueError("it is not a plain file")
    with open(file, "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than the {most:,} bytes that are allowed")
    return content


def read_text(file: Path) -> str:
    """The UTF-8 text of a plain file of at most TEXT_BYTES. Raises as `read_bytes`, and ValueError where it is no text."""
    return read_bytes(file).decode()


def read_json(file: Path) -> Any:
    """The value of a JSON file. Raises as `read_text` and `parse_json`."""
    return parse_json(read_text(file))


def parse_json(text: str) -> Any:
    """A JSON value, of which two programs have one opinion (RFC 8259, and RFC 7493 for what it leaves open).

    Raises:
        ValueError: it is no JSON, is nested deeper than DEPTH, has a key twice in an object, a whole number of more than
            64 bits, a number that is not finite, or a text with half of a character.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_whole, parse_float=_number, parse_constant=_number)
    except RecursionError:
        raise ValueError(f"it is nested deeper than the {DEPTH} levels that are allowed") from None
    _check(value, DEPTH)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"the name {name!r} is there twice")
        made[name] = value
    return made


def _whole(digits: str) -> int:
    if len(digits) > DIGITS or not -WHOLE <= int(digits) < WHOLE:
        raise ValueError(f"{digits[:24]} is no number of 64 bits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise ValueError(f"{digits[:24]} is not finite")
    return value


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str):
        value.encode()  # raises where half of a character is left over
    elif isinstance(value, dict | list):
        if depth == 0:
            raise ValueError(f"it is nested deeper than the {DEPTH} levels that are allowed")
        if isinstance(value, dict):
            for name in value:
                name.encode()
        for each in value.values() if isinstance(value, dict) else value:
            _check(each, depth - 1)
