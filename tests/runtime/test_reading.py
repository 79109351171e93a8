"""Files of others: only plain ones, only so much of them, and JSON of which there is one opinion."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import HEAD, TAIL, InputError, PacelineError
from paceline.reading import DEPTH, NAME_BYTES, TEXT_BYTES, is_plain_name, parse_json, read_bytes, read_json, read_text

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(value=values, ascii_only=st.booleans())
def test_what_python_writes_is_read(value: object, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only)) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("{} {}", "Extra data"),
        ("1" + "0" * 5000, "is no number of 64 bits"),
        ("9223372036854775808", "9223372036854775808 is no number of 64 bits"),
        ("NaN", "NaN is not finite"),
        ("[-Infinity]", "-Infinity is not finite"),
        ("1e999", "1e999 is not finite"),
        ('{"a": 1, "b": {"a": 2, "a": 2}}', "the name 'a' is there twice"),
        (r'["\ud800"]', "surrogates not allowed"),
        (r'{"\udc80x": 1}', "surrogates not allowed"),
        ("[" * (DEPTH + 1) + "]" * (DEPTH + 1), "deeper than the 32 levels"),
        ("[" * 100_000, "deeper than the 32 levels"),
        ('{"a":' * 100_000, "deeper than the 32 levels"),
    ],
)
def test_json_that_two_programs_could_read_differently_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_json(text)


def test_nesting_up_to_the_limit_and_whole_characters_are_read() -> None:
    assert parse_json("[" * DEPTH + "]" * DEPTH)
    assert parse_json(r'"\ud83d\ude00"') == "\N{GRINNING FACE}"


def test_a_file_of_the_largest_size_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b" " * (TEXT_BYTES - 1) + b"1")
    assert read_json(file) == 1
    file.write_bytes(b" " * TEXT_BYTES + b"1")
    with pytest.raises(ValueError, match="it has more than the 4,194,304 bytes that are allowed"):
        read_json(file)
    os.truncate(file, 1 << 40)  # a hole, which takes no room
    with pytest.raises(ValueError, match="more than"):
        read_bytes(file)


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    """Opening a pipe would wait for someone who writes it."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="it is not a plain file"):
            read_text(path)


@given(name=st.text(max_size=8))
def test_a_plain_name_stays_in_its_directory(name: str) -> None:
    if is_plain_name(name):
        assert (Path("/some/where") / name).parent == Path("/some/where")
        assert (Path("/some/where") / name).name == name
    else:
        assert set(name) & set("/\\\0:") or name in ("", ".", "..")


def test_a_name_that_no_file_can_have_is_not_plain() -> None:
    assert is_plain_name("é" * (NAME_BYTES // 2))
    assert not is_plain_name("é" * (NAME_BYTES // 2 + 1))
    assert not is_plain_name(None)


def test_a_sentence_is_one_line_and_steers_no_terminal() -> None:
    assert str(InputError("a\nb\x1b[2Jc\ud800\u202e é")) == r"a b\x1b[2Jc\ud800\u202e é"


def test_a_long_sentence_keeps_its_beginning_and_its_end() -> None:
    said = str(PacelineError("found " + "x" * 100_000 + "; do this."))
    assert len(said) == HEAD + TAIL + 3
    assert said.startswith("found x")
    assert said.endswith("x; do this.")
