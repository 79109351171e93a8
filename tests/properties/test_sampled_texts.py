"""Sampled texts of the small pair: a seed gives one text at any draft length, and drafts change no distribution."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency
from small_pair import PROMPTS

import paceline
from paceline.backends import BACKENDS
from paceline.errors import InputError
from paceline.generate import FinishReason
from paceline.rules import Drafting
from paceline.sampling import Sampling
from paceline.text import StopTexts

SETTINGS = {
    "plain": Sampling(temperature=1.0, seed=5),
    "filters": Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, seed=2**63),
    "penalties": Sampling(temperature=0.7, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, seed=0),
    "greedy with penalties": Sampling(repetition_penalty=1.3, banned=frozenset([10, 11]), logit_bias={20: 2.0}),
}
SEEDS = 300


@pytest.fixture(scope="module", params=BACKENDS)
def model(request: pytest.FixtureRequest, small_bundle: Path) -> paceline.Model:
    return paceline.load(small_bundle, backend=request.param, threads=1, capacity=512)


def tokens(model: paceline.Model, prompt: str, **options: object) -> list[int]:
    return [piece.token for piece in model.generate(prompt, **{"max_new_tokens": 48} | options)]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_seed_gives_one_text_at_any_draft_length(model: paceline.Model, name: str) -> None:
    """Fixed, adaptive with lookup, and plain, with filters that look at the history."""
    for prompt in PROMPTS[:2]:
        plain = tokens(model, prompt, sampling=SETTINGS[name], draft_length=0)
        for length in (3, 7, None):
            assert tokens(model, prompt, sampling=SETTINGS[name], draft_length=length) == plain
        assert len(set(plain)) > 3


def test_another_seed_gives_another_text(model: paceline.Model) -> None:
    texts = {tuple(tokens(model, PROMPTS[0], sampling=Sampling(temperature=1.0, seed=seed))) for seed in range(8)}
    assert len(texts) == 8
    assert tokens(model, PROMPTS[0], sampling=Sampling(temperature=1.0)) != tokens(
        model, PROMPTS[0], sampling=Sampling(temperature=1.0)
    )


@pytest.mark.parametrize("at_once", [1, 3, 9])
def test_texts_of_many_prompts_are_those_of_one_by_one(model: paceline.Model, at_once: int) -> None:
    """Of different lengths, so that caches of different sizes take turns on the same graphs."""
    prompts = [PROMPTS[0], PROMPTS[1] * 9, PROMPTS[2], "x", PROMPTS[4] * 4]
    options = {"max_new_tokens": 30, "sampling": SETTINGS["filters"], "draft_length": 3}
    together: dict[int, list[int]] = {index: [] for index in range(len(prompts))}
    order = []
    for index, piece in model.generate_many(prompts, at_once=at_once, **options):
        together[index].append(piece.token)
        order.append(index)
    assert list(together.values()) == [tokens(model, prompt, **options) for prompt in prompts]
    assert len(set(order[:at_once])) == min(at_once, len(prompts)), "they take turns"


@pytest.mark.parametrize("drafting", [Drafting.SAMPLED, Drafting.BLOCK])
def test_sampled_drafts_change_no_distribution(drafting: Drafting, small_bundle: Path) -> None:
    """The first four tokens after a prompt, over many seeds: drafted against plain, at each place."""
    model = paceline.load(small_bundle, backend="litert", threads=1, capacity=256)

    def counts(offset: int, **options: object) -> list[Counter[int]]:
        places: list[Counter[int]] = [Counter() for _ in range(4)]
        for seed in range(offset, offset + SEEDS):
            sampling = Sampling(temperature=1.0, top_k=4, seed=seed)
            for place, token in enumerate(tokens(model, PROMPTS[3], sampling=sampling, max_new_tokens=4, **options)):
                places[place][token] += 1
        return places

    plain = counts(0, draft_length=0)
    drafted = counts(10_000, draft_length=3, drafting=drafting)
    for before, after in zip(plain, drafted, strict=True):
        common = [token for token in before | after if before[token] + after[token] >= 10]
        table = [[each[token] for token in common] + [SEEDS - sum(each[token] for token in common)] for each in (before, after)]
        kept = np.array(table)[:, np.array(table).sum(0) > 0]
        if kept.shape[1] > 1:
            assert chi2_contingency(kept).pvalue > 1e-4


def test_a_stop_text_ends_in_front_of_it_whatever_it_spans(model: paceline.Model) -> None:
    prompt = PROMPTS[0]
    whole = "".join(piece.text for piece in model.generate(prompt, max_new_tokens=40, draft_length=3))
    stop = whole[11:17]
    for length in (0, 7, None):
        pieces = list(model.generate(prompt, max_new_tokens=40, draft_length=length, stop=["\0", stop]))
        assert "".join(piece.text for piece in pieces) == whole[: whole.index(stop)]
        assert pieces[-1].finish_reason is FinishReason.STOP
        assert pieces[-1].stats is not None


@given(st.lists(st.text("ab", max_size=4), max_size=12), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_stop_texts_show_what_a_search_in_the_whole_text_would(pieces: list[str], stops: list[str]) -> None:
    """And nothing of a stop is ever shown before it is known not to be one."""
    watch, shown, stopped = StopTexts(stops), "", False
    for piece in pieces:
        text, stopped = watch.push(piece)
        shown += text
        if stopped:
            break
    whole = "".join(pieces)
    found = [whole.index(stop) for stop in stops if stop in whole]
    assert stopped == bool(found)
    if stopped:
        ends = [prefix for prefix in range(len(whole) + 1) if any(s in whole[:prefix] for s in stops)]
        seen = whole[: ends[0]]  # the stop that is complete first ends the text
        first = min(seen.index(stop) for stop in stops if stop in seen)
        assert shown in (whole[:first], whole[: min(found)])
    else:
        assert shown + watch.finish() == whole


def test_a_generation_is_cancelled_from_elsewhere_and_says_so(model: paceline.Model) -> None:
    cancel, pieces = Event(), []
    for piece in model.generate(PROMPTS[0], max_new_tokens=100, draft_length=3, cancel=cancel):
        pieces.append(piece)
        if len(pieces) == 5:
            cancel.set()
    assert pieces[-1].finish_reason is FinishReason.CANCELLED
    assert len(pieces) == 6
    again = tokens(model, PROMPTS[0], draft_length=3)
    assert again == tokens(model, PROMPTS[0], draft_length=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draft_length": 8}, "draft length is 8; allowed are 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"stop": "ab"}, "stop is 'ab'; give a list"),
        ({"stop": [""]}, "give a list of texts that are not empty"),
        ({"sampling": Sampling(banned=frozenset([10**6]))}, "a biased or banned token is 1000000"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_runs(
    model: paceline.Model, options: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        model.generate("x", **options)  # type: ignore[arg-type]
