"""Honest numbers of a trained pair: on the rounded weights that are published, on text that neither has seen.

Run alone: `python models/recipe/measure.py --work /tmp/pair` prints what measurements.json holds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import data
import pair
import torch
import train_target
from replay import Propose, Text, lookup, mean_distinct_4grams, replay, texts, write
from rounds import Rounds, observe
from tokenizers import Tokenizer
from torch import Tensor
from train_drafter import agreement

DRAFTS = 3  # K
BATCH = 8  # texts at a time, to bound memory


@dataclass(frozen=True)
class Counts:
    """How much is measured; the defaults take about four minutes on two cores."""

    windows: int | None = None  # of 256 held-out tokens; None: all
    prefixes: int = 320  # for the first round after a prefix
    prefix_tokens: int = 120
    prompts: int = 24  # for long texts
    prompt_tokens: int = 96
    written_tokens: int = 96


@dataclass(frozen=True)
class Pair:
    """Rounded tensors of both models."""

    target: dict[str, Tensor]
    drafter: dict[str, Tensor]


@torch.no_grad()
def measure(folder: Path, counts: Counts = Counts()) -> dict[str, Any]:
    """Measures target.pt and drafter.pt of the work folder; the result is what measurements.json holds."""
    both = Pair(*(pair.rounded(torch.load(folder / f"{name}.pt")) for name in ("target", "drafter")))
    nats, top1 = train_target.held_out(both.target, folder, counts.windows)
    bytes_per_token = held_out_bytes_per_token(folder)
    return {
        "counts": dataclasses.asdict(counts) | {"drafts": DRAFTS},
        "target": {
            "nats_per_token": round(nats, 4),
            "bytes_per_token": round(bytes_per_token, 4),
            "bits_per_byte": round(nats / math.log(2) / bytes_per_token, 4),
            "top1": round(top1, 4),
        },
        "teacher_forced_agreement": dataclasses.asdict(agreement(both.drafter, both.target, folder, counts.windows)),
        "first_round": first_round(both, folder, counts),
        "greedy": long_texts(both, folder, counts, 0.0),
        "sampled_0.7": long_texts(both, folder, counts, 0.7),
        "sampled_1.0": long_texts(both, folder, counts, 1.0),
    }


def first_round(both: Pair, folder: Path, counts: Counts) -> dict[str, Any]:
    """The first greedy round after unseen prefixes: no text of the model's own, so no loops flatter it."""
    prefixes = held_out_prompts(folder, counts.prefixes, counts.prefix_tokens)
    start = torch.tensor([counts.prefix_tokens])
    reached = torch.zeros(2, DRAFTS + 1)  # clustered, dense; rounds that accepted at least 0, 1, .. K drafts
    written: list[Text] = []
    for some in prefixes.split(4 * BATCH):
        tokens = write(both.target, some, 1 + DRAFTS, temperature=0)
        written += [Text(row, counts.prefix_tokens, counts.prefix_tokens + 1) for row in tokens.tolist()]
        rounds = Rounds(both.drafter, observe(both.target, tokens), start)
        for row, head in enumerate((pair.DRAFTER.head, None)):
            agrees = rounds.drafts(DRAFTS, head)[:, 0] == tokens[:, counts.prefix_tokens + 1 :]
            kept = agrees.int().cumprod(-1).sum(0)
            reached[row] += torch.cat([torch.tensor([len(some)]), kept])
    clustered, dense = reached.tolist()
    return {
        "rounds": len(prefixes),
        "mean_accepted": round(sum(clustered[1:]) / len(prefixes), 4),
        "mean_accepted_dense": round(sum(dense[1:]) / len(prefixes), 4),
        "prompt_lookup": round(replay(written, [lookup] * len(written), DRAFTS).mean_accepted, 4),
        "conditional_acceptance": [round(after / max(before, 1), 4) for before, after in pairwise(clustered)],
    }


def long_texts(both: Pair, folder: Path, counts: Counts, temperature: float) -> dict[str, Any]:
    """All rounds of long texts: greedy (temperature 0), or sampled, where a draft is kept if it equals the draw."""
    prompts = held_out_prompts(folder, counts.prompts, counts.prompt_tokens)
    tokens = write(both.target, prompts, counts.written_tokens + DRAFTS, temperature)
    written = texts(tokens, counts.prompt_tokens, DRAFTS)
    starts = torch.arange(counts.prompt_tokens, tokens.shape[1] - DRAFTS)
    proposers = [
        recorded(counts.prompt_tokens, row)
        for some in tokens.split(BATCH)
        for row in Rounds(both.drafter, observe(both.target, some), starts).drafts(DRAFTS, pair.DRAFTER.head).tolist()
    ]
    with_drafter = replay(written, proposers, DRAFTS)
    with_lookup = replay(written, [lookup] * len(written), DRAFTS)
    return {
        "rounds": sum(with_drafter.histogram),
        "mean_accepted": round(with_drafter.mean_accepted, 4),
        "histogram": with_drafter.histogram,
        "distinct_4grams": round(mean_distinct_4grams(written), 4),
        "prompt_lookup": {"mean_accepted": round(with_lookup.mean_accepted, 4), "histogram": with_lookup.histogram},
    }


def recorded(first: int, drafts: list[list[int]]) -> Propose:
    """A proposer that repeats what was drafted at once for all rounds: row i for the round that starts at first + i."""
    return lambda known, count: drafts[len(known) - 1 - first][:count]


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
