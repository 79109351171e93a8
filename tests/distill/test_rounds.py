"""What a drafter sees in training: nothing of what comes after, the same in batches, and the weights as they will be stored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import dequantised
import numpy as np
import pytest
import torch
from tiny_runs import Pair, RandomTokens, opened, required

from paceline_export.bundle import export
from paceline_export.checkpoint import open_pair
from paceline_export.distill import loss, rounds
from paceline_export.distill.loss import agreement, hold_out, learn
from paceline_export.distill.memory import Kept
from paceline_export.distill.observed import Observed, observe
from paceline_export.distill.rounded import as_stored
from paceline_export.distill.rounds import Rounds
from paceline_export.distill.save import save
from paceline_export.distill.writing import write
from paceline_export.lower.torch import load
from paceline_export.recipes import RECIPES

LENGTH, STEPS = 40, 3


def states(pair: Pair, observed: Observed, starts: list[int]) -> torch.Tensor:
    return torch.stack([*Rounds(pair.config, pair.drafter, pair.target, observed, torch.tensor(starts)).teacher_forced(STEPS)])


def test_a_round_sees_nothing_of_what_follows_its_start(pair: Pair) -> None:
    """Rows at and above n, of KV and activations, and tokens behind those that are fed, may be anything."""
    start = 24
    observed = observe(pair.target, RandomTokens().at(0, LENGTH))
    before = states(pair, observed, [start])
    kv = {layer: tuple(rows.clone() for rows in own) for layer, own in observed.kv.items()}
    activations, tokens = observed.activations.clone(), observed.tokens.clone()
    for own in kv.values():
        for rows in own:
            rows[:, :, start:] = 1e3
    activations[:, start:] = 1e3
    tokens[:, start + STEPS :] = 7
    changed = replace(observed, kv=kv, activations=activations, tokens=tokens)
    assert torch.equal(states(pair, changed, [start]), before)
    assert not torch.equal(states(pair, changed, [start + 1]), states(pair, observed, [start + 1]))


def test_rounds_of_a_text_are_those_of_its_beginnings(pair: Pair) -> None:
    """All rounds at once, on one pass of the target, against a pass over no more than a round has seen."""
    tokens = RandomTokens().at(1, LENGTH)
    whole = observe(pair.target, tokens)
    for start in (1, 15, 17, 30):
        short = observe(pair.target, tokens[:, : start + STEPS])
        assert torch.allclose(states(pair, whole, [start]), states(pair, short, [start]), atol=1e-5)


def test_texts_of_different_lengths_share_a_batch(pair: Pair) -> None:
    """A shorter prompt is filled up in front, and neither its text nor its drafts notice."""
    prompts = [RandomTokens(rows=1).at(i, length)[0].tolist() for i, length in enumerate((3, 30, 1, 19))]
    together = write(pair.target, prompts, 12, temperature=1.0, seeds=[4, 5, 6, 7])
    starts = torch.arange(together.prompt, together.prompt + 8)
    drafts = Rounds(pair.config, pair.drafter, pair.target, together.observed, starts).drafts(STEPS)
    for index, prompt in enumerate(prompts):
        alone = write(pair.target, [prompt], 12, temperature=1.0, seeds=[4 + index])
        assert together.texts()[index] == alone.texts()[0]
        own = Rounds(pair.config, pair.drafter, pair.target, alone.observed, torch.arange(len(prompt), len(prompt) + 8))
        assert torch.equal(own.drafts(STEPS)[0], drafts[index])


@pytest.mark.parametrize("kept", [Kept.BFLOAT16, Kept.STREAMED])
def test_a_target_that_is_held_smaller_or_streamed_says_nearly_the_same(
    kept: Kept, pair: Pair, tiny_pair: tuple[Path, Path]
) -> None:
    other, tokens = opened(tiny_pair, kept), RandomTokens().at(2, LENGTH)
    found, wanted = observe(other.target, tokens).activations, observe(pair.target, tokens).activations
    assert (found - wanted).norm() < (0.05 if kept is Kept.BFLOAT16 else 1e-5) * wanted.norm()


def test_gradients_reach_every_weight_and_do_not_depend_on_how_many_rows_are_scored_at_a_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = observe(pair.target, RandomTokens().at(3, LENGTH))
    whole, pieces = required(pair.drafter), required(pair.drafter)
    value = learn(pair.config, whole, pair.target, observed, STEPS)
    monkeypatch.setattr(rounds, "CHUNK_NUMBERS", 7 * 2 * 512)
    assert learn(pair.config, pieces, pair.target, observed, STEPS) == pytest.approx(value, rel=1e-5)
    for name, tensor in whole.items():
        if tensor.is_floating_point():
            assert tensor.grad is not None
            assert tensor.grad.abs().max() > 0, name
            assert torch.allclose(tensor.grad, pieces[name].grad, rtol=1e-3, atol=1e-6), name


def test_the_loss_is_the_mean_cross_entropy_of_all_steps(pair: Pair) -> None:
    """Against the plain formula; the cluster's share is that of the summed probabilities of its tokens."""
    observed = observe(pair.target, RandomTokens().at(4, LENGTH))
    logits = pair.target.logits(observed.activations)
    total, weights = 0.0, [loss.STEP_DECAY**step for step in range(STEPS)]
    starts = list(range(1, LENGTH - STEPS + 1))
    for step, state in enumerate(states(pair, observed, starts)):
        wanted = logits[:, [start + step for start in starts]].softmax(-1)
        tokens = (state @ pair.drafter[rounds.HEAD_TABLE].mT).log_softmax(-1)
        clusters = (state @ pair.drafter[rounds.CENTROIDS].mT).log_softmax(-1)
        members = pair.drafter[rounds.ORDERING].view(clusters.shape[-1], -1)
        marginal = torch.stack([wanted[..., own].sum(-1) for own in members], -1)
        each = -(wanted * tokens).sum(-1) - loss.CLUSTER_WEIGHT * (marginal * clusters).sum(-1)
        total += weights[step] / sum(weights) * float(each.mean())
    assert learn(pair.config, required(pair.drafter), pair.target, observed, STEPS) == pytest.approx(total, rel=1e-5)


