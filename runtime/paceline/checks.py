"""What must hold of a bundle, tried out on its own graphs: `paceline verify`.

A check returns what it found in words. It raises FailedError where something is wrong, and SkippedError, with the reason, where
there is nothing to try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paceline.bundle import Bundle
from paceline.costs import pretend_context
from paceline.draft_length import Fixed
from paceline.errors import PacelineError
from paceline.generate import MAX_DRAFT_LENGTH, FinishReason, generate
from paceline.model import Model
from paceline.prompts import PROMPTS
from paceline.rules import Greedy
from paceline.signatures import GROWTH_SLOTS, VERIFY
from paceline.stats import Stats

NEW_TOKENS, TEXTS = 32, 4
LEAST_CAPACITY = 2 * GROWTH_SLOTS
# Of logits, as a norm: float32 of two backends, and integer weights, whose activations each backend rounds in its own way
# (1 to 4 % against exact ones, each).
BACKENDS_DIFFER = {"f32": 1e-3, "other": 0.1}
LEAST_ACCEPTED, ENOUGH_DRAFTS = 0.05, 64
# What E2B drafts in float32, published by another exporter's tests.
GOLDEN_PROMPT, GOLDEN_DRAFTS = "Here is my poem:", [3442, 786, 1144, 611, 236789, 500]
E2B = {"layers": 35, "hidden_size": 1536, "vocab_size": 262_144}


class Outcome(Enum):
    """What came of a check."""

    OK = "ok"
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    outcome: Outcome
    detail: str


class FailedError(PacelineError):
    """Something that must hold does not."""


class SkippedError(PacelineError):
    """There is nothing to try; the text says why."""


Trial = tuple[str, Callable[[], str]]
Models = Mapping[str, Model]  # by backend
Progress = Callable[[str], None]


def run(trials: Sequence[Trial], progress: Progress) -> Iterator[Check]:
    """Runs checks one after another; what goes wrong in one is its outcome, and the next one runs."""
    for name, trial in trials:
        progress(name)
        try:
            yield Check(name, Outcome.OK, trial())
        except SkippedError as skipped:
            yield Check(name, Outcome.SKIPPED, str(skipped))
        except PacelineError as error:
            yield Check(name, Outcome.FAILED, str(error))


def trials(models: Models) -> list[Trial]:
    """All checks of a bundle's graphs, by name, on every backend that it is loaded on.

    Args:
        models: with a capacity of at least LEAST_CAPACITY, or of the model's own limit.
    """
    found: list[Trial] = []
    for name, model in models.items():
        found += [
            (f"rows, {name}", partial(rows, model)),
            (f"rollback, {name}", partial(rollback, model)),
            (f"text, {name}", partial(texts, model)),
            (f"stops, {name}", partial(stops, model)),
            (f"acceptance, {name}", partial(acceptance, model)),
            (f"known drafts, {name}", partial(golden, model)),
        ]
    return [*found, ("backends", partial(agreement, list(models.values())))]


def files(bundle: Bundle) -> str:
    """Every file has the size and the hash that the manifest states."""
    bundle.check_sizes()
    bundle.check_hashes()
    return f"{len(bundle.manifest.files)} files have the sizes and hashes of the manifest"


def rows(model: Model) -> str:
    """A verified row is the decoded row, bit for bit: at the start, at the window's end, and where full caches grow."""
    contexts = [0, model.manifest.window - 3, GROWTH_SLOTS - 3]
    contexts = sorted({min(context, model.capacity - max(VERIFY) - 1) for context in contexts})
    compared = 0
    for context in contexts:
        text = _tokens(model, max(VERIFY), context)
        with model.sequence() as (decoded, _), model.sequence() as (verified, _):
            for target in (decoded, verified):
                if context:
                    pretend_context(target, context, np.random.default_rng(context))
            wanted = []
            for token in text:
                wanted.append(decoded.verify([token]).logits[0].copy())
                decoded.commit(1)
            for count in VERIFY:
                found = verified.verify(text[:count]).logits
                differing = [row for row in range(count) if not np.array_equal(found[row], wanted[row])]
                if differing:
                    raise FailedError(
                        f"rows {differing} of a call of {count} behind {context} rows are not those of decode; drafting can "
                        "change the text."
                    )
                compared += count
    return f"{compared} verified rows behind {', '.join(map(str, contexts))} rows are decode's, bit for bit"


def rollback(model: Model) -> str:
    """Rows that were not committed leave no trace."""
    text, kept = _tokens(model, 12, seed=1), 3
    with model.sequence() as (target, _), model.sequence() as (fresh, _):
        target.verify(text[: max(VERIFY)])
        target.commit(kept)
        for token in text[:kept]:
            fresh.verify([token])
            fresh.commit(1)
        again = text[-2:]
        if not np.array_equal(target.verify(again).logits, fresh.verify(again).logits):
            raise FailedError(f"after a rollback from {max(VERIFY)} rows to {kept} the next logits are not a fresh sequence's.")
    return f"after a rollback from {max(VERIFY)} rows to {kept} the logits are a fresh sequence's, bit for bit"


