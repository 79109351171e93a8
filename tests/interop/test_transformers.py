"""transformers loads the published small pair, and writes what paceline writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_pair import DRAFTER, PROMPTS, TARGET
from transformers import AutoTokenizer, Gemma4ForCausalLM
from transformers.models.gemma4_assistant import Gemma4AssistantForCausalLM

import paceline

NEW_TOKENS = 64


@pytest.fixture(scope="module")
def model(small_bundle: Path) -> paceline.Model:
    return paceline.load(small_bundle, threads=1)


@pytest.fixture(scope="module")
def theirs() -> tuple[Gemma4ForCausalLM, Gemma4AssistantForCausalLM]:
    options = {"dtype": torch.float32, "attn_implementation": "eager", "output_loading_info": True}
    loaded = []
    for kind, folder in ((Gemma4ForCausalLM, TARGET), (Gemma4AssistantForCausalLM, DRAFTER)):
        instance, info = kind.from_pretrained(folder, **options)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        loaded.append(instance.eval())
    return loaded[0], loaded[1]


@pytest.mark.parametrize("prompt", PROMPTS[:6])
def test_greedy_text_is_the_same(
    model: paceline.Model, theirs: tuple[Gemma4ForCausalLM, Gemma4AssistantForCausalLM], prompt: str
) -> None:
    """Plain and drafted here, plain and assisted there: four ways to the same tokens."""
    target, assistant = theirs
    tokens = AutoTokenizer.from_pretrained(TARGET)(prompt, return_tensors="pt").input_ids
    assert tokens[0].tolist() == model.encode(prompt)
    runs = [[piece.token for piece in model.generate(prompt, max_new_tokens=NEW_TOKENS, draft_length=k)] for k in (0, 3)]
    for helper in (None, assistant):
        out = target.generate(tokens, max_new_tokens=NEW_TOKENS, do_sample=False, assistant_model=helper)
        runs.append(out[0, tokens.shape[1] :].tolist())
    assert all(run == runs[0] for run in runs)
    assert len(runs[0]) == NEW_TOKENS or runs[0][-1] in model.manifest.stop_ids


def test_the_drafter_is_trained_for_this_target(model: paceline.Model) -> None:
    """Far below what was measured, far above what a wrong wiring gives (about 0.1 of 3)."""
    rounds = accepted = 0
    for prompt in PROMPTS:
        *_, last = model.generate(prompt, max_new_tokens=NEW_TOKENS, draft_length=3)
        assert last.stats is not None
        rounds, accepted = rounds + last.stats.rounds, accepted + last.stats.accepted
    assert accepted / rounds > 1.0


def test_the_weights_are_small() -> None:
    assert sum((folder / "model.safetensors").stat().st_size for folder in (TARGET, DRAFTER)) <= 16_000_000
