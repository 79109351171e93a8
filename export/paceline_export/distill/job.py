"""One distillation from files to files: what `paceline distill` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from paceline import reading
from paceline.errors import InputError, PacelineError
from paceline.partial import remove_abandoned, write_whole
from paceline.text import TOKENIZER_FILE, load_tokenizer
from paceline_export.checkpoint import CONFIG, Target, open_pair, open_target, read_json, stop_ids
from paceline_export.config import DrafterConfig, drafter_config
from paceline_export.distill.memory import device_of, freeze, needs
from paceline_export.distill.observed import FrozenTarget
from paceline_export.distill.optimizer import Rates
from paceline_export.distill.plan import FRESH_PHASES, HELD_OUT_STEPS, PHASES, SHORT, Plan
from paceline_export.distill.save import require_place, save
from paceline_export.distill.start import fresh_config, start
from paceline_export.distill.text import (
    RandomWindows,
    Texts,
    read_documents,
    split,
    spread_windows,
    tokenise,
)
from paceline_export.distill.train import Tell, Trained, train
from paceline_export.distill.writing import written_documents
from paceline_export.lower.torch import handles, load
from paceline_export.model.drafter import drafter_shapes
from paceline_export.model.target import TABLE
from paceline_export.recipes import DEFAULT_RECIPE, Recipe
from paceline_export.weights import Weights, read_permutation

SAMPLED_AT = 1.0  # temperature of the sampled texts: what a user's sampler asks of the drafter lies around it
STATE_SUFFIX, WRITTEN_SUFFIX = ".training", ".written.json"


@dataclass(frozen=True)
class Job:
    """What to distill from what, how long, and where to.

    Attributes:
        drafter: None starts a new one.
        text, prompts: one of both: documents to learn from, or prompts after which the target writes them.
        recipe: as which the pair will be exported; training sees the rounded weights of both.
        written, samples: tokens after a prompt; texts that are sampled beside the greedy one.
        rate: factor on all learning rates.
    """

    target: Path
    drafter: Path | None
    out: Path
    text: Sequence[Path] = ()
    prompts: Sequence[str] = ()
    minutes: float | None = None
    steps: int | None = None
    recipe: Recipe = DEFAULT_RECIPE
    device: str = "cpu"
    written: int = 256
    samples: int = 1
    batch_tokens: int = 2048
    rate: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("--written", self.written, 1),
            ("--samples", self.samples, 0),
            ("--batch-tokens", self.batch_tokens, SHORT),
            ("--seed", self.seed, 0),
        ):
            if value < least:
                raise InputError(f"{name} is {value}; give {least} or more.")
        if not 0 < self.rate <= 100:
            raise InputError(f"--rate is {self.rate}; give a number above 0, at most 100.")


def run(job: Job, say: Callable[[str], None], tell: Tell) -> Trained:
    """Trains, and writes the best drafter that was found.

    Args:
        say: is told in a sentence what a user should know before and while it runs.
        tell: see `train`.

    Raises:
        InputError: something does not fit, lacks, or is not enough; nothing is written then.
        PacelineError: nothing better than the start was found; nothing is written.
    """
    target, config, raw, own = _opened(job)
    require_place(job.out, drafter_shapes(config))
    remove_abandoned(job.out.parent, job.out.name)
    plan = Plan(
        minutes=job.minutes,
        steps=job.steps,
        phases=FRESH_PHASES if own is None else PHASES,
        rates=Rates().times(job.rate),
    )
    tokenizer = _tokenizer(job.target)
    documents = tokenise(tokenizer, read_documents(job.text), target.config) if job.text else None
    texts = split(documents, target.config.bos_id, "the text") if documents is not None else None
    needed = needs(target, config, job.batch_tokens, device_of(job.device))
    say(needed.sentence())
    frozen = freeze(target, job.recipe.target(target.weights), needed.chosen(), job.device)
    if texts is None:
        texts = split(_written(job, frozen, target, tokenizer, say), target.config.bos_id, "what the target wrote")
    say(
        f"text: {len(texts.training):,} tokens to learn from, {len(texts.held_out):,} held out"
        + ("" if texts.whole else "; few documents, so parts of the same ones are held out, which flatters agreement")
    )
    tensors = start(config, frozen.tensors[TABLE].cpu(), job.seed) if own is None else load(own)
    state = job.out.with_name(job.out.name + STATE_SUFFIX)
    trained = train(
        frozen,
        config,
        tensors,
        RandomWindows(texts, job.batch_tokens, job.seed),
        spread_windows(texts.held_out, SHORT, HELD_OUT_STEPS * job.batch_tokens // SHORT, texts.bos_id),
        replace(plan, schemes=job.recipe.drafter(handles(tensors))),
        tell,
        state,
        _name(job, texts),
        say,
    )
    if not trained.learned:
        raise PacelineError(
            f"no step of {trained.step} made the drafter better on held-out text ({trained.end.value}), so nothing is written; "
            f"give more text, more --minutes, or a smaller --rate, and remove {state} first."
        )
    save(job.out, raw, trained.tensors, job.drafter or job.target)
    for kept in (state, job.out.with_name(job.out.name + WRITTEN_SUFFIX)):
        with suppress(OSError):
            kept.unlink()
    return trained


def _opened(job: Job) -> tuple[Target, DrafterConfig, Mapping[str, Any], Weights | None]:
    """The target, the drafter's configuration read and raw, and its weights where it has some."""
    if job.drafter:
        target, drafter = open_pair(job.target, job.drafter)
        if drafter.config.head:
            read_permutation(drafter.weights["masked_embedding.token_ordering"])
        return target, drafter.config, read_json(job.drafter / CONFIG), drafter.weights
    target = open_target(job.target)
    raw = fresh_config(read_json(job.target / CONFIG), target.config)
    return target, drafter_config(raw, "the new drafter's config.json", target.config), raw, None