def texts(model: Model) -> str:
    """Drafted text is plain text."""
    for prompt in PROMPTS[:TEXTS]:
        plain, *others = (_text(model, prompt, k) for k in (0, 1, 3, MAX_DRAFT_LENGTH, None))
        if any(other != plain for other in others):
            raise FailedError(f"with drafts the text after {prompt!r} is another than without.")
    return f"{TEXTS} texts of {NEW_TOKENS} tokens are the same without drafts and with 1, 3, {MAX_DRAFT_LENGTH} and auto"


def stops(model: Model) -> str:
    """A stop token inside an accepted block ends the text there, and the cache agrees; a budget is kept."""
    prompt = model.encode(PROMPTS[0])
    plain = _text(model, PROMPTS[0], 0)
    end = plain[len(plain) // 2]
    wanted = plain[: plain.index(end) + 1]
    for length in (0, 3, MAX_DRAFT_LENGTH):
        with model.sequence() as (target, drafter):
            emitted = list(
                generate(
                    target,
                    drafter,
                    prompt,
                    rule=Greedy(),
                    draft_length=Fixed(length),
                    max_new_tokens=2 * NEW_TOKENS,
                    stop_ids=frozenset([end]),
                    stats=Stats(),
                )
            )
            held = target.cache.length
        if [each.token for each in emitted] != wanted or emitted[-1].finish_reason is not FinishReason.STOP:
            raise FailedError(f"with {length} drafts a stop token did not end the text where it came.")
        if held != len(prompt) + len(wanted) - 1:
            raise FailedError(
                f"after a stop with {length} drafts the cache has {held} rows for {len(prompt) + len(wanted)} tokens."
            )
    return (
        f"a stop token ends the text after {len(wanted)} tokens with 0, 3 and {MAX_DRAFT_LENGTH} drafts, and the cache agrees"
    )


def acceptance(model: Model) -> str:
    """The drafter is right now and then: one that never is reads the wrong things."""
    total = Stats()
    for prompt in PROMPTS:
        pieces = list(model.generate(prompt, draft_length=3, max_new_tokens=NEW_TOKENS))
        stats = pieces[-1].stats
        assert stats is not None
        total.add(stats)
    found = f"{total.accepted} of {total.drafted} drafts accepted after {len(PROMPTS)} prompts"
    if total.drafted >= ENOUGH_DRAFTS and total.accepted < LEAST_ACCEPTED * total.drafted:
        raise FailedError(f"{found}; the drafter is not of this target, or wired wrongly: paceline doctor says more.")
    return found


def golden(model: Model) -> str:
    """The published E2B pair drafts known tokens."""
    manifest = model.manifest
    if any(vars(manifest)[name] != value for name, value in E2B.items()):
        raise SkippedError("the model is not of E2B's size")
    if manifest.recipe != "f32":
        raise SkippedError(f"known for float32 weights, and these are {manifest.recipe}")
    tokens = model.encode(GOLDEN_PROMPT)
    with model.sequence() as (target, drafter):
        target.prefill(tokens[:-1])
        verified = target.verify(tokens[-1:])
        target.commit(1)
        pending, hidden = int(verified.logits[0].argmax()), verified.activations[0].copy()
        drafts = drafter.chain(pending, hidden, len(GOLDEN_DRAFTS))
    if drafts != GOLDEN_DRAFTS:
        raise FailedError(f"{GOLDEN_PROMPT!r} drafts {drafts}, and the published pair {GOLDEN_DRAFTS}.")
    return f"{GOLDEN_PROMPT!r} drafts {drafts}, as published"


def agreement(models: Sequence[Model]) -> str:
    """The backends compute the same model."""
    if len(models) < 2:
        raise SkippedError("the bundle has graphs for one backend only")
    text = _tokens(models[0], 24, seed=2)
    logits = [_logits(model, text) for model in models]
    difference = np.linalg.norm(logits[0] - logits[1]) / np.linalg.norm(logits[0])
    same = (logits[0].argmax(-1) == logits[1].argmax(-1)).mean()
    recipe = models[0].manifest.recipe
    limit = BACKENDS_DIFFER.get(recipe, BACKENDS_DIFFER["other"])
    found = f"logits of {' and '.join(model.backend.name for model in models)} differ by {difference:.1e} of their norm"
    if not difference <= limit:
        raise FailedError(f"{found}; with {recipe} weights up to {limit:g} is rounding.")
    return f"{found}; {same:.0%} of {len(text)} next tokens are the same"


def _logits(model: Model, text: Sequence[int]) -> NDArray[np.float32]:
    found = []
    with model.sequence() as (target, _):
        for start in range(0, len(text), max(VERIFY)):
            block = text[start : start + max(VERIFY)]
            found.append(target.verify(block).logits.copy())
            target.commit(len(block))
    return np.concatenate(found)


def _text(model: Model, prompt: str, draft_length: int | None) -> list[int]:
    return [piece.token for piece in model.generate(prompt, draft_length=draft_length, max_new_tokens=NEW_TOKENS)]


def _tokens(model: Model, count: int, seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(model.manifest.vocab_size, size=count).tolist()
    return tokens
