"""The loop with a scripted pair: whatever is drafted, the tokens are those of plain greedy decoding."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import VOCABULARY, Drafts, plain, scripted_pair

from paceline.draft_length import Choice, DraftLength, Fixed, Source
from paceline.errors import CapacityError
from paceline.generate import MAX_DRAFT_LENGTH, Emitted, FinishReason, generate
from paceline.ngram import Lookup
from paceline.rules import Greedy
from paceline.stats import Stats

prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40)
lengths = st.integers(0, MAX_DRAFT_LENGTH)


def pattern(right: Sequence[bool]) -> Drafts:
    """A drafter that is right or wrong in turn, as `right` says."""
    return lambda text, true: true if right[len(text) % len(right)] else (true + 1) % VOCABULARY


def run(
    drafts: Drafts,
    prompt: Sequence[int],
    k: int | DraftLength,
    budget: int | None,
    stops: Sequence[int] = (),
    capacity: int = 400,
) -> tuple[list[Emitted], Stats, int]:
    """Emitted tokens, statistics and the committed rows at the end."""
    policy = Fixed(k) if isinstance(k, int) else k
    target, drafter, _ = scripted_pair(drafts, capacity)
    stats = Stats()
    emitted = generate(
        target,
        drafter,
        prompt,
        rule=Greedy(),
        draft_length=policy,
        max_new_tokens=budget,
        stop_ids=frozenset(stops),
        stats=stats,
        lookup=Lookup(prompt),
    )
    emitted = list(emitted)
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
    rounds = generate(
        target,
        drafter,
        range(11),
        rule=Greedy(),
        draft_length=Fixed(k),
        max_new_tokens=5,
        stop_ids=frozenset(),
        stats=Stats(),
    )
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


class AnyPolicy:
    """Rounds as hypothesis draws them: lengths, proposers, early stops and trials; it notes what it is told."""

    def __init__(self, rounds: Sequence[tuple[int, bool, bool, int]]):
        self.rounds, self.asked = rounds, 0
        self.observed: list[tuple[Source, bool]] = []
        self.recorded: list[tuple[Choice, int, int]] = []

    def next(self, most: int, lookup: int) -> Choice:
        length, from_lookup, trial, self.patience = self.rounds[self.asked % len(self.rounds)]
        self.asked += 1
        assert lookup in (0, most)
        length = min(length, most)
        if from_lookup and min(length, lookup):
            return Choice(length, Source.LOOKUP, trial)
        return Choice(length, trial=trial and length == 0 and most > 0)

    def stop(self, probability: float, drafted: int) -> bool:
        assert 0 < probability <= 1
        return drafted > self.patience

    def record(self, choice: Choice, drafted: int, accepted: int) -> None:
        self.recorded.append((choice, drafted, accepted))

    def observe(self, source: Source, right: bool) -> None:
        self.observed.append((source, right))


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),  # few tokens, so that n-grams occur again
    st.lists(st.tuples(lengths, st.booleans(), st.booleans(), st.integers(0, 7)), min_size=1, max_size=8),
    st.lists(st.booleans(), min_size=1, max_size=11),
    st.integers(1, 60),
)
def test_no_policy_and_no_proposer_changes_a_token(
    prompt: list[int], rounds: list[tuple[int, bool, bool, int]], right: list[bool], budget: int
) -> None:
    policy = AnyPolicy(rounds)
    emitted, stats, committed = run(pattern(right), prompt, policy, budget)
    assert [e.token for e in emitted] == plain(prompt, budget)
    assert committed == len(prompt) + budget - 1
    # The last round is not told of where the budget ends inside it; all others are, with what was verified.
    assert len(policy.recorded) == stats.rounds == policy.asked
    assert sum(drafted for _, drafted, _ in policy.recorded) == stats.drafted
    assert sum(accepted for _, _, accepted in policy.recorded) == stats.accepted
    by_source = {source: [r for r in policy.recorded if r[0].source is source and r[1]] for source in Source}
    for source, own in by_source.items():
        if own:
            assert stats.sources[source.value].rounds == len(own)
            assert stats.sources[source.value].accepted == sum(accepted for _, _, accepted in own)
    tried = [seen for source, seen in policy.observed if source is Source.DRAFTER]
    assert len(tried) == stats.trials == sum(choice.trial for choice, _, _ in policy.recorded)