def _tokenizer(folder: Path) -> Tokenizer:
    if not (folder / TOKENIZER_FILE).is_file():
        raise InputError(f"{folder / TOKENIZER_FILE} is missing; download the target's tokenizer, too.")
    return load_tokenizer(folder)


def _written(
    job: Job, frozen: FrozenTarget, target: Target, tokenizer: Tokenizer, say: Callable[[str], None]
) -> list[list[int]]:
    """What the target writes after the prompts; kept in a file, because it can take longer than training."""
    ends = list(target.config.eos_ids[:1])
    prompts = [ids[: len(ids) - len(ends)] for ids in tokenise(tokenizer, job.prompts, target.config)]
    key = [
        str(job.target.resolve()),
        sha256(json.dumps(prompts).encode()).hexdigest(),
        job.written,
        job.samples,
        job.recipe.name,
    ]
    file = job.out.with_name(job.out.name + WRITTEN_SUFFIX)
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(reading.read_bytes(file, 1 << 32))
        if kept["key"] == key:
            return [[int(token) for token in document] for document in kept["documents"]]
    count = len(prompts) * (1 + job.samples)
    say(f"the target writes {count:,} texts of up to {job.written} tokens after {len(prompts):,} prompts")
    temperatures, started = [0.0, *[SAMPLED_AT] * job.samples], monotonic()

    def tell(done: int) -> None:
        minutes, seconds = divmod(round((monotonic() - started) * (count - done) / done), 60)
        say(f"{done:,} of {count:,} texts are written, {minutes}:{seconds:02} left")

    found = written_documents(frozen, prompts, job.written, temperatures, stop_ids(target), tell)
    try:
        write_whole(file, json.dumps({"key": key, "documents": found}))
    except OSError as error:
        say(f"what the target wrote is not kept for another run: {error}")
    return found


def _name(job: Job, texts: Texts) -> str:
    """What a run is about, but for its length."""
    data = sha256(np.concatenate([texts.training, texts.held_out]).tobytes()).hexdigest()[:12]
    drafter = job.drafter.resolve() if job.drafter else "a new one"
    return (
        f"target {job.target.resolve()}, drafter {drafter}, text {data}, recipe {job.recipe.name}, "
        f"--batch-tokens {job.batch_tokens}, --rate {job.rate:g}, --seed {job.seed}"
    )
