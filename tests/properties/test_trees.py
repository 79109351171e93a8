"""Trees of drafts: the likeliest ones are proposed, a row sees its own path only, and the text stays the target's own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scripted import VOCABULARY, WIDTH, ScriptedGraphs, next_token, plain
from small_pair import PROMPTS

import paceline
from paceline.acceptance import accept_chosen
from paceline.backends import BACKENDS
from paceline.backends.base import DraftStep
from paceline.draft_length import Fixed
from paceline.drafter import Drafter
from paceline.drafts import NOTHING, Drafts
from paceline.generate import MAX_DRAFT_LENGTH, generate
from paceline.kv_cache import KVCache
from paceline.rules import Drafting, Greedy
from paceline.sampling import Sampling
from paceline.stats import Stats
from paceline.target import Target

WORDS, HIDDEN = 3, 2
TABLE = np.random.default_rng(3).normal(0, 2, (WORDS, WORDS, WORDS)).astype(np.float32)  # logits after the last two tokens
LOG = TABLE - np.logaddexp.reduce(TABLE, axis=2, keepdims=True)
words = st.integers(0, WORDS - 1)
ROUGH = 1e-5  # of a logit: the softmax of a row adds its own path's weights in another order than decode does


class TableGraphs(ScriptedGraphs):
    """A drafter whose state is the token before, and whose scored tokens are not in order of their ids."""

    def draft(self, token: int, hidden: NDArray[np.float32]) -> DraftStep:
        scored = np.arange(WORDS)[::-1]
        logits = TABLE[int(hidden[0]), token][scored]
        state, total = np.full(WIDTH, token, np.float32), float(np.logaddexp.reduce(logits))
        return DraftStep(int(scored[logits.argmax()]), float(logits.max()), total, state, logits, scored)


@pytest.mark.parametrize("count", range(1, MAX_DRAFT_LENGTH + 1))
def test_the_tree_has_the_likeliest_continuations(count: int) -> None:
    """Of all there are, by brute force, which also tells the states of two branches apart."""
    graphs = TableGraphs(KVCache([], window=16, capacity=64), lambda *_: 0)
    for pending in range(WORDS):
        drafts = Drafter(graphs).tree(pending, np.full(WIDTH, HIDDEN, np.float32), count)
        paths = drafts.paths or [range(row + 1) for row in range(count + 1)]
        chances = {}
        for depth in range(1, count + 1):
            for text in itertools.product(range(WORDS), repeat=depth):
                known = (HIDDEN, pending, *text)
                chances[text] = sum(LOG[known[i : i + 3]] for i in range(depth))
        likeliest = sorted(chances, key=lambda text: -chances[text])[:count]
        assert {tuple(drafts.at(path[1:])) for path in paths[1:]} == set(likeliest)


def test_the_likeliest_path_comes_first_and_branches_follow() -> None:
    tree = Drafts.tree({(0,): 7, (1,): 8, (0, 0): 9, (0, 0, 0): 4, (1, 0): 9, (0, 1): 5})
    assert tree.tokens == [7, 9, 4, 5, 8, 9]
    assert tree.parents == [0, 1, 2, 1, 0, 5]
    assert tree.paths == [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 1, 4), (0, 5), (0, 5, 6)]
    assert tree.depth == 3
    assert (tree.following(5, 9), tree.following(0, 9), tree.following(1, 5)) == (6, None, 4)
    chain = Drafts.chain([3, 3])
    assert (chain.paths, chain.depth, NOTHING.depth) == ((), 2, 0)
    assert Drafts.tree({(0,): 3, (0, 0): 3}).paths == ()


@given(st.lists(st.tuples(words, st.integers(0, 7)), max_size=7), st.lists(words, min_size=8, max_size=8))
def test_the_accepted_path_is_what_the_target_chooses(nodes: list[tuple[int, int]], choices: list[int]) -> None:
    tokens, parents = [token for token, _ in nodes], [parent % (row + 1) for row, (_, parent) in enumerate(nodes)]
    drafts = Drafts(tokens, parents)
    outcome = accept_chosen(drafts, lambda row, ahead: choices[row])
    at = 0
    for row in outcome.rows:
        assert drafts.parents[row - 1] == at
        assert drafts.tokens[row - 1] == choices[at]
        at = row
    assert outcome.token == choices[at]
    assert drafts.following(at, outcome.token) is None
    assert outcome.last_row == at


class ScriptedCache(KVCache):
    """Moves the scripted rows, as a real cache moves its tensors'."""

    graphs: ScriptedGraphs

    def compact(self, rows: Sequence[int]) -> None:
        for place, row in enumerate(rows, 1):
            self.graphs.rows[self.length + place] = self.graphs.rows[self.length + row]


