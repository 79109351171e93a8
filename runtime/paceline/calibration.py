"""What a round's calls cost on this device: measured once for a bundle, a backend and its threads, and kept on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from paceline.bundle import cache_folder
from paceline.costs import SCALE, pretend_context
from paceline.draft_length import CallCosts
from paceline.machine import Machine, usable_cores
from paceline.model import Model
from paceline.partial import remove_abandoned, write_whole
from paceline.reading import read_json
from paceline.signatures import VERIFY

CONTEXT = 512  # committed rows, or as many as the capacity has: a chat's turn. Ratios change little with it
BUDGET_S = 1.0  # no turn starts later than this after the warm-up, but for the least ones
LEAST_TURNS = 2  # counted ones, whatever they take: a single one is at the mercy of any other process
MOST_TURNS = 20  # a small model has them in milliseconds, and more do not change the minimum
CHAIN = 3  # draft steps that are timed together; the first is dearer than the others
FORMAT = 1  # of the files; another one is measured again
Clock = Callable[[], float]  # seconds


def calibrated(model: Model, threads: int | None) -> CallCosts:
    """The costs of this model's calls: those on disk, or new ones, which are then kept where the disk allows.

    Args:
        model: any loaded one; its generations are not disturbed.
        threads: as they were given to `paceline.load`.

    Raises:
        CapacityError: the KV cache has fewer than nine rows; raised before any graph runs.
    """
    key = _key(model, threads)
    name = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    file = cache_folder() / "costs" / f"{name}.json"
    costs = _read(file, key)
    if costs is None:
        costs = measure(model)
        _write(file, key, costs)
    return costs


def measure(model: Model, clock: Clock = perf_counter) -> CallCosts:
    """Times the calls in turns, for about BUDGET_S and one warm-up turn: a second and a half for E2B on two cores.

    The cost is the minimum, because noise only adds.

    Raises:
        CapacityError: the KV cache has fewer than nine rows; raised before any graph runs.
    """
    rows = max(VERIFY)
    context = max(1, min(CONTEXT, model.capacity - rows))
    rng = np.random.default_rng(0)
    tokens = rng.integers(model.manifest.vocab_size, size=rows).tolist()
    hidden = SCALE * rng.standard_normal(model.manifest.hidden_size, np.float32)
    with model.sequence() as (target, drafter):
        target.cache.require_room(context + rows)
        pretend_context(target, context, rng)
        calls: dict[int, Callable[[], object]] = {0: partial(drafter.chain, tokens[0], hidden, CHAIN)}
        calls |= {count: partial(target.verify, tokens[:count]) for count in VERIFY}
        taken = _fastest(calls, clock)
    verify_ms = {count: taken[count] for count in VERIFY if count > 1}
    return CallCosts(decode_ms=taken[1], verify_ms=verify_ms, draft_ms=taken[0] / CHAIN)


def _fastest(calls: Mapping[int, Callable[[], object]], clock: Clock) -> dict[int, float]:
    """Milliseconds of each call at its best; the first turn, which binds and warms up, does not count."""
    for call in calls.values():
        call()
    fastest = dict.fromkeys(calls, float("inf"))
    started = clock()
    for turn in range(MOST_TURNS):
        if turn >= LEAST_TURNS and clock() - started > BUDGET_S:
            break
        for name, call in calls.items():
            before = clock()
            call()
            fastest[name] = min(fastest[name], 1000 * (clock() - before))
    return fastest


def _key(model: Model, threads: int | None) -> dict[str, Any]:
    """Everything that costs depend on, as JSON has it."""
    return {
        **model.backend.identity(model.manifest),
        "format": FORMAT,
        "threads": threads,
        "cpu": Machine.here().cpu,
        "cores": usable_cores(),  # what threads=None takes
        "context": min(CONTEXT, model.capacity),
    }


def _read(file: Path, key: Mapping[str, Any]) -> CallCosts | None:
    """None where there is no such file, or it is not one of ours: whatever is wrong with it, measuring mends it."""
    try:
        raw = read_json(file)
        if raw["key"] != key:
            return None
        verify_ms = {int(rows): float(cost) for rows, cost in raw["costs"]["verify_ms"].items()}
        if set(verify_ms) != set(VERIFY) - {1}:
            return None
        return CallCosts(float(raw["costs"]["decode_ms"]), verify_ms, float(raw["costs"]["draft_ms"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _write(file: Path, key: Mapping[str, Any], costs: CallCosts) -> None:
    """Complete or not at all. A cache directory that cannot be written only means that costs are measured again."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(file.parent)
        write_whole(file, json.dumps({"key": key, "costs": asdict(costs)}, indent=2) + "\n")
