"""Traces of two checkpoints, by the torch lowering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from paceline.errors import InputError
from paceline.text import TOKENIZER_FILE, load_tokenizer
from paceline_export.checkpoint import open_pair, stop_ids
from paceline_export.config import DrafterConfig
from paceline_export.distill.memory import device_of, freeze, needs
from paceline_export.distill.observed import FrozenTarget
from paceline_export.distill.rounded import as_stored
from paceline_export.distill.rounds import Rounds
from paceline_export.distill.text import tokenise
from paceline_export.distill.writing import BATCH, write
from paceline_export.evaluate.replay import MOST_DRAFTS, Trace, cut
from paceline_export.evaluate.traces import Prompt, Tell, Texts
from paceline_export.lower.torch import load
from paceline_export.recipes import Recipe

EVALUATED_TOKENS = 1024  # of a batch, for the estimate of memory


@dataclass(frozen=True)
class Checkpoints:
    """A pair in memory; a source of traces, see `Source`."""

    target: FrozenTarget
    config: DrafterConfig
    drafter: Mapping[str, Tensor]
    tokenizer: Tokenizer
    stops: tuple[int, ...]

    @classmethod
    def open(cls, target_folder: Path, drafter_folder: Path, recipe: Recipe, device: str) -> Checkpoints:
        """Reads a pair, its weights rounded by a recipe.

        Raises:
            InputError: a checkpoint is refused, or memory will not do.
        """
        target, drafter = open_pair(target_folder, drafter_folder)
        if not (target_folder / TOKENIZER_FILE).is_file():
            raise InputError(f"{target_folder / TOKENIZER_FILE} is missing; download the target's tokenizer, too.")
        kept = needs(target, drafter.config, EVALUATED_TOKENS, device_of(device)).chosen()
        frozen = freeze(target, recipe.target(target.weights), kept, device)
        with torch.no_grad():
            tensors = {name: tensor.to(device) for name, tensor in load(drafter.weights).items()}
            tensors = as_stored(tensors, recipe.drafter(drafter.weights))
        return cls(frozen, drafter.config, tensors, load_tokenizer(target_folder), stop_ids(target))

    def encode(self, prompt: str) -> list[int]:
        """See `Source`."""
        (ids,) = tokenise(self.tokenizer, [prompt], self.target.config)
        return ids[: len(ids) - len(self.target.config.eos_ids[:1])]

    @torch.no_grad()
    def traces(self, prompts: Sequence[Prompt], texts: Texts, tell: Tell) -> list[Trace]:
        """See `Source`."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index].tokens))  # so that little is filled up
        found: dict[int, Trace] = {}
        for begin in range(0, len(order), BATCH):
            some = order[begin : begin + BATCH]
            ids = [prompts[index].tokens for index in some]
            seeds = [texts.seed(index) for index in some]
            written = write(self.target, ids, texts.new_tokens + MOST_DRAFTS, texts.temperature, seeds)
            starts = torch.arange(written.prompt, written.prompt + texts.new_tokens, device=self.target.device)
            drafts = Rounds(self.config, self.drafter, self.target, written.observed, starts).drafts(MOST_DRAFTS).tolist()
            for index, tokens, own in zip(some, written.texts(), drafts, strict=True):
                prompt = prompts[index]
                found[index] = cut(prompt.kind, tokens, len(prompt.tokens), texts.new_tokens, own, self.stops)
            tell(len(some))
        return [found[index] for index in range(len(prompts))]
