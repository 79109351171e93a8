"""Incremental text: pieces join to the full decode, and no piece shows half a character."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from paceline.errors import InputError
from paceline.text import TOKENIZER_BYTES, TOKENIZER_FILE, TextStream, Thoughts, encode, load_tokenizer

TOKENIZER = tiny.tokenizer()


def stream(tokens: list[int]) -> list[str]:
    text = TextStream(TOKENIZER)
    return [text.push(token) for token in tokens] + [text.finish()]


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=60))
def test_pieces_of_any_tokens_join_to_the_full_decode(tokens: list[int]) -> None:
    """Also of invalid bytes, which one wrong neighbour can turn into a replacement character."""
    assert "".join(stream(tokens)) == TOKENIZER.decode(tokens, skip_special_tokens=True)


@given(st.text(max_size=40))
def test_valid_text_comes_back_without_broken_characters(text: str) -> None:
    tokens = TOKENIZER.encode(text, add_special_tokens=False).ids
    pieces = stream(tokens)
    if "�" not in text:
        assert all("�" not in piece for piece in pieces)
    assert "".join(pieces) == TOKENIZER.decode(tokens, skip_special_tokens=True)


def test_text_comes_as_early_as_it_can() -> None:
    tokens = TOKENIZER.encode("hi é!", add_special_tokens=False).ids
    assert [TOKENIZER.id_to_token(t) for t in tokens] == ["hi", "▁", "<0xC3>", "<0xA9>", "!"]
    assert stream(tokens) == ["hi", " ", "", "", "é!", ""]


def test_thoughts_are_told_from_the_answer_and_lose_their_name() -> None:
    vocabulary = {"<|channel>": 0, "<channel|>": 1, "thought": 2, "\n": 3, "Hm": 4, "Yes": 5, "t\nA": 6}
    thoughts = Thoughts(Tokenizer(WordLevel(vocabulary, unk_token="Hm")))
    answer = ["<|channel>", "thought", "\n", "Hm", "\n", "<channel|>", "Yes", "\n", "<|channel>", "t\nA", "<channel|>", "Yes"]
    shown = [thoughts.push(vocabulary[word], "" if "channel" in word else word) for word in answer]
    assert "".join(text for text, thought in shown if thought) == "Hm\nA"
    assert "".join(text for text, thought in shown if not thought) == "Yes\nYes"


def test_a_vocabulary_without_channels_has_no_thoughts() -> None:
    thoughts = Thoughts(Tokenizer(WordLevel({"x": 0}, unk_token="x")))
    assert thoughts.push(0, "x\n") == ("x\n", False)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"{}", b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_tokenizer_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / TOKENIZER_FILE).write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer.json cannot be read \(.*\); export the bundle again"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_larger_than_any_is_refused_and_not_read(tmp_path: Path) -> None:
    (tmp_path / TOKENIZER_FILE).touch()
    os.truncate(tmp_path / TOKENIZER_FILE, TOKENIZER_BYTES + 1)  # a hole, which takes no room
    with pytest.raises(InputError, match=r"cannot be read \(it has more than the 268,435,456 bytes that are allowed\)"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_that_fails_inside_the_library_is_refused(tmp_path: Path) -> None:
    """It names a special token that it does not describe, and the library then panics: no Exception of Python's."""
    raw = json.loads(TOKENIZER.to_str())
    raw["post_processor"]["special_tokens"] = {}
    (tmp_path / TOKENIZER_FILE).write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"cannot be made into tokens \(no entry found for key\); change it, or export"):
        encode(load_tokenizer(tmp_path), "a")


def test_a_text_with_half_of_a_character_is_refused() -> None:
    with pytest.raises(InputError, match=r"cannot be made into tokens \(.*surrogates not allowed\); change it"):
        encode(TOKENIZER, "a\ud800")


def test_an_interrupt_is_no_failure_of_the_tokenizer() -> None:
    class Interrupted:
        def encode(self, text: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(Interrupted(), "a")  # type: ignore[arg-type]


def test_a_prompt_is_neither_cut_nor_filled(tmp_path: Path) -> None:
    raw = json.loads(TOKENIZER.to_str())
    raw["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    raw["padding"] = {"strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None} | {
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    (tmp_path / TOKENIZER_FILE).write_text(json.dumps(raw))
    text = "a text of several words"
    assert encode(load_tokenizer(tmp_path), text) == TOKENIZER.encode(text).ids
