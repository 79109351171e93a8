"""The training loop: it goes on where it was interrupted, keeps the best, and stops when it should."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import Pair, RandomTokens
from torch import Tensor

from paceline.errors import InputError, PacelineError
from paceline_export.distill import train as training
from paceline_export.distill.loss import Agreement
from paceline_export.distill.optimizer import Optimizer, Rates
from paceline_export.distill.plan import PATIENCE, Phase, Plan, no_better
from paceline_export.distill.state import Point, State
from paceline_export.distill.train import End, Moment, train
from paceline_export.recipes import RECIPES

HELD_OUT = RandomTokens(rows=2).at(99, 32)
PHASES = (Phase(0.5, 24, 2), Phase(1.0, 32, 3))


def plan(pair: Pair, steps: int, recipe: str = "mixed-wi4c") -> Plan:
    return Plan(steps=steps, phases=PHASES, schemes=RECIPES[recipe].drafter(pair.checkpoint.weights))


def run(pair: Pair, steps: int = 13, **options: Any) -> training.Trained:
    return train(pair.target, pair.config, pair.drafter, RandomTokens(rows=8), HELD_OUT, plan(pair, steps), **options)


class InterruptedTestError(Exception):
    """Somebody ended the process."""


def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "out.training"
    whole = run(pair)

    def interrupt(moment: Moment) -> None:
        if moment.step == 9:
            raise InterruptedTestError

    with pytest.raises(InterruptedTestError):
        run(pair, file=file, of="this", tell=interrupt)
    assert State.read(file, "this").step == 8
    resumed = run(pair, file=file, of="this")
    assert all(torch.equal(resumed.tensors[name], tensor) for name, tensor in whole.tensors.items())
    assert [point.agreement for point in resumed.points] == [point.agreement for point in whole.points]
    assert not [each for each in tmp_path.iterdir() if each != file]


def test_training_learns_and_the_best_state_is_what_comes_out(pair: Pair) -> None:
    found = run(pair, 24)
    losses = [point.loss for point in found.points if point.loss is not None]
    assert losses[-1] < losses[0] - 0.2
    assert found.learned
    assert found.best.agreement.mean == max(point.agreement.mean for point in found.points) > found.points[0].agreement.mean
    assert all(torch.equal(pair.drafter[n], t) for n, t in found.tensors.items() if not t.is_floating_point())
    assert found.end is End.BUDGET


@pytest.mark.parametrize("value", [nan, float("inf")])
def test_a_loss_that_is_no_number_ends_the_run_with_the_last_good_state(
    value: float, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = run(pair, tell=lambda _: None)
    learn, calls = training.learn, list[int]()

    def broken(*arguments: Any) -> float:
        calls.append(1)
        found = learn(*arguments)
        return found if len(calls) < 7 else value

    monkeypatch.setattr(training, "learn", broken)
    found = run(pair)
    assert (found.end, found.step, found.finite) == (End.NOT_FINITE, 6, False)
    assert all(tensor.isfinite().all() for tensor in found.tensors.values())
    assert found.points == [replace(point, seconds=own.seconds) for point, own in zip(good.points, found.points, strict=False)]


def test_a_loss_that_is_no_number_from_the_start_is_an_error(pair: Pair) -> None:
    spoiled = {name: tensor * nan if tensor.is_floating_point() else tensor for name, tensor in pair.drafter.items()}
    with pytest.raises(PacelineError, match=r"the loss is nan at the first step; check the weights of both models"):
        train(pair.target, pair.config, spoiled, RandomTokens(), HELD_OUT, Plan(steps=4, phases=PHASES))


def test_a_run_that_gets_no_better_stops() -> None:
    def point(step: int, share: float) -> Point:
        return Point(step, 0.0, 1.0, Agreement(100, [share], [share]))

    budget = Plan(steps=100)
    rising = [point(8 * index, 0.1 * index) for index in range(10)]
    still = [*rising, *(point(80 + index, 0.9) for index in range(PATIENCE))]
    assert not no_better(rising, budget)
    assert no_better(still, budget)
    assert not no_better(still[:-1], budget)
    early = [point(index, 0.5) for index in range(20)]  # while the rate is still high, nothing is given up
    assert not no_better(early, budget)


def test_a_state_that_cannot_be_kept_does_not_end_training(pair: Pair, tmp_path: Path) -> None:
    said = list[str]()
    found = run(pair, 4, file=tmp_path / "none" / "out.training", of="this", warn=said.append)
    assert (found.end, found.step) == (End.BUDGET, 4)
    assert said[0].startswith("the state of step 0 is not kept, training goes on: ")


def test_a_state_of_another_run_or_no_state_is_refused(pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "out.training"
    run(pair, 2, file=file, of="one run")
    with pytest.raises(InputError, match=r"out.training is of another run: one run; this one is: other. Give the same"):
        run(pair, 2, file=file, of="other")
    file.write_bytes(b"something")
    with pytest.raises(InputError, match=r"out.training is not what an interrupted run leaves \(.*\); remove .* to begin anew"):
        run(pair, 2, file=file, of="one run")


def test_an_optimizer_goes_on_with_what_it_knew() -> None:
    def made() -> tuple[dict[str, Tensor], Optimizer]:
        generator = torch.Generator().manual_seed(0)
        shapes = {"a.weight": (6, 4), "embed": (8, 4), "norm": (4,)}
        parameters = {n: torch.randn(s, generator=generator).requires_grad_() for n, s in shapes.items()}
        return parameters, Optimizer(parameters, Rates())

    def step(parameters: dict[str, Tensor], optimizer: Optimizer) -> None:
        sum((tensor**2).sum() for tensor in parameters.values()).backward()
        optimizer.step(0.5)

    parameters, optimizer = made()
    step(parameters, optimizer)
    values, state = [t.detach().clone() for t in parameters.values()], {n: t.clone() for n, t in optimizer.state().items()}
    step(parameters, optimizer)
    others, restored = made()
    with torch.no_grad():
        for tensor, value in zip(others.values(), values, strict=True):
            tensor.copy_(value)
    restored.restore(state)
    step(others, restored)
    assert all(torch.equal(a, b) for a, b in zip(parameters.values(), others.values(), strict=True))


@pytest.mark.parametrize(
    ("options", "words"), [({}, "give either"), ({"minutes": 0}, "--minutes is 0"), ({"steps": -1}, "--steps is -1")]
)
def test_a_budget_is_needed(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Plan(**options)
