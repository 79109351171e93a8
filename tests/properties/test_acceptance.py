"""Every rule of acceptance emits what the target's own sampler would: enumerated exactly, and drawn."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.acceptance import Acceptance, Target, accept_block, accept_chosen, accept_sampled
from paceline.drafts import Drafts
from paceline.sampler import Distribution, Sampler, uniform
from paceline.sampling import Sampling

V, PROMPT = 5, (3, 1)
Text = tuple[int, ...]
Rule = Callable[[Sequence[int], Sequence[Distribution], Target, Sequence[float], Sequence[float]], Acceptance]
LOGITS = np.random.default_rng(5).normal(0, 1.2, (V, V)).astype(np.float32)  # the target's, after each last token
NOISE = np.random.default_rng(6).normal(0, 0.5, (V, V)).astype(np.float32)
CHAINS = {
    "temperature": Sampling(temperature=0.7),
    "top-k": Sampling(temperature=1, top_k=3),
    "top-p": Sampling(temperature=1.3, top_p=0.8),
    "min-p": Sampling(temperature=1, min_p=0.25),
    "penalties": Sampling(temperature=1, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.4),
    "bias": Sampling(temperature=1, logit_bias={1: 1.5, 4: -1.0}),
    "bans": Sampling(temperature=1, banned=frozenset([0, 2])),
    "all": Sampling(
        temperature=1.5, top_k=4, top_p=0.9, min_p=0.1, repetition_penalty=1.3, presence_penalty=0.2, logit_bias={2: 1.0}
    ),
}
DRAFTERS = ("close", "far", "disjoint", "identical")


class Pair:
    """A target with a chain of filters, and a drafter: distributions after every text, kept."""

    def __init__(self, chain: str, drafter: str):
        self.sampler, self.drafter = Sampler(CHAINS[chain], V, PROMPT), drafter
        self.p, self.q = cache(self.p), cache(self.q)  # type: ignore[method-assign]

    def p(self, text: Text) -> Distribution:
        return self.sampler.distribution(LOGITS[(*PROMPT, *text)[-1]], text)

    def q(self, text: Text) -> Distribution:
        """A disjoint drafter leaves the vocabulary where the target can say all of it; no target row follows such a draft."""
        if self.drafter == "disjoint":
            p = self.p(tuple(t for t in text if t < V))
            others = np.setdiff1d(np.arange(V + 2), p.tokens)
            return Distribution(others, np.full(len(others), 1 / len(others)))
        last = (*PROMPT, *text)[-1]
        if self.drafter == "close":
            return self.sampler.distribution(LOGITS[last] + NOISE[last], text)
        if self.drafter == "far":
            return Sampler(Sampling(temperature=1), V, []).distribution(-LOGITS[last])
        return self.p(text)


def outcomes(
    rule: Rule, drafts: Text, drafted: Sequence[Distribution], target: Target, patch: pytest.MonkeyPatch
) -> Iterator[tuple[float, int, Distribution]]:
    """Every way a round can go: its probability, the accepted drafts, what the last token is drawn from.

    Coins answer comparisons as a script says and note how likely that was; beyond the script they fall both ways.
    """
    scripts: list[tuple[bool, ...]] = [()]
    while scripts:
        script, falls, drawn_from = scripts.pop(), [], []
        weight = 1.0

        class Coin(float):
            def __lt__(self, chance: float) -> bool:
                nonlocal weight
                chance = min(1.0, chance)
                fall = script[len(falls)] if len(falls) < len(script) else chance > 0  # noqa: B023
                if len(falls) >= len(script) and 0 < chance < 1:  # noqa: B023
                    scripts.append((*falls, False))  # noqa: B023
                falls.append(fall)  # noqa: B023
                weight *= chance if fall else 1 - chance
                return fall

            def __ge__(self, chance: float) -> bool:
                return not self < chance

        patch.setattr(Distribution, "pick", lambda self, u: drawn_from.append(self) or 0)  # noqa: B023
        accepted = rule(drafts, drafted, target, [0.5] * (len(drafts) + 1), [Coin()] * len(drafts)).accepted
        patch.undo()
        yield weight, accepted, drawn_from[0]


def rounds(rule: Rule, pair: Pair, k: int, patch: pytest.MonkeyPatch) -> Iterator[tuple[float, Text, Distribution]]:
    """The first round after the prompt, over all drafts: probability, accepted drafts, what the last token is drawn from."""
    for drafts in itertools.product(range(V + 2), repeat=k):
        likely = 1.0
        for j in range(k):
            likely *= pair.q(drafts[:j]).probability(drafts[j]) if likely else 0.0
        if likely:
            drafted = [pair.q(drafts[:j]) for j in range(k)]
            for weight, accepted, own in outcomes(rule, drafts, drafted, lambda j: pair.p(drafts[:j]), patch):  # noqa: B023
                yield likely * weight, drafts[:accepted], own


def own_law(pair: Pair, text: Text, length: int) -> dict[Text, float]:
    """The target's own law of texts of a length that begin with a text."""
    law = {text: 1.0}
    for _ in range(length - len(text)):
        law = {(*t, int(token)): w * pair.p(t).probability(int(token)) for t, w in law.items() for token in pair.p(t).tokens}
    return law


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("chain", CHAINS)
def test_three_tokens_have_the_targets_own_law_exactly_and_blocks_accept_most(
    chain: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(chain, drafter)
    expected, means = own_law(pair, (), 3), []
    for rule in (accept_sampled, accept_block):
        law: Counter[Text] = Counter()
        mean = 0.0
        for weight, accepted, own in rounds(rule, pair, 2, monkeypatch):
            mean += weight * len(accepted)
            for token, share in zip(own.tokens.tolist(), own.probabilities, strict=True):
                for text, rest in own_law(pair, (*accepted, token), 3).items() if share else ():
                    law[text] += weight * share * rest
        assert {t: w for t, w in law.items() if w} == pytest.approx({t: w for t, w in expected.items() if w}, abs=1e-12)
        means.append(mean)
    tokenwise, block = means
    assert block >= tokenwise - 1e-12
    if drafter in ("disjoint", "identical"):
        assert means == pytest.approx([0, 0] if drafter == "disjoint" else [2, 2])


def test_blocks_accept_more_in_the_papers_example(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = (Distribution(np.arange(2), np.array(shares) / 3) for shares in ([1, 2], [2, 1]))
    means = []
    for rule in (accept_sampled, accept_block):
        drafts = itertools.product(range(2), repeat=2)
        likely = [(pair, q.probability(pair[0]) * q.probability(pair[1])) for pair in drafts]
        means.append(
            sum(w * weight * n for d, w in likely for weight, n, _ in outcomes(rule, d, [q, q], lambda j: p, monkeypatch))
        )
    assert means == pytest.approx([10 / 9, 11 / 9], abs=1e-12)


distributions = (
    st.lists(st.integers(0, 4), min_size=4, max_size=4)
    .filter(any)
    .map(lambda w: Distribution(np.flatnonzero(w), np.array([x for x in w if x]) / sum(w)))
)


@settings(max_examples=25, deadline=None)
@given(st.lists(distributions, min_size=4, max_size=4), st.lists(distributions, min_size=3, max_size=3))
def test_blocks_never_accept_less_whatever_the_distributions(target: list[Distribution], drafted: list[Distribution]) -> None:
    means = []
    with pytest.MonkeyPatch.context() as patch:
        for rule in (accept_sampled, accept_block):
            mean = 0.0
            for drafts in itertools.product(*(q.tokens.tolist() for q in drafted)):
                likely = math.prod(q.probability(d) for q, d in zip(drafted, drafts, strict=True))
                mean += likely * sum(w * n for w, n, _ in outcomes(rule, drafts, drafted, target.__getitem__, patch))
            means.append(mean)
    assert means[1] >= means[0] - 1e-12


def deterministic(
    drafts: Sequence[int], drafted: Sequence[Distribution], target: Target, uniforms: Sequence[float], coins: Sequence[float]
) -> Acceptance:
    return accept_chosen(Drafts.chain(drafts), lambda row, ahead: target(row).pick(uniforms[len(ahead)]))


@pytest.mark.parametrize("rule", [deterministic, accept_sampled, accept_block])
def test_drawn_tokens_follow_the_target(rule: Rule) -> None:
    """100,000 rounds a rule: chi-square of the first three tokens' joint law, for every pair and for all together."""
    total, freedom = 0.0, 0
    for seed, (chain, drafter) in enumerate(itertools.product(CHAINS, DRAFTERS)):
        texts, expected = drawn_texts(rule, Pair(chain, drafter), 3125, np.random.default_rng(seed))
        assert set(texts) <= set(expected)
        rare = [t for t, mean in expected.items() if mean < 5]
        cells = [(texts[t], mean) for t, mean in expected.items() if mean >= 5]
        cells.append((sum(texts[t] for t in rare), sum(expected[t] for t in rare)))
        square = sum((found - mean) ** 2 / mean for found, mean in cells if mean)
        assert tail(square, len(cells) - 1) > 1e-5, (chain, drafter)
        total, freedom = total + square, freedom + len(cells) - 1
    assert tail(total, freedom) > 1e-4


def drawn_texts(rule: Rule, pair: Pair, draws: int, rng: np.random.Generator) -> tuple[Counter[Text], dict[Text, float]]:
    """How often three tokens came out, and how often they should; after its round the target itself goes on."""
    emitted: Counter[Text] = Counter()
    drafts_law = {(): 1.0}
    for _ in range(2):
        drafts_law = {(*t, int(x)): w * pair.q(t).probability(int(x)) for t, w in drafts_law.items() for x in pair.q(t).tokens}
    for drafts, count in zip(drafts_law, rng.multinomial(draws, list(drafts_law.values())).tolist(), strict=True):
        drafted = [pair.q(drafts[:j]) for j in range(2)]
        rows = [pair.p(drafts[:j]) for j in range(3) if max(drafts[:j], default=0) < V]
        for numbers in rng.random((count, 5)).tolist():
            outcome = rule(drafts, drafted, rows.__getitem__, numbers[:3], numbers[3:])
            emitted[(*drafts[: outcome.accepted], outcome.token)] += 1
    texts: Counter[Text] = Counter()
    for text, count in emitted.items():
        law = own_law(pair, text, 3)
        texts.update(dict(zip(law, rng.multinomial(count, list(law.values())).tolist(), strict=True)))
    return +texts, {t: w * draws for t, w in own_law(pair, (), 3).items() if w}


def tail(square: float, freedom: int) -> float:
    """P(chi-square > square), by Wilson and Hilferty's cube root."""
    spread = 2 / (9 * max(freedom, 1))
    return math.erfc(((square / max(freedom, 1)) ** (1 / 3) - 1 + spread) / math.sqrt(2 * spread)) / 2


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**64 - 1), st.floats(0, 1))
def test_a_seed_gives_one_text_for_every_draft_length(seed: int, right: float) -> None:
    chosen = Sampling(
        temperature=0.9, top_p=0.95, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.3, seed=seed
    )

    def text(k: int) -> list[int]:
        sampler, emitted, guess = Sampler(chosen, V, PROMPT), [], np.random.default_rng(k)
        while len(emitted) < 24:
            drafts = guess.integers(0, V, k).tolist()
            if guess.random() < right:  # as plain sampling would go on
                drafts = (plain[len(emitted) :] + drafts)[:k]

            def target(j: int) -> Distribution:
                return sampler.distribution(LOGITS[[*PROMPT, *emitted, *drafts[:j]][-1]], drafts[:j])  # noqa: B023

            uniforms = [uniform(seed, len(emitted) + j) for j in range(k + 1)]
            outcome = deterministic(drafts, [], target, uniforms, [])
            for token in [*drafts[: outcome.accepted], outcome.token]:
                sampler.push(token)
                emitted.append(token)
        return emitted[:24]

    plain: list[int] = []
    plain = text(0)
    for k in range(1, 8):
        assert text(k) == plain


