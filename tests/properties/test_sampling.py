"""The sampler against transformers' logits processors and plain references; the random numbers against published ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paceline.errors import InputError, PacelineError
from paceline.sampler import Distribution, Sampler, uniform
from paceline.sampling import Sampling

V = 40
rows = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(0, 3, V).astype(np.float32))
texts = st.lists(st.integers(0, V - 1), min_size=1, max_size=12)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def dense(distribution: Distribution, size: int = V) -> np.ndarray:
    full = np.zeros(size)
    full[distribution.tokens] = distribution.probabilities
    return full


def sampler(chosen: Sampling, prompt: Sequence[int] = (0,), output: Sequence[int] = (), size: int = V) -> Sampler:
    made = Sampler(chosen, size, prompt)
    for token in output:
        made.push(token)
    return made


def oracle(chosen: Sampling, row: np.ndarray, text: Sequence[int]) -> np.ndarray:
    """What transformers would sample from. [V] -> [V]."""
    chain = LogitsProcessorList()
    if chosen.banned:
        chain.append(SuppressTokensLogitsProcessor(sorted(chosen.banned)))
    chain.append(RepetitionPenaltyLogitsProcessor(float(chosen.repetition_penalty)))
    chain.append(TemperatureLogitsWarper(float(chosen.temperature)))
    if chosen.top_k is not None:
        chain.append(TopKLogitsWarper(chosen.top_k))
    if chosen.top_p is not None:
        chain.append(TopPLogitsWarper(chosen.top_p))
    if chosen.min_p is not None:
        chain.append(MinPLogitsWarper(chosen.min_p))
    scores = chain(torch.tensor([list(text)]), torch.from_numpy(row[None].copy()))
    return torch.softmax(scores[0].double(), -1).numpy()


@settings(max_examples=80, deadline=None)
@given(
    rows,
    texts,
    texts,
    st.builds(
        Sampling,
        temperature=st.floats(0.2, 3),
        top_k=optional(st.integers(1, V + 5)),
        top_p=optional(st.floats(0, 1)),
        min_p=optional(st.floats(0, 1)),
        repetition_penalty=st.floats(0.5, 2),
        banned=st.frozensets(st.integers(0, V - 1), max_size=10),
    ),
)
def test_the_filters_are_those_of_transformers(row: np.ndarray, prompt: list[int], output: list[int], chosen: Sampling) -> None:
    ours = sampler(chosen, prompt, output[:-1]).distribution(row, ahead=output[-1:])
    assert ours.probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert (np.diff(ours.tokens) > 0).all()
    assert ours.tokens.dtype == np.int64
    assert dense(ours) == pytest.approx(oracle(chosen, row, prompt + output), abs=2e-6)


@settings(max_examples=60, deadline=None)
@given(rows, texts, texts, texts, st.floats(-2, 2), st.floats(-2, 2), st.dictionaries(st.integers(0, V - 1), st.floats(-5, 5)))
def test_presence_and_frequency_count_the_output_only_and_bias_is_added(
    row: np.ndarray,
    prompt: list[int],
    output: list[int],
    ahead: list[int],
    presence: float,
    frequency: float,
    bias: dict[int, float],
) -> None:
    chosen = Sampling(temperature=0.7, presence_penalty=presence, frequency_penalty=frequency, logit_bias=bias)
    expected = row.astype(np.float64)
    for token, added in bias.items():
        expected[token] += added
    for token, count in Counter(output + ahead).items():
        expected[token] -= presence + frequency * count
    weights = np.exp((expected - expected.max()) / 0.7)
    before = row.copy()
    assert dense(sampler(chosen, prompt, output).distribution(row, ahead)) == pytest.approx(weights / weights.sum(), abs=1e-5)
    assert (row == before).all(), "the logits belong to the caller"


@given(rows, st.lists(st.integers(0, V - 1), min_size=1, max_size=20))
def test_drafts_ahead_count_like_pushed_tokens_and_are_not_kept(row: np.ndarray, text: list[int]) -> None:
    chosen = Sampling(temperature=1, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2)
    one, other = sampler(chosen), sampler(chosen, output=text)
    ahead = one.distribution(row, text)
    assert (ahead.probabilities == other.distribution(row).probabilities).all()
    assert (one.distribution(row).probabilities == sampler(chosen).distribution(row).probabilities).all()


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.999), st.sampled_from([0.0, 0.05, 1.0, 4.0]))
@settings(max_examples=30, deadline=None)
def test_top_p_over_a_large_vocabulary_keeps_the_shortest_list_that_reaches_it(seed: int, p: float, spread: float) -> None:
    row = np.random.default_rng(seed).normal(0, spread, 9000).astype(np.float32)
    kept = sampler(Sampling(temperature=1, top_p=p), size=len(row)).distribution(row)
    weights = np.exp(row - row.max()).astype(np.float64)
    order = np.lexsort((np.arange(len(row)), -row))
    needed = int(np.searchsorted(np.cumsum(weights[order]) / weights.sum(), p)) + 1
    assert abs(len(kept.tokens) - needed) <= 1, "one more or less where rounding decides"
    assert (kept.tokens == np.sort(order[: len(kept.tokens)])).all()


def test_equal_logits_leave_the_lowest_ids() -> None:
    row = np.array([1, 3, 3, 0, 3, 3, -1, 3], np.float32)
    assert sampler(Sampling(), size=8).distribution(row).tokens.tolist() == [1]
    assert sampler(Sampling(temperature=1, top_k=3), size=8).distribution(row).tokens.tolist() == [1, 2, 4]
    assert sampler(Sampling(temperature=1, top_k=6), size=8).distribution(row).tokens.tolist() == [0, 1, 2, 4, 5, 7]
    many = np.tile(row, 40)  # long enough that an unstable sort would mix them
    order = np.lexsort((np.arange(320), -many))
    for k in (90, 220, 260):
        kept = sampler(Sampling(temperature=1, top_k=k), size=320).distribution(many).tokens
        assert (kept == np.sort(order[:k])).all()
    assert sampler(Sampling(temperature=1, top_p=0.3), size=8).distribution(row).tokens.tolist() == [1, 2]
    assert sampler(Sampling(temperature=1, min_p=0.5), size=8).distribution(row).tokens.tolist() == [1, 2, 4, 5, 7]


@given(rows, texts)
def test_greedy_is_the_argmax_after_bans_bias_and_penalties(row: np.ndarray, output: list[int]) -> None:
    plain = sampler(Sampling()).distribution(row)
    best = int(row.argmax())
    assert (plain.tokens.tolist(), plain.probabilities.tolist(), plain.pick(0.0), plain.pick(1 - 2**-53)) == (
        [best],
        [1.0],
        best,
        best,
    )
    assert sampler(Sampling(banned=frozenset([best]))).distribution(row).pick(0.5) == int(np.argsort(row)[-2])
    assert sampler(Sampling(logit_bias={3: 1000.0})).distribution(row).pick(0.5) == 3
    seen = sorted({0, *output})
    penalised = row.copy()
    penalised[seen] = [value / 4 if value > 0 else value * 4 for value in row[seen]]
    assert sampler(Sampling(repetition_penalty=4), [0], output).distribution(row).pick(0.5) == int(penalised.argmax())


@given(rows, st.floats(0, 1, exclude_max=True))
def test_a_pick_inverts_the_sum_of_probabilities(row: np.ndarray, u: float) -> None:
    drawn = sampler(Sampling(temperature=2, top_k=9)).distribution(row)
    token = drawn.pick(u)
    below = sum(drawn.probability(t) for t in range(token))
    assert below - 1e-12 <= u <= below + drawn.probability(token) + 1e-12
    assert drawn.probability(token) > 0
    assert (drawn.over(np.arange(V)) == dense(drawn)).all()
    assert [drawn.probability(t) for t in range(V)] == dense(drawn).tolist()


def test_a_pick_is_never_a_token_of_probability_zero() -> None:
    edges = Distribution(np.arange(4), np.array([0, 0.1, 0.9 - 2**-50, 0]))
    assert [edges.pick(u) for u in (0.0, 0.0999, 0.1001, 1 - 2**-53)] == [1, 1, 2, 2]


def test_a_broken_row_is_no_distribution() -> None:
    for value in (np.nan, np.inf):
        for temperature in (0, 1):
            row = np.zeros(V, np.float32)
            row[7] = value
            with pytest.raises(PacelineError, match="largest logit"):
                sampler(Sampling(temperature=temperature)).distribution(row)


def test_uniform_numbers_are_those_of_splitmix64() -> None:
    # The first outputs of seed 0, as published with splitmix64.c and its ports; stream 0 of seed 0 has the first as its seed.
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]

    def sequence(state: int, count: int) -> list[int]:
        """The generator as it is usually written, with a state."""
        numbers = []
        for _ in range(count):
            state = (state + 0x9E3779B97F4A7C15) % 2**64
            z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
            numbers.append(z ^ (z >> 31))
        return numbers

    assert sequence(0, 3) == first
    for stream in range(3):
        expected = [(z >> 11) / 2**53 for z in sequence(first[stream], 5)]
        assert [uniform(0, position, stream) for position in range(5)] == expected
    # From the same lines in C, so that other programs can hold themselves against them.
    assert [uniform(42, n) for n in range(3)] == [0.34329192209867343, 0.95574672613174361, 0.48634953628166855]
    assert uniform(2**64 - 1, 1_000_000, 7) == 0.099950228827285104


def test_uniform_numbers_are_uniform_and_their_streams_independent() -> None:
    count, cells = 10_000, 10
    for seed in (0, 2**63):
        pairs = np.array([[uniform(seed, n), uniform(seed, n, 1)] for n in range(count)])
        table = np.histogram2d(*pairs.T, bins=cells, range=[[0, 1], [0, 1]])[0]
        follow = np.histogram2d(pairs[1:, 0], pairs[:-1, 0], bins=cells, range=[[0, 1], [0, 1]])[0]
        for counts in (table, follow):
            mean = counts.sum() / cells**2
            assert ((counts - mean) ** 2 / mean).sum() < 160, "chi-square of 99 degrees of freedom; 160 has p = 1e-4"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": -0.5}, "temperature is -0.5; allowed is a number from 0.0001 to 10000, or 0 for off"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": False}, "temperature is False"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_k": 0}, "top_k is 0; allowed is a whole number from 1 to"),
        ({"top_k": 2.0}, "top_k is 2.0"),
        ({"top_p": 1.1}, "top_p is 1.1; allowed is a number from 0 to 1, or None for off"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0;"),
        ({"presence_penalty": float("inf")}, "presence_penalty is inf"),
        ({"frequency_penalty": None}, "frequency_penalty is None"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"logit_bias": {-1: 2.0}}, "a token of logit_bias is -1"),
        ({"logit_bias": {1: "much"}}, "logit_bias of token 1 is 'much'"),
        ({"logit_bias": [1]}, "mapping of token ids"),
        ({"banned": 5}, "a set of ids"),
        ({"banned": {1.5}}, "a banned token is 1.5"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refused:
        Sampling(**fields)
    assert words in str(refused.value)


def test_tokens_outside_of_the_vocabulary_and_a_full_ban_are_refused() -> None:
    for chosen in (Sampling(banned=frozenset([V])), Sampling(logit_bias={V: 1.0})):
        with pytest.raises(InputError, match=f"is {V}; allowed is a whole number from 0 to {V - 1}"):
            Sampler(chosen, V, [0])
    with pytest.raises(InputError, match="all 40 tokens are banned"):
        Sampler(Sampling(banned=frozenset(range(V))), V, [0])


def test_settings_are_frozen_values() -> None:
    bias = {3: 1.5}
    one, other = Sampling(logit_bias=bias, banned=frozenset([4])), Sampling(logit_bias={3: 1.5}, banned=frozenset([4]))
    bias[3] = 9.0
    assert one == other
    assert hash(one) == hash(other)
    assert replace(one, temperature=1.0).logit_bias == {3: 1.5}


def test_a_generation_config_says_how_to_sample() -> None:
    gemma = {"bos_token_id": 2, "do_sample": True, "eos_token_id": [1, 106], "temperature": 1.0, "top_k": 64, "top_p": 0.95}
    assert Sampling.from_generation_config(gemma) == Sampling(temperature=1.0, top_k=64, top_p=0.95)
    greedy = Sampling.from_generation_config(
        {**gemma, "do_sample": False, "suppress_tokens": [7, 8], "repetition_penalty": 1.2}
    )
    assert greedy == Sampling(top_k=64, top_p=0.95, repetition_penalty=1.2, banned=frozenset([7, 8]))
    assert Sampling.from_generation_config({"top_k": None, "temperature": None}) == Sampling()
    assert Sampling.from_generation_config({"do_sample": True, "top_k": 0, "min_p": 0.1}) == Sampling(
        temperature=1.0, min_p=0.1
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("do_sample", "yes"),
        ("temperature", "1"),
        ("top_k", 6.5),
        ("top_k", False),
        ("top_p", [0.9]),
        ("suppress_tokens", ["a"]),
    ],
)
def test_a_wrong_type_in_a_generation_config_is_refused_also_where_it_is_greedy(name: str, value: object) -> None:
    with pytest.raises(InputError, match=r"generation_config\.json: .*allowed"):
        Sampling.from_generation_config({name: value})
