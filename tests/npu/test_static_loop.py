"""The loop on graphs of integers: lossless, wherever target and drafter run, and as good a drafter as in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from npu_models import BOTH, exported, model, tokens
from small_pair import PROMPTS

import paceline
from paceline.sampling import Sampling


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny pair with two kv heads, with caches of two sizes and of the larger one alone."""
    import tiny

    folder = tmp_path_factory.mktemp("wide")
    pair = tiny.write_pair(folder / "pair", num_key_value_heads=2)
    return exported(*pair, folder / "growing", (256, 512), ("a",)), exported(*pair, folder / "grown", (512,), ("a",))


@pytest.mark.parametrize("prompt", PROMPTS[:4])
def test_tokens_do_not_depend_on_drafts(npu_bundle: Path, prompt: str) -> None:
    placed = model(npu_bundle)
    plain = tokens(placed, prompt, draft_length=0)
    for drafts in (1, 3, 7):
        assert tokens(placed, prompt, draft_length=drafts) == plain
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=3)
    sampled = [tokens(placed, prompt, draft_length=drafts, sampling=sampling) for drafts in (0, 3)]
    assert sampled[0] == sampled[1]
    assert sampled[0] != plain


def test_a_row_is_the_same_in_every_bit_whatever_is_computed_with_it(npu_bundle: Path) -> None:
    """Alone or among others, and whatever rejected drafts have left behind the committed rows."""
    each = model(npu_bundle)
    prompt, others = each.encode(PROMPTS[0]), [780, 427, 559, 275, 9, 8, 7, 6]
    found = []
    for garbage in (0, 32767):
        with each.sequence() as (target, _):
            target.prefill(prompt)
            for view in target.graphs.rows.views.values():
                view[:, :, len(prompt) :] = garbage
            together = target.verify(others).logits.copy()
            for count in (1, 2, 1, 4):
                first = target.cache.length - len(prompt)
                alone = target.verify(others[first : first + count]).logits
                assert np.array_equal(alone, together[first : first + count])
                target.commit(count)
            found.append(together)
    assert np.array_equal(*found)


def test_places_change_who_computes_and_not_what_is_written(npu_bundle: Path) -> None:
    on_cpu = paceline.load(npu_bundle, threads=1, capacity=256)
    both, target, drafter = (model(npu_bundle, placed) for placed in (BOTH, ("target",), ("drafter",)))
    for prompt in PROMPTS[4:7]:
        assert tokens(target, prompt, draft_length=3) == tokens(both, prompt, draft_length=3)
        assert tokens(drafter, prompt, draft_length=3) == tokens(on_cpu, prompt, draft_length=3)
    assert "drafter on the CPU" in target.backend.describe()
    assert "target on the CPU" in drafter.backend.describe()


def test_rows_are_the_same_numbers_on_both_processors(wide: tuple[Path, Path]) -> None:
    """What the CPU's drafter reads is what the NPU's target has written, wherever the window has moved to."""
    written = model(wide[0], ("target",))
    text = [2, *np.random.default_rng(0).integers(300, 500, 300).tolist()]
    with written.sequence() as (target, _):
        target.prefill(text)
        cache, graphs = target.cache, target.graphs
        assert cache.local_start > 0
        for spec in written.manifest.drafter_caches:
            for name in (spec.key, spec.value):
                held = graphs.rows.views[name], cache.buffers[name]
                scale = written.backend.profile.scale("target", name)
                rows = cache.length - (cache.local_start if spec.kind.value == "local" else 0)
                first = max(0, rows - cache.window) if spec.kind.value == "local" else 0
                numbers = scale.numbers(held[0][:, :, first:rows])
                assert np.abs(numbers).max() > 0
                assert np.array_equal(numbers, held[1][:, :, first:rows])


def test_tokens_do_not_depend_on_drafts_where_caches_grow(wide: tuple[Path, Path]) -> None:
    """Two kv heads, a text that crosses the window again and again, and calls in whose midst larger caches begin."""
    growing = model(wide[0])
    prompt = [2, *np.random.default_rng(0).integers(300, 500, 200).tolist()]
    written = tokens(growing, prompt, 100, draft_length=0)
    assert len(written) == 100
    for drafts in (1, 3, 7):
        assert tokens(growing, prompt, 100, draft_length=drafts) == written
    assert tokens(growing, prompt, 100, draft_length=0) == written  # a sequence that begins anew, in small caches


def test_drafting_adapts_where_caches_grow(wide: tuple[Path, Path]) -> None:
    """Calls are timed behind made-up rows, in caches that no row has led to."""
    growing = model(wide[0])
    text = [2, *np.random.default_rng(0).integers(300, 500, 20).tolist()]
    assert tokens(growing, text, 24) == tokens(growing, text, 24, draft_length=0)


def test_caches_that_grow_hold_what_large_ones_hold(wide: tuple[Path, Path]) -> None:
    prompt = [2, *np.random.default_rng(0).integers(300, 500, 300).tolist()]
    found = []
    for folder in wide:
        each = model(folder)
        with each.sequence() as (target, drafter):
            target.prefill(prompt[:-2])
            verified = target.verify(prompt[-2:])
            assert target.graphs.rows.context == 512
            logits = verified.logits.copy()
            target.commit(2)
            found.append((logits[1], drafter.graphs.draft(7, verified.activations[1].copy()).state))
    for one, other in zip(*found, strict=True):
        assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) > 0.995


def test_several_steps_in_one_call_are_those_of_single_calls(npu_bundle: Path) -> None:
    unrolled = model(npu_bundle)
    hidden = np.random.default_rng(1).standard_normal(unrolled.manifest.hidden_size).astype(np.float32)
    with unrolled.sequence() as (target, drafter):
        target.prefill(unrolled.encode(PROMPTS[0]))
        drafting = drafter.graphs.drafter
        at_once = drafter.chain(700, hidden, 3)
        calls = dict(drafting._calls)
        assert set(calls) == {(256, 3)}
        token, one_by_one = 700, []
        for _ in range(3):
            step = drafter.graphs.draft(token, hidden.copy())  # a state that is none of the call's own
            one_by_one.append(step.token)
            token, hidden = step.token, step.state
        assert set(drafting._calls) == {(256, 1), (256, 3)}
    assert at_once == one_by_one


@pytest.mark.parametrize("recipe", ["a16w8", "a16w4", "a8w8"])
def test_integer_drafters_are_accepted_nearly_as_often(npu_bundle: Path, tmp_path: Path, recipe: str) -> None:
    """The target stays in float32, so the texts are the same, and what is accepted can be compared. Margin: 0.2 of 3."""
    from small_pair import DRAFTER, TARGET

    folder = npu_bundle if recipe == "a16w8" else exported(TARGET, DRAFTER, tmp_path / recipe, recipe=recipe)
    accepted = {}
    for name, each in (("float32", paceline.load(npu_bundle, threads=1)), (recipe, model(folder, ("drafter",)))):
        rounds = drafts = 0
        for prompt in PROMPTS[:8]:
            stats = [piece.stats for piece in each.generate(prompt, max_new_tokens=40, draft_length=3)][-1]
            assert stats is not None
            rounds, drafts = rounds + stats.rounds, drafts + stats.accepted
        accepted[name] = drafts / rounds
    assert accepted["float32"] > 1.5
    assert accepted[recipe] > accepted["float32"] - 0.2
