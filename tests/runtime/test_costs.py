"""Costs of single calls: which are timed, at which context, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import paceline
from paceline.backends import BACKENDS
from paceline.costs import Cost, Costs, measure_costs, pretend_context
from paceline.errors import CapacityError, InputError

CONTEXT = 300  # more rows than a local cache of the tiny pair has slots


@pytest.fixture(scope="module", params=BACKENDS)
def model(request: pytest.FixtureRequest, tiny_bundle: Path) -> paceline.Model:
    return paceline.load(tiny_bundle, backend=request.param, threads=1, capacity=400)


def test_every_call_that_was_asked_for_is_timed(model: paceline.Model) -> None:
    costs = measure_costs(model, CONTEXT, rows=(4, 2), prefill=(1, 150), repeats=2)
    assert (costs.context, costs.repeats) == (CONTEXT, 2)
    assert (list(costs.verify), list(costs.draft), list(costs.prefill)) == ([1, 2, 4], [1, 3], [1, 150])
    for cost in (*costs.verify.values(), *costs.draft.values(), *costs.prefill.values()):
        assert 0 < cost.minimum_ms <= cost.median_ms


def test_ratios_are_of_minima_and_a_draft_step_is_one_of_its_chain() -> None:
    costs = Costs(1, 1, verify={1: Cost(10, 70), 4: Cost(15, 80)}, draft={3: Cost(6, 90)}, prefill={})
    assert costs.verify_ratio(3) == 1.5
    assert costs.draft_ratio(3) == pytest.approx(0.2)
    assert (costs.verify_ratio(0), costs.draft_ratio(0)) == (1, 0)


def test_a_pretended_context_lies_as_a_prefilled_one_and_gives_finite_numbers(model: paceline.Model) -> None:
    with model.sequence() as (real, _), model.sequence() as (pretended, drafter):
        real.prefill(CONTEXT * [7])
        pretend_context(pretended, CONTEXT, np.random.default_rng(0))
        assert (pretended.cache.length, pretended.cache.local_start) == (CONTEXT, real.cache.local_start)
        assert pretended.cache.local_start > 0
        for spec in pretended.cache.specs:
            for name in (spec.key, spec.value):
                rows = pretended.cache.view(spec, name, 0)
                assert np.abs(rows[rows != 0]).min() > 1e-30, "no denormal numbers, which some CPUs are slow with"
                assert (rows != 0).any(-1).all()
        verified = pretended.verify([7, 8])
        assert np.isfinite(verified.logits).all()
        assert np.isfinite(drafter.graphs.draft(7, verified.activations[0].copy()).state).all()


def test_measuring_leaves_later_texts_alone(model: paceline.Model) -> None:
    before = [piece.token for piece in model.generate([2, 9, 8, 7], max_new_tokens=40)]
    measure_costs(model, CONTEXT, repeats=1, prefill=(20,))
    assert [piece.token for piece in model.generate([2, 9, 8, 7], max_new_tokens=40)] == before


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        (lambda model: measure_costs(model, 0), "context is 0; give 1 or more"),
        (lambda model: measure_costs(model, 10, rows=(9,)), "rows has 9; allowed are 1 to 8"),
        (lambda model: measure_costs(model, 10, rows=(0,)), "rows has 0; allowed are 1 to 8"),
        (lambda model: measure_costs(model, 10, prefill=(0,)), "prefill has 0; allowed are 1 and more"),
        (lambda model: measure_costs(model, 10, repeats=0), "repeats is 0; give 1 or more"),
    ],
)
def test_an_argument_out_of_range_is_refused(
    measure: Callable[[paceline.Model], Costs], words: str, model: paceline.Model
) -> None:
    with pytest.raises(InputError, match=words):
        measure(model)


@pytest.mark.parametrize(("context", "prefill"), [(393, ()), (10, (401,))])
def test_what_does_not_fit_is_refused(context: int, prefill: tuple[int, ...], model: paceline.Model) -> None:
    with pytest.raises(CapacityError, match=r"401 tokens .* 400"):
        measure_costs(model, context, prefill=prefill, repeats=1)
