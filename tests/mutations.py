"""Changes to a valid file that a stranger, a broken disk or another program could have made."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

# What JSON can say and Python's own writer cannot; spelled into the text afterwards.
SPELLED = [
    "1" + "0" * 5000,
    "-1" + "0" * 30,
    "1e999",
    "NaN",
    "-Infinity",
    "01",
    r'"\ud800"',
    "[" * 40 + "]" * 40,
    "[" * 100_000,
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, 0.5, 1e308, -1.5, 1e-320),
    *("", "a", "5", "..", "../x", "/etc/passwd", "a\0b", "a\\b", "a" * 5000, "[/x]", "\x1b[2J", "\N{GREEK SMALL LETTER PI}"),
    *([], {}, [[]], [{}], {"a": {}}, [0] * 50, {"": None}),
]
SHARES = [0, 1, 2, 3, 4, 8, 16, 64, 1 << 15, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1]  # lengths and offsets
Mutation = Callable[[bytes, Random], bytes]


def raw(content: bytes, rng: Random) -> bytes:
    """Bits turned, bytes replaced, parts cut, doubled and moved, little-endian numbers changed."""
    made = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at, size = rng.randrange(len(made) + 1), rng.choice([1, 2, 4, 8, 64])
        match rng.randrange(6):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                del made[at:]
            case 2:
                del made[at : at + size]
            case 3:
                made[at:at] = made[at : at + size]
            case 4:
                other = rng.randrange(len(made) + 1)
                made[at : at + size] = made[other : other + size]
            case _:
                width = rng.choice([1, 2, 4, 8])
                at -= at % width
                made[at : at + width] = (rng.choice(SHARES) % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(made)


def document(content: bytes, rng: Random) -> bytes:
    """A JSON file with other values, names, places, and some of them twice; now and then its bytes are changed as well."""
    whole: Any = {"": json.loads(content)}
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        _change(whole, rng)
    text = json.dumps(whole[""])
    for index, spelled in enumerate(SPELLED):
        text = text.replace(json.dumps(_mark(index)), spelled)
    if rng.random() < 0.1 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + "," + text[1:]  # every name twice
    return raw(text.encode(), rng) if rng.random() < 0.1 else text.encode()


def tensors(content: bytes, rng: Random) -> bytes:
    """A safetensors file: its header as a document, with a length that fits or not, and its bytes."""
    if rng.random() < 0.3:
        return raw(content[:4096], rng) + content[4096:]
    size = int.from_bytes(content[:8], "little")
    header = document(content[8 : 8 + size], rng)
    stated = len(header) if rng.random() < 0.8 else rng.choice(SHARES)
    return stated.to_bytes(8, "little") + header + content[8 + size :]


def head(content: bytes, rng: Random) -> bytes:
    """A file whose first part is structure and whose rest is weights: the first part is changed."""
    end = 1 << rng.choice([5, 8, 12, 16, 20])
    return raw(content[:end], rng) + content[end:]


def template(content: bytes, rng: Random) -> bytes:
    """A chat template with parts of itself and of others in other places."""
    pieces = [content[i : i + 12] for i in range(0, len(content), 12)]
    for _ in range(rng.choice([1, 2, 4])):
        piece = rng.choice([*pieces, *PIECES]) if rng.random() < 0.8 else raw(rng.choice(pieces), rng)
        pieces.insert(rng.randrange(len(pieces) + 1), piece)
    return raw(b"".join(pieces), rng) if rng.random() < 0.3 else b"".join(pieces)


PIECES = [
    b"{{ 9 ** 9 ** 9 }}",
    b"{{ 'a' * 10 ** 9 }}",
    b"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    b"{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    b"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    b"{{ ''.__class__.__mro__ }}",
    b"{{ '{0.__class__}'.format(messages) }}",
    b"{{ messages.append(1) }}",
    b"{{ '\\ud800' }}",
    b"{{ messages | tojson }}",
    b"{{ " + b"(" * 500,
    b"{% include 'x' %}",
    b"{% break %}",
    b"{% generation %}",
    b"{% endfor %}",
    b"{{ raise_exception('no') }}",
    b"{{ strftime_now('%Y' * 9) }}",
]


def _mark(index: int) -> str:
    return f"spelled {index}"


def _change(whole: Any, rng: Random) -> None:
    way, inner = [], whole
    while isinstance(inner, dict | list) and inner and (not way or rng.random() < 0.85):
        way.append((inner, rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))))
        inner = way[-1][0][way[-1][1]]
    holder, key = way[-1]
    match rng.randrange(5):
        case 0 if holder is not whole:
            del holder[key]
        case 1 if isinstance(holder, dict) and holder is not whole:
            name = rng.choice([v for v in VALUES if isinstance(v, str)])
            holder[name] = holder.pop(key)
        case 2 if holder is not whole:  # another value of the same file
            holder[key] = deepcopy(rng.choice([inner for inner, _ in way[1:]]))
        case 3:
            holder[key] = _mark(rng.randrange(len(SPELLED)))
        case _:
            holder[key] = deepcopy(rng.choice(VALUES))
