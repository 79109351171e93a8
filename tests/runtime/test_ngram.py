"""Prompt lookup against a search of the whole text, and that a token's cost does not grow with the text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.ngram import LONGEST, SHORTEST, Lookup

texts = st.lists(st.integers(0, 2), max_size=60)  # so few tokens that n-grams of all sizes occur again


def searched(text: Sequence[int], most: int) -> list[int]:
    """The same by definition: compare the end of the text with every earlier place, the longest n-gram and latest first."""
    for size in range(LONGEST, SHORTEST - 1, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == text[-size:]:
                grown = list(text)
                for index in range(most):
                    grown.append(grown[start + size + index])
                return grown[len(text) :]
    return []


@given(texts, st.integers(0, 7))
def test_it_proposes_what_a_search_of_the_whole_text_finds(text: list[int], most: int) -> None:
    assert Lookup(text).propose(most) == searched(text, most)


@given(texts, texts)
def test_prompt_and_output_are_one_text(prompt: list[int], output: list[int]) -> None:
    lookup = Lookup(prompt)
    for count, token in enumerate(output, start=1):
        lookup.push(token)
        assert lookup.propose(7) == searched(prompt + output[:count], 7)


@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        pytest.param([], [], id="no text"),
        pytest.param([1, 2, 3, 1], [], id="one token that agrees is not enough"),
        pytest.param([1, 2, 9, 8, 1, 2], [9, 8, 1], id="two are"),
        pytest.param([1, 2, 5, 0, 1, 2, 6, 0, 1, 2], [6, 0, 1], id="the latest occurrence"),
        pytest.param([7, 1, 2, 5, 0, 1, 2, 6, 7, 1, 2], [5, 0, 1], id="the longest n-gram before the latest"),
        pytest.param([4, 4, 4], [4, 4, 4], id="a token repeated"),
        pytest.param([1, 2, 1, 2, 1], [2, 1, 2], id="a period of two, beyond the end"),
    ],
)
def test_examples(text: list[int], proposed: list[int]) -> None:
    assert Lookup(text).propose(3) == proposed


class CountedToken(int):
    """A token that counts how often any of them is looked at."""

    looks = 0

    def __hash__(self) -> int:
        CountedToken.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedToken.looks += 1
        return super().__eq__(other)


def test_a_token_costs_the_same_after_a_long_text() -> None:
    looks = []
    for length in (100, 5_000):
        lookup = Lookup(CountedToken(index % 37) for index in range(length))
        CountedToken.looks = 0
        lookup.push(CountedToken(length % 37))
        assert lookup.propose(7) == [index % 37 for index in range(length + 1, length + 8)]
        looks.append(CountedToken.looks)
    assert 0 < looks[1] <= looks[0]
