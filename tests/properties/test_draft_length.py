"""The choice of a draft length, in simulated generations: call costs and acceptance are given, and time is counted.

Seeds make every run the same. The costs are those measured for E2B on two cores, and some that no device should have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.draft_length import (
    MOST_DRAFTS,
    TRIAL_CREDIT,
    TRIAL_SHARE,
    Adaptive,
    CallCosts,
    Choice,
    DraftLength,
    Fixed,
    Off,
    Source,
)


def costs(decode_ms: float, draft_ms: float, *ratios: float) -> CallCosts:
    """Ratios of passes over 2, 4 and 8 rows to decode."""
    return CallCosts(decode_ms, {rows: decode_ms * ratio for rows, ratio in zip((2, 4, 8), ratios, strict=True)}, draft_ms)


LITERT, ONNXRUNTIME = costs(66, 2.5, 1.59, 1.67, 2.89), costs(94, 2.0, 1.08, 1.79, 2.94)
MEASURED = {"litert": LITERT, "onnxruntime": ONNXRUNTIME}
NASTY = {
    "verify grows with its rows": costs(50, 1, 2, 4, 8),
    "verify pays near certainty only": costs(50, 1, 1.9, 3.4, 6),
    "verify very dear": costs(50, 2, 5, 8, 14),
    "drafter very dear": costs(50, 50, 1.2, 1.4, 2),
    "drafter dear": costs(50, 15, 1.2, 1.4, 2),
    "both cheap": costs(50, 0.5, 1.04, 1.1, 1.2),
}
Chances = Callable[[int, int], float]  # tokens emitted, position -> chance of a draft to be right, if those before it are


@dataclass
class Run:
    """A simulated generation."""

    ms: float = 0.0
    tokens: int = 0
    trial_ms: float = 0.0
    rounds: list[tuple[int, Choice]] = field(default_factory=list)  # tokens before a round -> what it did


def simulate(
    policy: DraftLength, calls: CallCosts, tokens: int, seed: int, right: Chances, lookup: Chances | None = None
) -> Run:
    """As `generate` drives a policy; a lookup, where given, has a match in every second round."""
    rng, run = np.random.default_rng(seed), Run()
    while run.tokens < tokens:
        offered = MOST_DRAFTS if lookup and rng.random() < 0.5 else 0
        choice = policy.next(min(MOST_DRAFTS, tokens - run.tokens - 1), offered)
        chances = lookup if choice.source is Source.LOOKUP and lookup else right
        accepted = 0
        while accepted < choice.length and rng.random() < chances(run.tokens, accepted):
            accepted += 1
        trial_ms = calls.draft_ms if choice.trial else 0.0
        run.rounds.append((run.tokens, choice))
        policy.record(choice, choice.length, accepted)
        if choice.trial:
            policy.observe(Source.DRAFTER, bool(rng.random() < right(run.tokens, 0)))
        if offered and lookup and choice.source is not Source.LOOKUP:
            policy.observe(Source.LOOKUP, bool(rng.random() < lookup(run.tokens, 0)))
        run.tokens += accepted + 1
        run.trial_ms += trial_ms
        run.ms += calls.round_ms(choice.length, choice.source) + trial_ms
    return run


def always(chance: float) -> Chances:
    return lambda tokens, position: chance


def expected_ms(calls: CallCosts, length: int, chances: Sequence[float]) -> float:
    """Of a token with a fixed draft length: Leviathan and others (2023), equation 1."""
    return calls.round_ms(length, Source.DRAFTER) / (1 + np.cumprod(chances[:length]).sum())


def adaptive_ms(calls: CallCosts, tokens: int, seeds: int, right: Chances) -> float:
    """Of a token, over several generations."""
    runs = [simulate(Adaptive(calls), calls, tokens, seed, right) for seed in range(seeds)]
    return sum(run.ms for run in runs) / sum(run.tokens for run in runs)


@pytest.mark.parametrize(
    ("name", "acceptance"),
    [(name, rate) for name in MEASURED for rate in (0.0, 0.2, 0.4, 0.5, 0.7, 0.9)]
    + [(name, rate) for name in NASTY for rate in (0.0, 0.4, 0.9)],
)
def test_over_256_tokens_it_is_never_2_percent_slower_than_plain_decoding(name: str, acceptance: float) -> None:
    calls = (MEASURED | NASTY)[name]
    assert calls.decode_ms / adaptive_ms(calls, 256, 16, always(acceptance)) >= 0.98


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize(
    ("tokens", "seeds", "acceptance"),
    [(256, 60, rate) for rate in (0.0, 0.2, 0.5, 0.7, 0.9)] + [(4000, 4, rate) for rate in (0.2, 0.5, 0.9)],
)
def test_it_is_within_5_percent_of_the_best_fixed_length(name: str, tokens: int, seeds: int, acceptance: float) -> None:
    calls = MEASURED[name]
    best = min(expected_ms(calls, length, [acceptance] * MOST_DRAFTS) for length in range(MOST_DRAFTS + 1))
    assert adaptive_ms(calls, tokens, seeds, always(acceptance)) <= 1.05 * best


@pytest.mark.parametrize("name", [*MEASURED, "both cheap"])
@pytest.mark.parametrize("by_position", [[0.75, 0.5, 0.3, 0.2, 0.2, 0.2, 0.2], [0.6, 0.2, 0.1, 0, 0, 0, 0], [0.7] + 6 * [0.9]])
def test_positions_may_differ(name: str, by_position: list[float]) -> None:
    calls = (MEASURED | NASTY)[name]
    best = min(expected_ms(calls, length, by_position) for length in range(MOST_DRAFTS + 1))
    assert adaptive_ms(calls, 2000, 3, lambda tokens, position: by_position[position]) <= 1.05 * best


@pytest.mark.parametrize(("name", "most"), [("litert", 120), ("onnxruntime", 60)])
def test_it_drafts_again_soon_after_drafts_become_right(name: str, most: int) -> None:
    """Tokens until it drafts again, on average, when acceptance goes from 0 to 0.9 after 500 tokens."""
    waits = []
    for seed in range(12):
        run = simulate(Adaptive(MEASURED[name]), MEASURED[name], 900, seed, lambda tokens, _: 0.9 if tokens >= 500 else 0.0)
        waits.append(next(before for before, choice in run.rounds if before >= 500 and choice.length) - 500)
        late = [choice.length for before, choice in run.rounds if before >= 800]
        assert np.mean(np.array(late[:-8]) > 0) > 0.9
    assert np.mean(waits) <= most


@pytest.mark.parametrize(("name", "most"), [("litert", 30), ("onnxruntime", 60)])
def test_it_parks_soon_after_drafts_become_wrong(name: str, most: int) -> None:
    """Rounds with drafts, each of one token, until it parks for good when acceptance goes from 0.9 to 0 after 500 tokens."""
    for seed in range(12):
        run = simulate(Adaptive(MEASURED[name]), MEASURED[name], 900, seed, lambda tokens, _: 0.9 if tokens < 500 else 0.0)
        assert sum(choice.length > 0 for before, choice in run.rounds if before >= 500) <= most


@pytest.mark.parametrize("acceptance", [0.45, 0.5])
def test_it_does_not_oscillate_near_break_even(acceptance: float) -> None:
    run = simulate(Adaptive(LITERT), LITERT, 4000, 0, always(acceptance))
    drafts = np.array([choice.length > 0 for _, choice in run.rounds])
    assert np.count_nonzero(drafts[1:] != drafts[:-1]) <= 0.03 * len(drafts)


@given(st.data(), st.sampled_from([*MEASURED, *NASTY]), st.lists(st.booleans(), min_size=1, max_size=200))
def test_whatever_happens_lengths_are_allowed_and_trials_take_their_share(
    data: st.DataObject, name: str, guesses: list[bool]
) -> None:
    calls = (MEASURED | NASTY)[name]
    policy, tokens, trial_ms = Adaptive(calls), 0, 0.0
    for right in guesses:
        most, lookup = data.draw(st.integers(0, MOST_DRAFTS)), data.draw(st.sampled_from([0, 1, MOST_DRAFTS]))
        choice = policy.next(most, lookup)
        assert choice.length <= (min(most, lookup) if choice.source is Source.LOOKUP else most)
        assert not (choice.trial and (most == 0 or (choice.length and choice.source is Source.DRAFTER)))
        trial_ms += calls.draft_ms * choice.trial
        assert trial_ms <= (TRIAL_CREDIT + TRIAL_SHARE * tokens) * calls.decode_ms + 1e-6
        accepted = choice.length if right else 0
        policy.record(choice, choice.length, accepted)
        if choice.trial:
            policy.observe(Source.DRAFTER, right)
        tokens += accepted + 1


@pytest.mark.parametrize("name", ["verify very dear", "verify grows with its rows", "drafter very dear"])
def test_where_no_drafter_could_pay_none_is_asked(name: str) -> None:
    run = simulate(Adaptive(NASTY[name]), NASTY[name], 300, 0, always(1.0))
    assert {choice for _, choice in run.rounds} == {Choice(0)}


def test_a_good_lookup_is_used_and_a_bad_one_costs_nothing() -> None:
    good = simulate(Adaptive(LITERT), LITERT, 400, 0, always(0.0), lookup=always(0.9))
    assert 400 * LITERT.decode_ms / good.ms > 1.2
    bad = simulate(Adaptive(LITERT), LITERT, 400, 0, always(0.8), lookup=always(0.1))
    assert all(choice.source is Source.DRAFTER for _, choice in bad.rounds)


def test_the_drafter_is_tried_while_a_lookup_is_used() -> None:
    run = simulate(
        Adaptive(LITERT), LITERT, 2000, 0, lambda tokens, _: 0.0 if tokens < 500 else 0.95, lookup=lambda tokens, _: 0.75
    )
    late = [choice.source for before, choice in run.rounds if before > 1500 and choice.length]
    assert late.count(Source.DRAFTER) > 0.9 * len(late)


def chain_length(policy: DraftLength, probability: float) -> int:
    """Steps that the drafter makes in a round when each token has this probability."""
    choice = policy.next(MOST_DRAFTS, 0)
    return next((n for n in range(1, choice.length) if policy.stop(probability, n)), choice.length)


def test_an_unlikely_token_ends_the_chain_and_a_likely_one_does_not() -> None:
    assert [chain_length(Adaptive(LITERT), probability) for probability in (0.0, 0.2, 0.8, 1.0)] == [1, 1, 3, 3]
    assert chain_length(Adaptive(NASTY["both cheap"]), 0.3) > 1, "a step that costs next to nothing"


def test_what_a_probability_is_worth_is_learnt() -> None:
    """A drafter that is always right when it says 5 % is no longer stopped then, nor trusted when it is wrong at 95 %."""
    policy = Adaptive(LITERT)
    for _ in range(60):
        drafted = chain_length(policy, 0.05)
        policy.record(Choice(MOST_DRAFTS), drafted, drafted)
    assert chain_length(policy, 0.05) == MOST_DRAFTS
    for _ in range(3):
        drafted = chain_length(policy, 0.95)
        policy.record(Choice(MOST_DRAFTS), drafted, 0)
    assert chain_length(policy, 0.95) < chain_length(policy, 0.05)


def test_fixed_and_off_learn_nothing_and_keep_to_the_limit() -> None:
    for policy, lengths in ((Fixed(3), [3, 2, 0]), (Off(), [0, 0, 0])):
        for _ in range(2):
            assert [policy.next(most, 7) for most in (7, 2, 0)] == [Choice(length) for length in lengths]
            policy.record(Choice(3), 3, 0)
            policy.observe(Source.LOOKUP, True)
            assert not policy.stop(0.0, 1)


def test_a_round_costs_what_the_next_larger_pass_does() -> None:
    calls = CallCosts(10, {2: 15, 4: 20}, 1)
    assert [calls.round_ms(k, Source.DRAFTER) for k in range(5)] == [10, 16, 22, 23, float("inf")]
    assert [calls.round_ms(k, Source.LOOKUP) for k in range(4)] == [10, 15, 20, 20]
    assert Adaptive(calls).next(7, 0).length in (1, 2, 3)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_costs_are_refused(bad: float) -> None:
    for broken in ((bad, {2: 1.0}, 1.0), (1.0, {2: bad}, 1.0), (1.0, {2: 1.0}, bad)):
        with pytest.raises(ValueError, match="cannot take"):
            CallCosts(*broken)
