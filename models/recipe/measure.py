"""Honest numbers of a trained pair: on the rounded weights that are published, on text that neither has seen.

Run alone: `python models/recipe/measure.py --work /tmp/pair` prints what measurements.json holds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import data
import pair
import publish
import torch
import train_target
from tokenizers import Tokenizer
from torch import Tensor

from paceline.stats import distinct_4grams
from paceline_export.distill.loss import agreement, hold_out
from paceline_export.distill.plan import SHORT
from paceline_export.evaluate.checkpoints import Checkpoints
from paceline_export.evaluate.replay import Tally, Trace, first_round, free_running
from paceline_export.evaluate.traces import Prompt, Texts

DRAFTS = 3  # K


@dataclass(frozen=True)
class Counts:
    """How much is measured; the defaults take about four minutes on two cores."""

    windows: int | None = None  # of 256 held-out tokens; None: all
    prefixes: int = 320  # for the first round after a prefix
    prefix_tokens: int = 120
    prompts: int = 24  # for long texts
    prompt_tokens: int = 96
    written_tokens: int = 96


@torch.no_grad()
def measure(folder: Path, counts: Counts = Counts()) -> dict[str, Any]:
    """Measures target.pt and drafter.pt of the work folder; the result is what measurements.json holds."""
    target, drafter = (pair.rounded(torch.load(folder / f"{name}.pt")) for name in ("target", "drafter"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    both = Checkpoints(pair.frozen(target), pair.DRAFTER, drafter, tokenizer, publish.STOPS)
    nats, top1 = train_target.held_out(target, folder, counts.windows)
    bytes_per_token = held_out_bytes_per_token(folder)
    windows = data.windows(data.read(folder, "held_out"), SHORT, counts.windows)
    texts = (hold_out(both.target, tokens[:, :-1]) for tokens in windows)
    return {
        "counts": dataclasses.asdict(counts) | {"drafts": DRAFTS},
        "target": {
            "nats_per_token": round(nats, 4),
            "bytes_per_token": round(bytes_per_token, 4),
            "bits_per_byte": round(nats / math.log(2) / bytes_per_token, 4),
            "top1": round(top1, 4),
        },
        "teacher_forced_agreement": dataclasses.asdict(agreement(both.config, both.drafter, both.target, texts)),
        "first_round": first_rounds(both, folder, counts),
        "greedy": long_texts(both, folder, counts, 0.0),
        "sampled_0.7": long_texts(both, folder, counts, 0.7),
        "sampled_1.0": long_texts(both, folder, counts, 1.0),
    }


def first_rounds(both: Checkpoints, folder: Path, counts: Counts) -> dict[str, Any]:
    """The first greedy round after unseen prefixes: no text of the model's own, so no loops flatter it."""
    prompts, texts = held_out_prompts(folder, counts.prefixes, counts.prefix_tokens), Texts(0.0, 1)
    traces = _traces(both, prompts, texts)
    own = first_round(traces, DRAFTS)
    dense = first_round(_traces(replace(both, config=replace(both.config, head=None)), prompts, texts), DRAFTS)
    return {
        "rounds": own.rounds,
        "mean_accepted": round(own.mean_accepted, 4),
        "mean_accepted_dense": round(dense.mean_accepted, 4),
        "prompt_lookup": round(first_round([trace.by_lookup() for trace in traces], DRAFTS).mean_accepted, 4),
        "conditional_acceptance": [
            round(after / max(before, 1), 4) for before, after in pairwise((own.rounds, *own.accepted_at))
        ],
    }


def long_texts(both: Checkpoints, folder: Path, counts: Counts, temperature: float) -> dict[str, Any]:
    """All rounds of long texts: greedy (temperature 0), or sampled, where a draft is kept if it equals the draw."""
    prompts = held_out_prompts(folder, counts.prompts, counts.prompt_tokens)
    traces = _traces(both, prompts, Texts(temperature, counts.written_tokens))
    own, looked_up = free_running(traces, DRAFTS), free_running([trace.by_lookup() for trace in traces], DRAFTS)
    shares = [distinct_4grams(trace.text) for trace in traces if len(trace.text) > 3]
    return {
        "rounds": own.rounds,
        "mean_accepted": round(own.mean_accepted, 4),
        "histogram": histogram(own),
        "distinct_4grams": round(sum(shares) / max(len(shares), 1), 4),
        "prompt_lookup": {"mean_accepted": round(looked_up.mean_accepted, 4), "histogram": histogram(looked_up)},
    }


def histogram(tally: Tally) -> list[int]:
    """Rounds that accepted exactly 0, 1, .. drafts."""
    return [before - after for before, after in pairwise((tally.rounds, *tally.accepted_at, 0))]


def _traces(both: Checkpoints, prompts: Tensor, texts: Texts) -> Sequence[Trace]:
    return both.traces([Prompt("held out", tokens) for tokens in prompts.tolist()], texts, lambda _: None)


def held_out_prompts(folder: Path, count: int, length: int) -> Tensor:
    """Beginnings spread evenly over the held-out text, <bos> in front: int64 [count, length]."""
    batches = list(data.windows(data.read(folder, "held_out"), length, count))
    prompts = torch.cat(batches)[:, :length]
    prompts[:, 0] = data.BOS
    return prompts


def held_out_bytes_per_token(folder: Path) -> float:
    """Bytes of the held-out text per token, <bos> and <eos> counted as tokens, as the loss counts them."""
    tokens = data.read(folder, "held_out").tolist()
    text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(tokens, skip_special_tokens=True)
    return len(text.encode()) / len(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder with token arrays, target.pt and drafter.pt")
    options = parser.parse_args()
    torch.set_num_threads(2)
    print(json.dumps(measure(options.work), indent=2))


if __name__ == "__main__":
    main()