@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.floats(0, 1, exclude_max=True))
def test_at_temperature_0_every_rule_is_the_greedy_one(seed: int, k: int, u: float) -> None:
    rng = np.random.default_rng(seed)
    logits, sampler = rng.normal(size=(k + 1, 3)).astype(np.float32), Sampler(Sampling(), 3, PROMPT)
    drafts = rng.integers(0, 3, k).tolist()
    drafted = [Distribution(np.array([d]), np.ones(1)) for d in drafts]
    for rule in (deterministic, accept_sampled, accept_block):
        outcome = rule(drafts, drafted, lambda j: sampler.distribution(logits[j], drafts[:j]), [u] * (k + 1), [u] * k)
        assert outcome == accept_chosen(Drafts.chain(drafts), lambda row, _: int(logits[row].argmax()))


@pytest.mark.parametrize("rule", [accept_sampled, accept_block])
def test_a_draft_that_its_distribution_cannot_draw_ends_the_round_with_the_targets_own_token(rule: Rule) -> None:
    p, q = Distribution(np.arange(3), np.array([0.2, 0.3, 0.5])), Distribution(np.arange(2), np.array([0.4, 0.6]))
    for u in (0.0, 0.1, 0.3, 0.6, 0.999):
        assert rule([2, 0], [q, q], lambda j: p, [u] * 3, [0.0, 0.0]) == Acceptance.first(0, p.pick(u))
        assert rule([0, 2, 1], [p, q, q], lambda j: p, [u] * 4, [0.0] * 3) == Acceptance.first(1, p.pick(u))


