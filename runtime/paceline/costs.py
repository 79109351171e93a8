"""What the calls of a round cost at a given context: decode, verify, a chain of draft steps; and prefill.

The calls take turns, so that all of them see the same machine, and nothing is generated: a context of any length is there
at once, because the time of a call does not depend on what the KV rows hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.model import Model
from paceline.signatures import PREFILL_CHUNK, VERIFY
from paceline.target import Target

WARM_UP = 3  # turns that are not counted: bindings, thread pools and caches are made in the first one
SCALE = 0.1  # of the made-up KV rows and hidden state: small enough for a flat softmax, and far from denormal numbers
MAX_ROWS = max(VERIFY)


@dataclass(frozen=True)
class Cost:
    """Milliseconds of one call. Noise only adds, so ratios are of minima, which repeat best; the median is what a user gets."""

    minimum_ms: float
    median_ms: float


@dataclass(frozen=True)
class Costs:
    """What was measured in one run.

    Attributes:
        context: committed rows that decode, verify and draft steps saw.
        repeats: counted calls of each kind.
        verify: rows of a target pass -> its cost; one row, which is always there, is decode.
        draft: steps of the drafter's chain -> the cost of the whole chain; there for each verify that checks so many
            drafts. The first step, which finds the target's weights in the CPU's caches, can cost twice as much as others.
        prefill: tokens -> the cost of writing their rows to an empty cache, before a first token is computed.
    """

    context: int
    repeats: int
    verify: dict[int, Cost]
    draft: dict[int, Cost]
    prefill: dict[int, Cost]

    @property
    def decode(self) -> Cost:
        """A target pass over one row."""
        return self.verify[1]

    def verify_ratio(self, draft_length: int) -> float:
        """A target pass over the pending token and `draft_length` drafts as a multiple of decode."""
        return self.verify[draft_length + 1].minimum_ms / self.decode.minimum_ms

    def draft_ratio(self, draft_length: int) -> float:
        """One step of a chain of `draft_length` as a multiple of decode; 0 where nothing is drafted."""
        return self.draft[draft_length].minimum_ms / draft_length / self.decode.minimum_ms if draft_length else 0.0


def measure_costs(
    model: Model, context: int, rows: Sequence[int] = tuple(VERIFY), prefill: Sequence[int] = (), repeats: int = 30
) -> Costs:
    """Times the graphs' calls in turns.

    Args:
        model: any loaded one; its generations are not disturbed.
        context: KV rows that decode, verify and draft steps see, at least 1.
        rows: of the target passes to time, 1 to 8 each, and each after the drafting that it checks; 1 is added.
        prefill: numbers of tokens to time prefill with, at least 1 each.
        repeats: counted calls of each kind, at least 1.

    Raises:
        InputError: an argument is out of range.
        CapacityError: context and rows, or a prefill, do not fit; raised before any graph runs.
    """
    for name, values, most in (("rows", rows, MAX_ROWS), ("prefill", prefill, None)):
        for value in values:
            if value < 1 or (most and value > most):
                raise InputError(f"{name} has {value}; allowed are " + (f"1 to {most}." if most else "1 and more."))
    for name, value in (("context", context), ("repeats", repeats)):
        if value < 1:
            raise InputError(f"{name} is {value}; give 1 or more.")
    counts = sorted({1, *rows})
    rng = np.random.default_rng(0)
    tokens = rng.integers(model.manifest.vocab_size, size=max(MAX_ROWS, *prefill, 0)).tolist()
    hidden = SCALE * rng.standard_normal(model.manifest.hidden_size, np.float32)
    with model.sequence() as (target, drafter), model.sequence() as (fresh, _):
        target.cache.require_room(context + counts[-1])
        fresh.cache.require_room(max(prefill, default=0))
        pretend_context(target, context, rng)
        calls: dict[tuple[str, int], Callable[[], object]] = {}
        for count in counts:  # in the order of a round, because a call finds in the CPU's caches what the last one left
            if count > 1:
                calls["draft", count - 1] = partial(drafter.chain, tokens[0], hidden, count - 1)
            calls["verify", count] = partial(target.verify, tokens[:count])
        for count in prefill:
            calls["prefill", count] = partial(_prefill_afresh, fresh, tokens[:count])
        costs = _in_turns(calls, repeats)

    def of(kind: str) -> dict[int, Cost]:
        return {count: cost for (its_kind, count), cost in costs.items() if its_kind == kind}

    return Costs(context, repeats, verify=of("verify"), draft=of("draft"), prefill=of("prefill"))


def pretend_context(target: Target, rows: int, rng: np.random.Generator) -> None:
    """Commits `rows` rows of small random numbers to an empty cache, as a prefill of as many tokens would its own."""
    cache = target.cache
    for buffer in cache.buffers.values():  # [1, K, S, H]
        seen: NDArray[np.float32] = buffer[:, :, :rows]
        seen[:] = SCALE * rng.standard_normal(seen.shape, np.float32)
    for start in range(0, rows, PREFILL_CHUNK):
        chunk = min(PREFILL_CHUNK, rows - start)
        cache.make_room(chunk)
        target.commit(chunk)


def _prefill_afresh(target: Target, tokens: Sequence[int]) -> None:
    target.cache.reset()
    target.prefill(tokens)


def _in_turns(calls: Mapping[tuple[str, int], Callable[[], object]], repeats: int) -> dict[tuple[str, int], Cost]:
    times: dict[tuple[str, int], list[float]] = {name: [] for name in calls}
    for _ in range(WARM_UP + repeats):
        for name, call in calls.items():
            started = perf_counter()
            call()
            times[name].append(1000 * (perf_counter() - started))
    return {name: Cost(min(taken[WARM_UP:]), median(taken[WARM_UP:])) for name, taken in times.items()}