class RandomTrees(Drafter):
    """Trees of any shape, in which the true continuation is here and there."""

    def __init__(self, graphs: ScriptedGraphs, rng: np.random.Generator):
        super().__init__(graphs)
        self.scripted, self.rng = graphs, rng

    def tree(self, pending: int, hidden: NDArray[np.float32], count: int) -> Drafts:
        committed = [self.scripted.rows[p] for p in range(self.scripted.cache.length)]
        texts, tokens, parents = [[*committed, pending]], [], []
        for row in range(count):
            parent = int(self.rng.integers(row + 1))
            true = next_token(texts[parent])
            taken = {token for token, other in zip(tokens, parents, strict=True) if other == parent}
            token = true if self.rng.random() < 0.5 and true not in taken else int(self.rng.integers(VOCABULARY))
            tokens.append(token)
            parents.append(parent)
            texts.append([*texts[parent], token])
        return Drafts(tokens, parents)


@given(st.integers(0, 2**32 - 1), st.integers(1, MAX_DRAFT_LENGTH), st.integers(1, 60))
def test_trees_of_any_shape_give_the_plain_tokens(seed: int, count: int, budget: int) -> None:
    cache = ScriptedCache([], window=16, capacity=400)
    cache.graphs = graphs = ScriptedGraphs(cache, lambda *_: 0)
    stats = Stats()
    emitted = list(
        generate(
            Target(graphs, cache),
            RandomTrees(graphs, np.random.default_rng(seed)),
            [seed % VOCABULARY],
            rule=Greedy(branching=True),
            draft_length=Fixed(count),
            max_new_tokens=budget,
            stop_ids=frozenset(),
            stats=stats,
        )
    )
    assert [e.token for e in emitted] == plain([seed % VOCABULARY], budget)
    assert [graphs.rows[p] for p in range(cache.length)] == [seed % VOCABULARY, *(e.token for e in emitted[:-1])]
    assert stats.emitted == budget == 1 + stats.rounds + stats.accepted
    assert stats.accepted == sum(stats.accepted_at) <= sum(stats.drafted_at) <= stats.drafted


@pytest.fixture(scope="module", params=itertools.product(BACKENDS, ["tiny", "small"]), ids="-".join)
def model(request: pytest.FixtureRequest) -> paceline.Model:
    backend, name = request.param
    return paceline.load(request.getfixturevalue(f"{name}_bundle"), backend=backend, threads=1, capacity=512)


@pytest.mark.parametrize("committed", [1, 14, 70, 191, 250])
def test_a_row_of_a_tree_is_the_row_of_its_path(model: paceline.Model, committed: int) -> None:
    """Before, at and past the windows of 16 and 64 rows. The first path is decode's in every bit, and so are the
    cache's rows; the others differ by rounding, because a softmax sums their slots in another order.
    """
    random = np.random.default_rng(committed)
    text = [int(t) for t in random.integers(3, model.manifest.vocab_size, committed)]
    tree = Drafts.tree({(0,): 7, (0, 0): 9, (0, 0, 0): 4, (0, 1): 5, (1,): 8, (1, 0): 9, (2,): 30})
    with model.sequence() as (target, drafter), model.sequence() as (alone, _):
        for each in (target, alone):
            each.prefill(text)
        verified = target.verify([6, *tree.tokens], tree.paths)
        logits, activations = verified.logits.copy(), verified.activations.copy()
        for row, path in enumerate(tree.paths):
            alone.cache.rollback(committed)
            for token in [6, *tree.at(path[1:])]:
                single = alone.verify([token])
                alone.commit(1)
            for found, wanted in ((logits[row], single.logits[0]), (activations[row], single.activations[0])):
                if tuple(path) == tuple(range(row + 1)):
                    np.testing.assert_array_equal(found, wanted)
                np.testing.assert_allclose(found, wanted, atol=ROUGH * np.abs(wanted).max())
        target.keep((5, 6))  # 8, then 9
        target.commit(3)
        alone.cache.rollback(committed)
        alone.prefill([6, 8, 9])
        for spec in model.manifest.caches:
            for name in (spec.key, spec.value):
                np.testing.assert_allclose(target.cache.view(spec, name, 0), alone.cache.view(spec, name, 0), atol=1e-5)
        hidden = activations[6]
        assert drafter.chain(3, hidden, 3) == Drafter(alone.graphs).chain(3, hidden, 3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.9, repetition_penalty=1.1, seed=4)], ids=["greedy", "sampled"]
)
def test_trees_write_the_plain_text(small_bundle: Path, backend: str, sampling: Sampling) -> None:
    model, branched = paceline.load(small_bundle, backend=backend, threads=1, capacity=512), 0
    for prompt in PROMPTS[:2]:
        plain = [p.token for p in model.generate(prompt, max_new_tokens=96, draft_length=0, sampling=sampling)]
        for length in (2, 7, None):
            options = {"draft_length": length, "sampling": sampling, "drafting": Drafting.TREE, "max_new_tokens": 96}
            pieces = list(model.generate(prompt, **options))
            assert [p.token for p in pieces] == plain
            assert pieces[-1].stats
            branched += pieces[-1].stats.drafted - sum(pieces[-1].stats.drafted_at)
    assert branched > 50, "drafts beside the longest path"
