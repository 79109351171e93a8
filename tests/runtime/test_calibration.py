"""Measured call costs: what is timed, for how long, and which files on disk are believed. No test looks at a real clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import calibration
from paceline.backends import BACKENDS, base
from paceline.calibration import BUDGET_S, CHAIN, LEAST_TURNS, MOST_TURNS, calibrated, measure
from paceline.draft_length import CallCosts
from paceline.errors import CapacityError

COSTS = CallCosts(66.0, {2: 100.0, 4: 110.0, 8: 190.0}, 2.5)
CALLS = 5  # a chain of draft steps, decode, and verify of 2, 4 and 8 rows


@pytest.fixture(scope="module", params=BACKENDS)
def model(request: pytest.FixtureRequest, tiny_bundle: Path) -> paceline.Model:
    return paceline.load(tiny_bundle, backend=request.param, threads=1, capacity=100)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where costs are kept; not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "paceline" / "costs"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[paceline.Model]:
    """The models that were measured since; each has the same costs."""
    models: list[paceline.Model] = []

    def measure(model: paceline.Model) -> CallCosts:
        models.append(model)
        return COSTS

    monkeypatch.setattr(calibration, "measure", measure)
    return models


def test_each_call_has_a_cost_and_later_texts_are_left_alone(model: paceline.Model) -> None:
    before = [piece.token for piece in model.generate([2, 9, 8, 7], max_new_tokens=40)]
    costs = measure(model)
    assert list(costs.verify_ms) == [2, 4, 8]
    assert min(costs.decode_ms, costs.draft_ms, *costs.verify_ms.values()) > 0
    assert [piece.token for piece in model.generate([2, 9, 8, 7], max_new_tokens=40)] == before


@pytest.mark.parametrize(
    ("call_s", "turns"),
    [
        pytest.param(1e-6, MOST_TURNS, id="a small model"),
        pytest.param(BUDGET_S / CALLS / 4.5, 5, id="until the time is spent"),
        pytest.param(10 * BUDGET_S, LEAST_TURNS, id="a slow device"),
    ],
)
def test_turns_end_with_the_time_and_the_fastest_counts(call_s: float, turns: int) -> None:
    now, called = 0.0, dict.fromkeys(range(CALLS), 0)

    def call(name: int) -> None:
        nonlocal now
        called[name] += 1
        now += call_s * (1 + name) / 3 if called[name] != LEAST_TURNS + 1 else call_s * (1 + name) / 6  # mean: call_s

    fastest = calibration._fastest({name: lambda name=name: call(name) for name in range(CALLS)}, lambda: now)
    assert set(called.values()) == {1 + turns}
    assert fastest == pytest.approx({name: 1000 * call_s * (1 + name) / 6 for name in range(CALLS)})


def test_a_draft_step_is_one_of_its_chain(model: paceline.Model) -> None:
    ticks = count()
    costs = measure(model, lambda: float(next(ticks)))  # a second between any two looks at the clock
    assert costs == CallCosts(1000, {2: 1000, 4: 1000, 8: 1000}, 1000 / CHAIN)


def test_a_cache_too_small_for_a_round_is_refused(tiny_bundle: Path) -> None:
    assert measure(paceline.load(tiny_bundle, threads=1, capacity=9)).decode_ms > 0
    with pytest.raises(CapacityError, match="9 tokens do not fit in a KV cache of capacity 8"):
        measure(paceline.load(tiny_bundle, threads=1, capacity=8))


def test_costs_are_measured_once(model: paceline.Model, folder: Path, measured: list[paceline.Model]) -> None:
    assert [calibrated(model, 1), calibrated(model, 1)] == [COSTS, COSTS]
    assert measured == [model]
    assert [file.suffix for file in folder.iterdir()] == [".json"], "and nothing unfinished is left"


def another_bundle(model: paceline.Model) -> paceline.Model:
    graphs = model.manifest.graphs[model.backend.name]
    files = model.manifest.files | {graphs.parts["drafter"]: replace(model.manifest.files[graphs.parts["drafter"]], sha256="0")}
    bundle = replace(model.bundle, manifest=replace(model.manifest, files=files))
    return paceline.Model(bundle, model.tokenizer, model.backend, model.capacity)


def test_another_bundle_thread_count_cpu_or_runtime_is_measured_anew(
    model: paceline.Model, folder: Path, measured: list[paceline.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(model, 1)
    calibrated(another_bundle(model), 1)
    calibrated(model, 2)
    with monkeypatch.context() as patch:
        patch.setattr(calibration.Machine, "here", lambda: calibration.Machine("another CPU", 2))
        calibrated(model, 1)
    with monkeypatch.context() as patch:
        patch.setattr(base, "version", lambda package: "0.0")
        calibrated(model, 1)
    assert len(measured) == len(list(folder.iterdir())) == 5
    calibrated(model, 1)
    assert len(measured) == 5


def changed(**parts: Any) -> Callable[[str], str]:
    """The file's text with other costs."""
    return lambda text: json.dumps(json.loads(text) | {"costs": json.loads(text)["costs"] | parts})


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: "", id="empty"),
        pytest.param(lambda text: text[: len(text) // 2], id="truncated"),
        pytest.param(lambda text: "[1, 2]", id="no object"),
        pytest.param(lambda text: "[" * 100_000, id="too deep to parse"),
        pytest.param(lambda text: text.replace('"threads": 1', '"threads": 9'), id="another's"),
        pytest.param(changed(decode_ms=-1), id="a negative cost"),
        pytest.param(changed(decode_ms=float("nan")), id="no number"),
        pytest.param(changed(draft_ms=None), id="no cost"),
        pytest.param(changed(verify_ms={"2": 1.0}), id="rows that lack"),
        pytest.param(changed(verify_ms=[1.0]), id="a list of costs"),
        pytest.param(changed(verify_ms={"two": 1.0}), id="rows that are no number"),
    ],
)
def test_a_file_that_is_not_ours_is_measured_again_and_replaced(
    damage: Callable[[str], str], model: paceline.Model, folder: Path, measured: list[paceline.Model]
) -> None:
    calibrated(model, 1)
    (file,) = folder.iterdir()
    written = file.read_text()
    file.write_text(damage(written))
    assert calibrated(model, 1) == COSTS
    assert len(measured) == 2
    assert file.read_text() == written


def test_without_a_cache_directory_costs_are_measured_each_time(
    model: paceline.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[paceline.Model]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # nobody can make a directory in it, not even root
    assert [calibrated(model, 1), calibrated(model, 1)] == [COSTS, COSTS]
    assert len(measured) == 2
