"""Text that the target writes after prompts: to learn from, and to replay draft-verify rounds on.

Prompts of different lengths share a batch: shorter ones are filled up in front, and nothing sees these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_export.distill.draws import Draws
from paceline_export.distill.observed import FrozenTarget, Observed
from paceline_export.lower.held import HeldOps
from paceline_export.lower.torch import KV
from paceline_export.model.target import activate_rows, fill

BATCH = 16  # prompts at a time


@dataclass(frozen=True)
class Written:
    """A batch of texts.

    Attributes:
        observed: tokens [B, P + count], with activations of every row from P - 1 on (those before are zero) but the last.
        prompt: P, where the first written token is.
    """

    observed: Observed
    prompt: int

    def texts(self) -> list[list[int]]:
        """Each with its prompt, and without what filled it up."""
        first = self.observed.first
        assert first is not None
        return [row[start:] for row, start in zip(self.observed.tokens.tolist(), first.tolist(), strict=True)]


@torch.no_grad()
def write(
    target: FrozenTarget,
    prompts: Sequence[Sequence[int]],
    count: int,
    temperature: float,
    seeds: Sequence[int],
) -> Written:
    """Writes `count` tokens after each of some prompts, also behind stop tokens.

    Args:
        prompts: tokens, at least one each.
        temperature: 0 is greedy.
        seeds: one for each prompt, so that a text does not depend on its batch.
    """
    longest = max(map(len, prompts))
    first = torch.tensor([longest - len(prompt) for prompt in prompts], device=target.device)
    rows = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=target.device)
    draws = [Draws(temperature, seed) for seed in seeds]
    tokens, kv = rows, dict[int, KV]()
    activations = [torch.zeros(len(prompts), longest - 1, target.config.hidden_size, device=target.device)]
    if longest > 1:
        fill(_ops(target, 0, longest - 1, first, kv), target.config, target.weights, rows[:, :-1])
    rows = rows[:, -1:]
    for length in range(longest, longest + count):
        op = _ops(target, length - 1, length, first, kv)
        activations.append(activate_rows(op, target.config, target.weights, fill(op, target.config, target.weights, rows)))
        logits = target.logits(activations[-1])[:, 0].cpu().numpy()
        chosen = [draw.token(row) for draw, row in zip(draws, logits, strict=True)]
        rows = torch.tensor(chosen, device=target.device)[:, None]
        tokens = torch.cat([tokens, rows], 1)
    return Written(Observed(tokens, torch.cat(activations, 1), kv, first), longest)


def _ops(target: FrozenTarget, begin: int, end: int, first: Tensor, kv: dict[int, KV]) -> HeldOps:
    rows = torch.arange(begin, end, device=target.device)
    return target.ops((rows - first[:, None]).clamp(min=0), rows + 1, kv, first)


def written_documents(
    target: FrozenTarget,
    prompts: Sequence[Sequence[int]],
    count: int,
    temperatures: Sequence[float],
    stops: Collection[int],
    tell: Callable[[int], None] = lambda _: None,
) -> list[list[int]]:
    """What the target writes after each prompt at each temperature, up to its stop tokens, prompts included.

    Args:
        tell: called with the number of texts so far, after each batch.
    """
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))  # so that little is filled up
    found = list[list[int]]()
    for sample, temperature in enumerate(temperatures):
        for begin in range(0, len(order), BATCH):
            some = order[begin : begin + BATCH]
            seeds = [1_000_003 * sample + index for index in some]
            written = write(target, [prompts[index] for index in some], count, temperature, seeds)
            found += [_until_stop(text, len(prompts[i]), stops) for i, text in zip(some, written.texts(), strict=True)]
            tell(len(found))
    return found


def _until_stop(text: list[int], prompt: int, stops: Collection[int]) -> list[int]:
    end = next((i for i in range(prompt, len(text)) if text[i] in stops), len(text) - 1)
    return text[: end + 1]
