"""How long a drafter is trained, on what, and when that is given up."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.errors import InputError
from paceline_export.distill.optimizer import DECAY, Rates
from paceline_export.distill.state import Point
from paceline_export.recipes import Schemes

SHORT, LONG = 256, 1024  # tokens of a sequence
EVALUATIONS = 12  # in a whole budget, each on held-out text of as many tokens as HELD_OUT_STEPS steps learn from
HELD_OUT_STEPS = 2
PATIENCE, WORTHWHILE = 4, 0.001  # evaluations that may bring less than that share more agreement


@dataclass(frozen=True)
class Phase:
    """A part of the budget: sequences of `length` tokens, `steps` draft steps in a round."""

    until: float  # fraction of the budget
    length: int
    steps: int


# A new drafter's first step improves faster in rounds of one step than in longer ones, which the later steps need. Long
# sequences come last, so that far positions are learned. Where to change over is a guess.
FRESH_PHASES = (Phase(1 / 3, SHORT, 1), Phase(0.8, SHORT, 3), Phase(1.0, LONG, 4))
PHASES = (Phase(0.8, SHORT, 3), Phase(1.0, LONG, 4))


@dataclass(frozen=True)
class Plan:
    """How long and how to train; one of both budgets is None.

    Attributes:
        minutes, steps: the budget.
        schemes: as which the drafter's weights will be stored; those without one are bfloat16.
    """

    minutes: float | None = None
    steps: int | None = None
    phases: tuple[Phase, ...] = PHASES
    rates: Rates = field(default_factory=Rates)
    schemes: Schemes = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise InputError("give either --minutes or --steps.")
        for name, value in (("--minutes", self.minutes), ("--steps", self.steps)):
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"{name} is {value}; give a number above 0.")

    def fraction(self, step: int, seconds: float) -> float:
        """How much of the budget is spent, 0..1."""
        spent = seconds / (60 * self.minutes) if self.minutes else step / (self.steps or 1)
        return min(1.0, spent)


def no_better(points: list[Point], plan: Plan) -> bool:
    """Whether the last PATIENCE evaluations brought nothing worthwhile.

    Only those count that were made while the learning rate falls, because that alone often brings more.
    """
    if len(points) <= PATIENCE or plan.fraction(points[-PATIENCE].step, points[-PATIENCE].seconds) < 1 - DECAY:
        return False
    means = [point.agreement.mean for point in points]
    return max(means[-PATIENCE:]) < max(means[:-PATIENCE]) + WORTHWHILE
