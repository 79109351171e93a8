"""The loop with a scripted pair: whatever is drafted, the tokens are those of plain greedy decoding."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import VOCABULARY, Drafts, plain, scripted_pair

from paceline.errors import CapacityError
from paceline.generate import MAX_DRAFT_LENGTH, Emitted, FinishReason, generate
from paceline.stats import Stats

prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40)
lengths = st.integers(0, MAX_DRAFT_LENGTH)


def pattern(right: Sequence[bool]) -> Drafts:
    """A drafter that is right or wrong in turn, as `right` says."""
    return lambda text, true: true if right[len(text) % len(right)] else (true + 1) % VOCABULARY


def run(
    drafts: Drafts, prompt: Sequence[int], k: int, budget: int | None, stops: Sequence[int] = (), capacity: int = 400
) -> tuple[list[Emitted], Stats, int]:
    """Emitted tokens, statistics and the committed rows at the end."""
    target, drafter, _ = scripted_pair(drafts, capacity)
    stats = Stats()
    emitted = list(
        generate(target, drafter, prompt, draft_length=k, max_new_tokens=budget, stop_ids=frozenset(stops), stats=stats)
    )
    return emitted, stats, target.cache.length


@given(prompts, lengths, st.lists(st.booleans(), min_size=1, max_size=11), st.integers(1, 60))
def test_drafts_right_wrong_or_mixed_give_the_plain_tokens(prompt: list[int], k: int, right: list[bool], budget: int) -> None:
    emitted, stats, committed = run(pattern(right), prompt, k, budget)
    assert [e.token for e in emitted] == plain(prompt, budget)
    assert [e.finish_reason for e in emitted] == [None] * (budget - 1) + [FinishReason.LENGTH]
    assert committed == len(prompt) + budget - 1
    assert sum(e.from_draft for e in emitted) == stats.accepted
    assert stats.emitted == budget == 1 + stats.rounds + stats.accepted
    assert stats.drafted == sum(stats.drafted_at)
    assert stats.accepted == sum(stats.accepted_at)


@given(prompts, lengths, st.lists(st.booleans(), min_size=1, max_size=11), st.integers(0, VOCABULARY - 1))
def test_a_stop_inside_an_accepted_block_ends_there(prompt: list[int], k: int, right: list[bool], stop: int) -> None:
    emitted, stats, committed = run(pattern(right), prompt, k, 100, [stop])
    expected = plain(prompt, 100)
    if stop in expected:
        expected = expected[: expected.index(stop) + 1]
        assert emitted[-1].finish_reason is FinishReason.STOP or len(expected) == 100
    assert [e.token for e in emitted] == expected
    assert committed == len(prompt) + len(expected) - 1, "the cache holds every token but the newest"
    assert stats.emitted == len(expected)


@given(prompts, lengths, st.integers(0, 30))
def test_a_full_cache_ends_the_text_with_length(prompt: list[int], k: int, room: int) -> None:
    emitted, _, committed = run(pattern([True]), prompt, k, None, capacity=len(prompt) + room)
    assert [e.token for e in emitted] == plain(prompt, room + 1)
    assert emitted[-1].finish_reason is FinishReason.LENGTH
    assert committed == len(prompt) + room


@given(lengths)
def test_a_prompt_beyond_the_capacity_is_refused_before_any_graph_runs(k: int) -> None:
    target, drafter, graphs = scripted_pair(pattern([True]), capacity=10)
    rounds = generate(target, drafter, range(11), draft_length=k, max_new_tokens=5, stop_ids=frozenset(), stats=Stats())
    with pytest.raises(CapacityError, match=r"11 tokens .* 10"):
        next(rounds)
    assert graphs.calls == 0


@pytest.mark.parametrize("k", [1, 3, 7])
def test_right_drafts_save_target_passes(k: int) -> None:
    """With every draft accepted a target pass yields k + 1 tokens; with none, one."""
    budget = 1 + 6 * (k + 1)
    _, right, _ = run(pattern([True]), [1, 2, 3], k, budget)
    _, wrong, _ = run(pattern([False]), [1, 2, 3], k, budget)
    assert right.rounds == 6
    assert right.tokens_per_round == k + 1
    assert right.acceptance_by_position == [1.0] * k
    assert wrong.rounds == budget - 1
    assert wrong.acceptance_by_position == [0.0] * k
    assert wrong.corrections == wrong.rounds - 1  # in the last round nothing is left to draft
