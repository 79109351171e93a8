"""Measures plain and drafted decoding against each other: draft lengths and backends take turns within every repeat.

A ratio is only taken within a repeat, whose runs saw the same machine; what is reported is the median over the repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TypeVar

import numpy as np

from paceline.acceptance import SyntheticAcceptance
from paceline.bench_report import BundleFacts, Report, Result, Run
from paceline.costs import Costs, measure_costs
from paceline.drafter import Drafter
from paceline.errors import CapacityError, InputError
from paceline.generate import MAX_DRAFT_LENGTH, Emitted, generate
from paceline.machine import Machine, peak_memory_bytes, versions
from paceline.model import Model, Way
from paceline.ngram import Lookup
from paceline.rules import Greedy, Rule, Synthetic
from paceline.signatures import PREFILL, VERIFY
from paceline.stats import Stats
from paceline.target import Target

TURN_TOKENS = 16  # that a way emits before the next one's turn comes
WARM_UP_TOKENS = 16  # of a run that is not counted
SEED = 0  # of synthetic acceptance; the same for every run, so that all see the same pattern
Progress = Callable[[str], None]  # what is about to run
W = TypeVar("W", bound=Way)


@dataclass(frozen=True)
class Plan:
    """What to measure. Messages name the command's options.

    Attributes:
        draft_lengths: drafts a round; None is as many as pay. 0, the reference, is measured whether it is there or not.
        new_tokens: tokens that every run emits; stop tokens do not end it.
        repeats: counted runs of each way.
        synthetic_acceptance: None compares drafts with the target's choice. A probability accepts each draft by chance
            instead, for speed at that acceptance; the text is not the model's then.
        all_calls: also times target passes and draft chains that no way of `draft_lengths` has, and prefill calls.

    Raises:
        InputError: a value is out of range.
    """

    draft_lengths: tuple[int | None, ...] = (0, 1, 3, 7, None)
    new_tokens: int = 128
    repeats: int = 5
    synthetic_acceptance: float | None = None
    all_calls: bool = False

    def __post_init__(self) -> None:
        for length in self.draft_lengths:
            if length is not None and not 0 <= length <= MAX_DRAFT_LENGTH:
                raise InputError(
                    f"--draft-lengths has {length}; allowed are 0 (plain decoding) to {MAX_DRAFT_LENGTH}, and auto."
                )
        if self.new_tokens < 2:
            raise InputError(f"--new-tokens is {self.new_tokens}; give 2 or more, because the first one is the prompt's work.")
        if self.repeats < 1:
            raise InputError(f"--repeats is {self.repeats}; give 1 or more.")
        if self.synthetic_acceptance is not None and not 0 <= self.synthetic_acceptance <= 1:
            raise InputError(f"--synthetic-acceptance is {self.synthetic_acceptance}; allowed are probabilities from 0 to 1.")

    @property
    def fixed(self) -> tuple[int, ...]:
        """The fixed draft lengths to run, plain decoding first."""
        return tuple(sorted({0, *(length for length in self.draft_lengths if length is not None)}))

    @property
    def ways(self) -> tuple[int | None, ...]:
        """All draft lengths to run, the adaptive one last."""
        return (*self.fixed, None) if None in self.draft_lengths else self.fixed

    @property
    def longest(self) -> int:
        """Drafts that a round can have at most."""
        return MAX_DRAFT_LENGTH if None in self.draft_lengths else self.fixed[-1]

    def rule(self) -> Rule:
        """For one run."""
        if self.synthetic_acceptance is None:
            return Greedy()
        return Synthetic(SyntheticAcceptance(self.synthetic_acceptance, np.random.default_rng(SEED)))


def measure(models: Mapping[str, Model], prompt: Sequence[int], plan: Plan, progress: Progress) -> Report:
    """Runs every draft length on every model, in turns, and times their single calls in the middle of the text.

    Args:
        models: backend -> the same bundle on it.
        prompt: tokens, at least one.
        plan: what to measure.
        progress: is told what comes next.

    Raises:
        InputError: the prompt is empty.
        CapacityError: prompt, new tokens and the longest draft do not fit; raised before any graph runs.
    """
    if not prompt:
        raise InputError("--prompt has no tokens; give at least one.")
    needed = len(prompt) + plan.new_tokens + plan.longest
    for model in models.values():
        if needed > model.capacity:
            raise CapacityError(
                f"{len(prompt)} prompt tokens, --new-tokens {plan.new_tokens} and {plan.longest} drafts need {needed} rows of "
                f"the KV cache; --capacity is {model.capacity}, allowed are up to {model.manifest.max_positions}."
            )
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    runs = run_in_turns(models, prompt, plan, progress)
    peak = peak_memory_bytes()  # before what follows, which loads graphs once more to look into them
    results, prefill_costs = [], {}
    for name, model in models.items():
        progress(f"{name}: timing single calls")
        costs = _call_costs(model, len(prompt) + plan.new_tokens // 2, plan)
        for length in plan.ways:
            own, plain = tuple(runs[name, length]), tuple(runs[name, 0])
            results.append(Result(name, length, own, plain, costs, plan.synthetic_acceptance))
        if plan.all_calls:
            sizes = [size for size in PREFILL if size <= model.capacity]
            prefill_costs[name] = measure_costs(model, 1, (1,), sizes, plan.repeats)
    ran_on = {name: model.backend.describe() for name, model in models.items()}
    any_model = next(iter(models.values()))
    with any_model.sequence() as (target, _):
        kv_cache_bytes = sum(buffer.nbytes for buffer in target.cache.buffers.values())
    return Report(
        date=date,
        bundle=BundleFacts.of(any_model.bundle),
        prompt=any_model.tokenizer.decode(list(prompt)),
        synthetic_acceptance=plan.synthetic_acceptance,
        prompt_tokens=len(prompt),
        new_tokens=plan.new_tokens,
        repeats=plan.repeats,
        machine=Machine.here(),
        threads=any_model.threads,
        versions=versions(),
        ran_on=ran_on,
        peak_memory_bytes=peak,
        capacity=any_model.capacity,
        kv_cache_bytes=kv_cache_bytes,
        results=tuple(results),
        prefill_costs=prefill_costs,
    )


def _call_costs(model: Model, context: int, plan: Plan) -> Costs:
    rows = {length + 1 for length in plan.fixed}
    if plan.all_calls:
        rows |= {count for count in VERIFY if context + count <= model.capacity}
    return measure_costs(model, context, sorted(rows))


def run_in_turns(
    models: Mapping[str, Model], prompt: Sequence[int], plan: Plan, progress: Progress
) -> dict[tuple[str, int | None], list[Run]]:
    """(backend, draft length) -> its counted runs. Every way runs once in a repeat, after a warm-up of all.

    Backends take turns by whole runs, because each one's threads would disturb the other's.
    """
    runs: dict[tuple[str, int | None], list[Run]] = {(name, length): [] for name in models for length in plan.ways}
    for name, model in models.items():
        progress(f"{name}: warm-up")
        run_together(model, prompt, plan.ways, WARM_UP_TOKENS, plan.rule)
    for repeat in range(plan.repeats):
        for name, model in models.items():
            # A backend's turn begins, while the other's threads may still spin for work.
            run_together(model, prompt[:WARM_UP_TOKENS], (0,), WARM_UP_TOKENS, plan.rule)
            progress(f"{name}: repeat {repeat + 1} of {plan.repeats}")
            for length, run in run_together(model, prompt, plan.ways, plan.new_tokens, plan.rule).items():
                runs[name, length].append(run)
    return runs


def run_together(
    model: Model, prompt: Sequence[int], ways: Sequence[W], new_tokens: int, rule: Callable[[], Rule]
) -> dict[W, Run]:
    """Generates exactly `new_tokens` tokens, or fewer where the KV cache ends before, in each way of drafting.

    They take turns by some tokens, so that a machine's slow moments fall on all of them alike; each has a sequence of its own.
    """
    stats = {way: Stats() for way in ways}
    tokens: dict[W, list[int]] = {way: [] for way in ways}
    with ExitStack() as stack:
        active = {
            way: _begun(model, stack.enter_context(model.sequence()), prompt, way, new_tokens, rule(), own)
            for way, own in stats.items()
        }
        while active:
            for way, emitted in list(active.items()):
                turn = [each.token for each in islice(emitted, TURN_TOKENS)]
                tokens[way] += turn
                if len(turn) < TURN_TOKENS:
                    del active[way]
    return {way: Run(tuple(tokens[way]), stats[way]) for way in ways}


def _begun(
    model: Model,
    sequence: tuple[Target, Drafter],
    prompt: Sequence[int],
    way: Way,
    new_tokens: int,
    rule: Rule,
    stats: Stats,
) -> Iterator[Emitted]:
    target, drafter = sequence
    return generate(
        target,
        drafter,
        prompt,
        rule=rule,
        draft_length=model.draft_length(way),
        max_new_tokens=new_tokens,
        stop_ids=frozenset(),  # so that every way emits as many tokens
        stats=stats,
        # A lookup's drafts are kept by chance there, too, and it would earn what it does not deserve.
        lookup=Lookup(prompt) if not isinstance(way, int) and not isinstance(rule, Synthetic) else None,
    )


def named(draft_length: int | None) -> str:
    """A draft length for a person."""
    return "auto" if draft_length is None else str(draft_length)


def fit_prompt(model: Model, text: str, count: int | None) -> list[int]:
    """The prompt's tokens, cut to `count` or repeated up to it; <bos> stays in front, once. None leaves them as they are.

    Raises:
        InputError: `count` is below 1, or there is nothing to repeat.
    """
    tokens = model.encode(text)
    if count is None:
        return tokens
    if count < 1:
        raise InputError(f"--prompt-tokens is {count}; give 1 or more.")
    front = 1 if tokens[:1] == [model.manifest.bos_id] else 0
    body = tokens[front:]
    if len(tokens) < count and not body:
        raise InputError(f"--prompt has no tokens to repeat up to --prompt-tokens {count}; give some text.")
    return (tokens + body * (count // max(1, len(body))))[:count]
