"""The training loop: draw text, let the target read it, learn from it, and measure on held-out text now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from paceline.errors import InputError, PacelineError
from paceline_export.config import DrafterConfig
from paceline_export.distill.loss import agreement, hold_out, learn
from paceline_export.distill.observed import FrozenTarget, observe
from paceline_export.distill.optimizer import Optimizer
from paceline_export.distill.plan import EVALUATIONS, Plan, no_better
from paceline_export.distill.rounded import as_stored
from paceline_export.distill.state import Point, State
from paceline_export.distill.text import Batches

SECONDS_BETWEEN = 600.0  # evaluations at most, because an interruption loses what came after the last one
HELD_OUT_BATCH = 8  # windows at a time


class End(Enum):
    """Why a run ended."""

    BUDGET = "the budget is spent"
    NO_BETTER = "agreement on held-out text no longer improves"
    NOT_FINITE = "the loss is no longer a number"


@dataclass(frozen=True)
class Moment:
    """What a run tells while it goes on; `point` is there after an evaluation."""

    fraction: float
    step: int
    loss: float | None
    seconds_left: float | None
    point: Point | None = None


@dataclass(frozen=True)
class Trained:
    """The best state of a run.

    Attributes:
        tensors: float32, before they are rounded.
        points: all evaluations, `best` among them.
        step: steps that were made.
    """

    tensors: dict[str, Tensor]
    points: list[Point]
    best: Point
    step: int
    end: End

    @property
    def learned(self) -> bool:
        """Whether anything better than the start was found."""
        return self.best is not self.points[0]

    @property
    def finite(self) -> bool:
        """Whether the loss stayed a number to the end."""
        return self.end is not End.NOT_FINITE


Tell = Callable[[Moment], None]


def train(
    target: FrozenTarget,
    config: DrafterConfig,
    start: Mapping[str, Tensor],
    batches: Batches,
    held_out: Tensor,
    plan: Plan,
    tell: Tell = lambda _: None,
    file: Path | None = None,
    of: str = "",
    warn: Callable[[str], None] = lambda _: None,
) -> Trained:
    """Trains a drafter until the budget is spent or nothing gets better.

    Args:
        start: the drafter's tensors, which are left alone.
        held_out: int64 [B, T], windows of text that is not trained on.
        file: keeps the state at every evaluation; where it is there already, the run goes on from it.
        of: see `State`.
        warn: is told when the file cannot be written, which does not end the run.

    Raises:
        InputError: the file is not of this run.
        PacelineError: the loss is not finite from the start.
    """
    run = _Run(target, config, start, held_out, plan)
    if file and file.exists():
        state = State.read(file, of)
        state.require_fit(run.drafter, file)
        try:
            run.restore(state)
        except (KeyError, RuntimeError):  # the optimizer's part
            raise InputError(f"{file} does not hold all of a run's state; remove it to begin anew.") from None
    while True:
        if run.due():
            point = run.evaluate()
            tell(run.moment(point))
            if file:
                try:
                    run.state(of).write(file)
                except OSError as error:
                    warn(f"the state of step {run.step} is not kept, training goes on: {error}")
        end = run.end()
        if end is None:
            run.advance(batches)
            tell(run.moment())
        else:
            return Trained(run.best, run.points, run.best_point, run.step, end)


class _Run:
    """A run's state and its clock."""

    def __init__(self, target: FrozenTarget, config: DrafterConfig, start: Mapping[str, Tensor], held_out: Tensor, plan: Plan):
        self.target, self.config, self.plan = target, config, plan
        self.drafter = {
            name: tensor.detach().to(target.device, copy=True).requires_grad_(tensor.is_floating_point())
            for name, tensor in start.items()
        }
        self.optimizer = Optimizer({n: t for n, t in self.drafter.items() if t.requires_grad}, plan.rates)
        self.held_out = [hold_out(target, rows) for rows in torch.split(held_out, HELD_OUT_BATCH)]
        self.step, self.points, self.best = 0, list[Point](), self._copy()
        self.losses, self.broken = list[float](), False
        self.before, self.began = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.began

    @property
    def fraction(self) -> float:
        return self.plan.fraction(self.step, self.seconds)

    @property
    def best_point(self) -> Point:
        return max(self.points, key=lambda point: point.agreement.mean)  # the first of equal ones

    def due(self) -> bool:
        """Whether it is time to evaluate."""
        if not self.points:
            return True
        last = self.points[-1]
        if last.step == self.step or self.broken:
            return False
        since = self.fraction - self.plan.fraction(last.step, last.seconds)
        return since > 0.999 / EVALUATIONS or self.fraction >= 1 or self.seconds - last.seconds > SECONDS_BETWEEN

    def evaluate(self) -> Point:
        loss = sum(self.losses) / len(self.losses) if self.losses else None
        values = as_stored(self.drafter, self.plan.schemes)
        found = agreement(self.config, values, self.target, self.held_out)
        self.points.append(Point(self.step, self.seconds, loss, found))
        if self.best_point is self.points[-1]:
            self.best = self._copy()
        self.losses.clear()
        return self.points[-1]

    def end(self) -> End | None:
        if self.broken:
            return End.NOT_FINITE
        if self.fraction >= 1:
            return End.BUDGET
        return End.NO_BETTER if no_better(self.points, self.plan) else None

    def advance(self, batches: Batches) -> None:
        """One step; a loss that is not finite changes nothing and ends the run."""
        fraction = self.fraction
        phase = next((phase for phase in self.plan.phases if fraction < phase.until), self.plan.phases[-1])
        tokens = batches.at(self.step, phase.length)
        values = as_stored(self.drafter, self.plan.schemes)
        steps = min(phase.steps, tokens.shape[1] - 1)
        loss = learn(self.config, values, self.target, observe(self.target, tokens), steps)
        if not isfinite(loss):
            if not self.step:
                raise PacelineError(
                    f"the loss is {loss} at the first step; check the weights of both models with paceline evaluate."
                )
            self.optimizer.forget_gradients()
            self.broken = True
            return
        self.optimizer.step(fraction)
        self.losses.append(loss)
        self.step += 1

    def moment(self, point: Point | None = None) -> Moment:
        """What can be told now."""
        fraction = self.fraction
        left = self.seconds * (1 - fraction) / fraction if fraction else None
        return Moment(fraction, self.step, self.losses[-1] if self.losses else None, left, point)

    def state(self, of: str) -> State:
        """See `State`."""
        return State(of, self.step, self.seconds, self.points, self.drafter, self.best, self.optimizer.state())

    @torch.no_grad()
    def restore(self, state: State) -> None:
        for name, tensor in self.drafter.items():
            tensor.copy_(state.now[name])
            self.best[name].copy_(state.best[name])
        self.optimizer.restore(state.optimizer)
        self.step, self.points = state.step, list(state.points)
        self.before, self.began = state.seconds, time.monotonic()

    def _copy(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.drafter.items()}