def test_agreement_counts_the_steps_at_which_drafter_and_target_choose_the_same(pair: Pair) -> None:
    held_out = hold_out(pair.target, RandomTokens().at(5, LENGTH))
    found = agreement(pair.config, pair.drafter, pair.target, [held_out])
    starts, right = list(range(1, LENGTH - loss.STEPS + 1)), 0
    drafting = Rounds(pair.config, pair.drafter, pair.target, held_out.observed, torch.tensor(starts))
    first = next(iter(drafting.teacher_forced(1))) @ pair.drafter[rounds.HEAD_TABLE].mT
    for row in range(2):
        for i, start in enumerate(starts):
            right += int(first[row, i].argmax() == held_out.likeliest[row, start])
    assert found.dense[0] == pytest.approx(right / found.rounds, abs=1e-4)
    assert found.rounds == 2 * len(starts)


@pytest.mark.parametrize("name", ["mixed-wi4c", "wi4b32"])
def test_training_sees_the_very_values_that_an_export_stores(
    name: str, pair: Pair, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """The drafter's weights as the forward pass has them, against the integers and scales of the files."""
    recipe, drafter = RECIPES[name], tmp_path / "drafter"
    noisy = {n: t + 0.01 * torch.randn(t.shape) if t.is_floating_point() else t for n, t in pair.drafter.items()}
    save(drafter, json.loads((tiny_pair[1] / "config.json").read_text()), noisy, tiny_pair[1])
    seen = as_stored(noisy, recipe.drafter(pair.checkpoint.weights))
    export(tiny_pair[0], drafter, tmp_path / "bundle", lambda *_: None, ("tflite", "onnx"), recipe)
    assert pair.config.head is not None
    size = 512 // pair.config.head.clusters
    members = seen[rounds.ORDERING].view(-1, size)
    files = (
        dequantised.of_tflite(tmp_path / "bundle" / "drafter.tflite", size),
        dequantised.of_onnx(tmp_path / "bundle" / "drafter.onnx"),
    )
    for stored in files:
        assert len(stored) > 20
        for weight, values in stored.items():
            own = weight.removesuffix(dequantised.BY_CLUSTER)
            if own not in seen:
                continue
            wanted = seen[own][members] if own != weight else seen[own]
            np.testing.assert_array_equal(values, wanted.numpy(), err_msg=weight)
    # What has no scheme is what the checkpoint holds.
    kept = load(open_pair(tiny_pair[0], drafter)[1].weights)
    assert all(torch.equal(kept[n], seen[n]) for n in seen if seen[n].ndim == 1)


def test_rounding_lets_gradients_pass(pair: Pair) -> None:
    drafter = required(pair.drafter)
    seen = as_stored(drafter, RECIPES["wi4c"].drafter(pair.checkpoint.weights))
    learn(pair.config, seen, pair.target, observe(pair.target, RandomTokens().at(6, LENGTH)), STEPS)
    assert all(t.grad is not None and t.grad.abs().max() > 0 for t in drafter.values() if t.is_floating_point())
