"""The torch lowering against transformers, in float32, with every architectural feature on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor
from transformers import DynamicCache

from paceline_export.config import AttentionKind, DrafterConfig, TargetConfig, drafter_config, target_config
from paceline_export.lower.torch import TorchOps
from paceline_export.model.drafter import draft_choice, draft_state
from paceline_export.model.target import fill, finish_rows
from paceline_export.weights import Weight, Weights

TOLERANCE = 1e-5
TARGET_TABLE = Weight("target table", (), lambda: None)


@dataclass
class Pair:
    """The same random weights as transformers models and as our tensors."""

    target: Any
    assistant: Any
    target_config: TargetConfig
    drafter_config: DrafterConfig
    target_tensors: dict[str, Tensor]
    drafter_tensors: dict[str, Tensor]


def make(seed: int, clustered: bool = True, kv_heads: int = 1) -> Pair:
    text = tiny.text_fields(num_key_value_heads=kv_heads)
    assistant = tiny.drafter_fields(text, clustered)
    target_model, assistant_model = tiny.transformers_pair(text, assistant, seed)
    config = target_config(text, "target")
    tensors = dict(target_model.state_dict())
    return Pair(
        target_model,
        assistant_model,
        config,
        drafter_config(assistant, "drafter", config),
        tensors,
        dict(assistant_model.state_dict()) | {TARGET_TABLE.name: tensors["model.embed_tokens.weight"]},
    )


def handles(tensors: dict[str, Tensor]) -> Weights:
    return {name: Weight(name, tuple(t.shape), t.numpy) for name, t in tensors.items()}


def run_target(pair: Pair, tokens: Tensor, kv: dict[int, Any], start: int) -> tuple[Tensor, Tensor, TorchOps]:
    positions = torch.arange(start, start + tokens.shape[1])
    op = TorchOps(pair.target_tensors, positions, positions + 1, dict(kv))
    weights = handles(pair.target_tensors)
    return *finish_rows(op, pair.target_config, weights, fill(op, pair.target_config, weights, tokens)), op


def tokens_of(seed: int, count: int) -> Tensor:
    return torch.randint(3, tiny.VOCABULARY, (1, count), generator=torch.Generator().manual_seed(seed))


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kv_heads", [1, 2])
@torch.no_grad()
def test_target_equals_transformers_past_the_window(seed: int, kv_heads: int) -> None:
    pair, tokens = make(seed, kv_heads=kv_heads), tokens_of(seed, 3 * tiny.WINDOW)
    expected = pair.target(tokens, output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
    logits, activations, op = run_target(pair, tokens, {}, 0)
    assert worst(logits, expected.logits) <= TOLERANCE
    assert worst(activations, expected.hidden_states[-1]) <= TOLERANCE
    for kind in AttentionKind:
        shared = pair.target_config.last_own(kind)
        assert shared is not None
        for ours, theirs in zip(op.kv[shared.index], expected.shared_kv_states[kind.value], strict=True):
            assert worst(ours, theirs) <= TOLERANCE


@pytest.mark.parametrize("chunks", [[1] * 40, [40], [7, 9, 16, 8], [17, 3, 8, 8, 4]])
@torch.no_grad()
def test_prefill_in_chunks_and_verify_of_several_rows_equal_transformers(chunks: list[int]) -> None:
    """Chunk by chunk on both sides: other chunks mean other matrix shapes, and so another rounding."""
    pair, tokens = make(3), tokens_of(3, 40)
    cache = DynamicCache(config=pair.target.config)
    kv: dict[int, Any] = {}
    start = 0
    for count in chunks:
        chunk = tokens[:, start : start + count]
        expected = pair.target(chunk, cache=cache, output_hidden_states=True, use_cache=True)
        logits, activations, op = run_target(pair, chunk, kv, start)
        assert worst(logits, expected.logits) <= TOLERANCE
        assert worst(activations, expected.hidden_states[-1]) <= TOLERANCE
        kv, start = op.kv, start + count


@torch.no_grad()
def test_fill_alone_writes_the_same_rows() -> None:
    """Prefill runs no layer that shares KV, and must leave the same cache as a full pass."""
    pair, tokens = make(4), tokens_of(4, 30)
    _, _, full = run_target(pair, tokens, {}, 0)
    positions = torch.arange(30)
    op = TorchOps(pair.target_tensors, positions, positions + 1)
    fill(op, pair.target_config, handles(pair.target_tensors), tokens)
    assert sorted(op.kv) == sorted(full.kv) == [layer.index for layer in pair.target_config.own_layers]
    assert all(worst(a, b) == 0 for i in op.kv for a, b in zip(op.kv[i], full.kv[i], strict=True))


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("length", [5, tiny.WINDOW + 1, 3 * tiny.WINDOW])
@torch.no_grad()
def test_four_chained_draft_steps_equal_transformers(clustered: bool, seed: int, length: int) -> None:
    """Token, logits over the scored tokens and projected state, with transformers' one row too many in the window."""
    pair, tokens = make(seed, clustered), tokens_of(seed, length)
    expected = pair.target(tokens, output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
    _, activations, target_op = run_target(pair, tokens, {}, 0)
    position = torch.tensor([length])
    op = TorchOps(pair.drafter_tensors, position, position, target_op.kv, extra_window=1)
    weights = handles(pair.drafter_tensors)
    token, hidden = tokens_of(seed + 50, 1), activations[:, -1:]
    for _ in range(4):
        embedded = pair.target.model.embed_tokens(token)
        theirs = pair.assistant(
            inputs_embeds=torch.cat([embedded, hidden], -1),
            position_ids=position[None],
            shared_kv_states=expected.shared_kv_states,
            attention_mask=None,
            use_cache=False,
        )
        state, hidden = draft_state(op, pair.drafter_config, weights, TARGET_TABLE, token, hidden)
        choice = draft_choice(op, pair.drafter_config, weights, state)
        scored, logits = _scored(op, pair.drafter_config, weights, state)
        assert worst(hidden, theirs.last_hidden_state) <= TOLERANCE
        assert worst(logits[0, 0], theirs.logits[0, 0][scored[0, 0]]) <= TOLERANCE
        assert int(choice.token) == int(theirs.logits.argmax())
        assert float(choice.logit) == float(logits.max())
        assert abs(float(choice.logsumexp) - float(logits.logsumexp(-1))) <= TOLERANCE
        token = choice.token


def _scored(op: TorchOps, config: DrafterConfig, weights: Weights, state: Tensor) -> tuple[Tensor, Tensor]:
    table = weights["model.embed_tokens.weight"]
    if config.head is None:
        return torch.arange(config.vocab_size)[None, None], op.linear(state, table)
    centroids, ordering = weights["masked_embedding.centroids.weight"], weights["masked_embedding.token_ordering"]
    return op.clustered_logits(state, centroids, ordering, table, config.head)


@torch.no_grad()
def test_rows_beyond_the_committed_ones_are_invisible_to_the_drafter() -> None:
    """Strict rows: garbage written at and above n changes nothing, and the window is exactly `window` rows."""
    pair, n = make(7), 30
    tokens = tokens_of(7, n + 6)
    _, activations, target_op = run_target(pair, tokens, {}, 0)
    position, weights = torch.tensor([n]), handles(pair.drafter_tensors)

    def step(kv: dict[int, Any]) -> Tensor:
        op = TorchOps(pair.drafter_tensors, position, position, kv)
        hidden = activations[:, n - 1 : n]
        return draft_state(op, pair.drafter_config, weights, TARGET_TABLE, tokens[:, n : n + 1], hidden)[1]

    exact = step({i: (k[:, :, :n], v[:, :, :n]) for i, (k, v) in target_op.kv.items()})
    assert worst(step(target_op.kv), exact) <= 1e-6
    local = pair.target_config.last_own(AttentionKind.LOCAL)
    assert local is not None
    oldest = {i: (k.clone(), v.clone()) for i, (k, v) in target_op.kv.items()}
    for rows in oldest[local.index]:
        rows[:, :, : n - tiny.WINDOW] = 1e3
    assert worst(step(oldest), exact) <= 1e-6