@pytest.mark.parametrize("rule", [accept_sampled, accept_block])
def test_rows_behind_an_impossible_draft_are_not_asked_for(rule: Rule) -> None:
    p, q, asked = Distribution(np.array([0, 1]), np.full(2, 0.5)), Distribution(np.array([2, 3]), np.full(2, 0.5)), []

    def target(j: int) -> Distribution:
        asked.append(j)
        return p

    assert rule([3, 2], [q, q], target, [0.7] * 3, [0.0] * 2) == Acceptance.first(0, 1)
    assert asked == [0]


@pytest.mark.parametrize("rule", [accept_sampled, accept_block])
def test_equal_up_to_rounding_is_accepted_or_corrected_from_the_target(rule: Rule) -> None:
    """A residual that rounding leaves empty must not divide by zero."""
    p = Distribution(np.arange(3), np.array([0.2, 0.3, 0.5]))
    q = Distribution(np.arange(3), np.array([0.2, 0.3, 0.5 + 2**-53]))
    almost_one = 1 - 2**-53
    for drafts in itertools.product(range(3), repeat=2):
        outcome = rule(drafts, [q, q], lambda j: p, [0.9] * 3, [almost_one] * 2)
        assert outcome.token == 2
        assert rule(drafts, [p, p], lambda j: p, [0.9] * 3, [almost_one] * 2) == Acceptance.first(2, 2)
