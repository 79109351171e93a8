"""Traces of a bundle: its own graphs decode and draft, as the runtime has them do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.model import Model
from paceline_export.distill.draws import Draws
from paceline_export.evaluate.replay import MOST_DRAFTS, Trace, cut
from paceline_export.evaluate.traces import Prompt, Tell, Texts


@dataclass(frozen=True)
class LoadedBundle:
    """A loaded bundle; a source of traces, see `Source`.

    Every token is decoded alone, and at every place of the text the drafter drafts. A verified row equals a decoded one in
    every bit, so the rounds are those that drafting would have made.
    """

    model: Model

    def encode(self, prompt: str) -> list[int]:
        """See `Source`."""
        return self.model.encode(prompt)

    def traces(self, prompts: Sequence[Prompt], texts: Texts, tell: Tell) -> list[Trace]:
        """See `Source`. Raises CapacityError where a prompt and its text do not fit."""
        found = []
        for index, prompt in enumerate(prompts):
            tokens, drafts = self._run(prompt.tokens, texts, texts.seed(index))
            found.append(cut(prompt.kind, tokens, len(prompt.tokens), texts.new_tokens, drafts, self.model.manifest.stop_ids))
            tell(1)
        return found

    def _run(self, prompt: Sequence[int], texts: Texts, seed: int) -> tuple[list[int], list[list[int]]]:
        stops, draws = set(self.model.manifest.stop_ids), Draws(texts.temperature, seed)
        tokens, drafts, most = list(prompt), list[list[int]](), len(prompt) + texts.new_tokens + MOST_DRAFTS
        with self.model.sequence() as (target, drafter):
            target.cache.require_room(most)
            target.prefill(prompt[:-1])
            while len(tokens) < most:
                verified = target.verify(tokens[-1:])
                hidden: NDArray[np.float32] = verified.activations[0].copy()
                tokens.append(draws.token(verified.logits[0]))
                target.commit(1)
                if tokens[-1] in stops:
                    break
                if len(drafts) < texts.new_tokens:
                    drafts.append(drafter.chain(tokens[-1], hidden, MOST_DRAFTS))
        return tokens, drafts
