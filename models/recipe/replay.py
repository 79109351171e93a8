"""Exact draft-verify rounds: the target writes a text, then the rounds that would have written it are replayed.

A draft is kept while it equals what the target chose, greedily or by its own draw, so drafts never change the text
and it can be written first. Only the number of rounds depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pair
import torch
from torch import Tensor

from paceline.stats import distinct_4grams
from paceline_export.lower.torch import KV, TorchOps
from paceline_export.model.target import fill, finish_rows

STOPS = (1, 5)  # <eos> and <turn|>, as in the target's generation_config.json
LOOKUP_SUFFIXES = (3, 2)  # lengths that prompt lookup tries, longest first
# The tokens so far, the pending one included, and how many drafts are wanted -> at most as many drafts.
Propose = Callable[[list[int], int], list[int]]


@dataclass(frozen=True)
class Text:
    """One prompt and what the target wrote after it."""

    tokens: list[int]
    prompt: int  # length of the prompt
    end: int  # no round starts at or behind this index


@dataclass(frozen=True)
class Tally:
    """How many rounds accepted 0, 1, .. K drafts."""

    histogram: list[int]

    @property
    def mean_accepted(self) -> float:
        return sum(a * count for a, count in enumerate(self.histogram)) / max(sum(self.histogram), 1)


@torch.no_grad()
def write(target: dict[str, Tensor], prompts: Tensor, count: int, temperature: float, seed: int = 0) -> Tensor:
    """Appends `count` tokens to prompts [B, P]; temperature 0 is greedy. Writing goes on after a stop token."""
    generator = torch.Generator().manual_seed(seed)
    weights, kv = pair.handles(target), dict[int, KV]()
    tokens = rows = prompts
    for _ in range(count):
        positions = torch.arange(tokens.shape[1] - rows.shape[1], tokens.shape[1])
        op = TorchOps(target, positions, positions + 1, kv)
        logits, _ = finish_rows(op, pair.TARGET, weights, fill(op, pair.TARGET, weights, rows))
        if temperature == 0:
            rows = logits[:, -1:].argmax(-1)
        else:
            rows = torch.multinomial((logits[:, -1] / temperature).softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, rows], 1)
    return tokens


def texts(tokens: Tensor, prompt: int, drafts: int) -> list[Text]:
    """Cuts written tokens [B, P + count] at their first stop token.

    Rounds start only where all their drafts can be judged; drafts behind the stop token count as refused.
    """
    last = tokens.shape[1] - drafts
    found = []
    for row in tokens.tolist():
        stop = next((i for i in range(prompt, len(row)) if row[i] in STOPS), len(row))
        found.append(Text(row[: stop + 1], prompt, min(stop, last)))
    return found


def replay(written: list[Text], proposers: list[Propose], drafts: int) -> Tally:
    """Runs the rounds of every text, each with its own proposer."""
    histogram = [0] * (drafts + 1)
    for text, propose in zip(written, proposers, strict=True):
        n = text.prompt  # token n is pending: the prompt's last row has chosen the first one
        while n < text.end:
            proposal, truth = propose(text.tokens[: n + 1], drafts), text.tokens[n + 1 :]
            agrees = [draft == wanted for draft, wanted in zip(proposal, truth, strict=False)]
            accepted = (*agrees, False).index(False)
            histogram[accepted] += 1
            n += accepted + 1
    return Tally(histogram)


def lookup(known: list[int], count: int) -> list[int]:
    """Prompt lookup, the baseline without a drafter: what followed the newest tokens when they last occurred.

    Of several occurrences, the newest that `count` known tokens follow; if there is none, the oldest, which most
    tokens follow.
    """
    for size in LOOKUP_SUFFIXES:
        ends = [i for i in range(size, len(known)) if known[i - size : i] == known[-size:]]
        if ends:
            begin = next((i for i in reversed(ends) if i + count <= len(known)), ends[0])
            return known[begin : begin + count]
    return []


def mean_distinct_4grams(written: list[Text]) -> float:
    """Share of different 4-grams among those written, mean over the texts that have any."""
    own = [text.tokens[text.prompt :] for text in written]
    shares = [distinct_4grams(tokens) for tokens in own if len(tokens) > 3]
    return sum(shares) / max(len(shares), 1)
