"""Incremental text: pieces join to the full decode, and no piece shows half a character."""

from __future__ import annotations

import tiny
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from paceline.text import TextStream, Thoughts

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
