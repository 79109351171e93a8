"""Incremental text: pieces join to the full decode, and no piece shows half a character."""

from __future__ import annotations

import tiny
from hypothesis import given
from hypothesis import strategies as st

from paceline.text import TextStream

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
