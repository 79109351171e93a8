"""Acceptance by chance: its distribution, and what the loop emits with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import VOCABULARY, next_token, scripted_pair

from paceline.acceptance import SyntheticAcceptance
from paceline.draft_length import Fixed
from paceline.generate import MAX_DRAFT_LENGTH, Emitted, generate
from paceline.rules import Synthetic
from paceline.stats import Stats

LOGITS = np.random.default_rng(1).standard_normal((MAX_DRAFT_LENGTH + 1, 50)).astype(np.float32)


def synthetic(probability: float, seed: int = 0) -> SyntheticAcceptance:
    return SyntheticAcceptance(probability, np.random.default_rng(seed))


def accepted(probability: float, length: int, rounds: int, seed: int = 0) -> list[int]:
    accept = synthetic(probability, seed)
    return [accept([0] * length, LOGITS[: length + 1]).accepted for _ in range(rounds)]


@pytest.mark.parametrize("length", range(MAX_DRAFT_LENGTH + 1))
def test_probability_0_accepts_none_and_1_accepts_all(length: int) -> None:
    assert accepted(0, length, 200) == [0] * 200
    assert accepted(1, length, 200) == [length] * 200


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.8])
def test_position_j_is_accepted_with_the_jth_power_of_the_probability(probability: float) -> None:
    rounds = 20_000
    found = np.array(accepted(probability, MAX_DRAFT_LENGTH, rounds))
    for position in range(1, MAX_DRAFT_LENGTH + 1):
        share = probability**position
        assert abs((found >= position).mean() - share) < 5 * (share * (1 - share) / rounds) ** 0.5


def test_the_token_after_the_accepted_drafts_is_the_targets_own() -> None:
    accept = synthetic(0.6)
    seen = set()
    for _ in range(200):
        outcome = accept(range(MAX_DRAFT_LENGTH), LOGITS)
        assert outcome.token == LOGITS[outcome.accepted].argmax()
        seen.add(outcome.accepted)
    assert len(seen) > 3


def test_the_seed_alone_decides_the_pattern() -> None:
    here, there = synthetic(0.5, seed=3), synthetic(0.5, seed=3)
    outcomes = [(here([1, 2, 3], LOGITS[:4]), there([7, 7, 7], -LOGITS[:4])) for _ in range(100)]
    assert all(one.accepted == other.accepted for one, other in outcomes)
    assert accepted(0.5, 3, 100, seed=3) != accepted(0.5, 3, 100, seed=4)


def run(probability: float, prompt: list[int], length: int, budget: int) -> tuple[list[Emitted], Stats]:
    """With a drafter that is always wrong."""
    target, drafter, _ = scripted_pair(lambda text, true: (true + 1) % VOCABULARY)
    stats = Stats()
    rounds = generate(
        target,
        drafter,
        prompt,
        rule=Synthetic(synthetic(probability)),
        draft_length=Fixed(length),
        max_new_tokens=budget,
        stop_ids=frozenset(),
        stats=stats,
    )
    return list(rounds), stats


@given(
    st.sampled_from([0.0, 0.4, 0.8, 1.0]),
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20),
    st.integers(0, MAX_DRAFT_LENGTH),
    st.integers(1, 40),
)
def test_the_loop_emits_drafts_as_they_are_and_the_targets_tokens_after_them(
    probability: float, prompt: list[int], length: int, budget: int
) -> None:
    emitted, stats = run(probability, prompt, length, budget)
    text = list(prompt)
    for each in emitted:
        true = next_token(text)
        assert each.token == ((true + 1) % VOCABULARY if each.from_draft else true)
        text.append(each.token)
    assert len(emitted) == budget == stats.emitted
    assert sum(each.from_draft for each in emitted) == stats.accepted


@pytest.mark.parametrize("length", [1, 3, 7])
def test_wrong_drafts_accepted_by_chance_save_target_passes(length: int) -> None:
    budget = 1 + 5 * (length + 1)
    assert run(1, [1, 2, 3], length, budget)[1].rounds == 5
    assert run(0, [1, 2, 3], length, budget)[1].rounds == budget - 1
