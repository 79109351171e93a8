"""The graphs of both formats, run through the runtime's own bindings, against the torch lowering."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiny
from reference import Reference

from paceline.backends import BACKENDS, open_backend
from paceline.backends.base import Backend, Graphs
from paceline.bundle import Bundle
from paceline.kv_cache import KVCache
from paceline.signatures import GROWTH_SLOTS, PREFILL_CHUNK, CacheKind
from paceline.target import Target
from paceline_export.bundle import FORMATS, export
from paceline_export.recipes import F32

TOLERANCE = 1e-4
# Clustered head or not, kv heads, further changes to the target's config.
VARIANTS: dict[str, tuple[bool, int, dict[str, object]]] = {
    "clustered": (True, 1, {}),
    "dense": (False, 1, {}),
    "two kv heads": (True, 2, {}),
    "no per-layer embedding": (True, 1, {"hidden_size_per_layer_input": 0}),
}


@dataclass
class Exported:
    bundle: Bundle
    backend: Backend
    reference: Reference

    def cache(self, capacity: int = 512) -> KVCache:
        manifest = self.bundle.manifest
        return KVCache(manifest.caches, manifest.window, capacity)

    def target(self, cache: KVCache) -> tuple[Target, Graphs]:
        graphs = self.backend.bind(cache)
        return Target(graphs, cache), graphs


@pytest.fixture(scope="module", params=list(VARIANTS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Reference]:
    clustered, kv_heads, changes = VARIANTS[request.param]
    folder: Path = tmp_path_factory.mktemp("variant")
    checkpoints = tiny.write_pair(folder, 1, clustered, num_key_value_heads=kv_heads, **changes)
    export(*checkpoints, folder / "bundle", lambda *_: None, tuple(FORMATS), F32)
    return Bundle.open(folder / "bundle"), Reference(*checkpoints)


@pytest.fixture(scope="module", params=BACKENDS)
def exported(request: pytest.FixtureRequest, pair: tuple[Bundle, Reference]) -> Exported:
    return Exported(pair[0], open_backend(pair[0], request.param, threads=1, weight_cache=False), pair[1])


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, tiny.VOCABULARY, count)]


@pytest.mark.parametrize(
    "prompt_length", [1, tiny.WINDOW - 1, tiny.WINDOW, PREFILL_CHUNK + tiny.WINDOW + 3, GROWTH_SLOTS - 3, 300]
)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8])
def test_verify_equals_the_torch_lowering(exported: Exported, prompt_length: int, rows: int) -> None:
    """Before, at and past the window, after the local caches have moved their rows, where full ones grow, and padded."""
    tokens = some_tokens(prompt_length + rows)
    target, _ = exported.target(exported.cache())
    target.prefill(tokens[:prompt_length])
    verified = target.verify(tokens[prompt_length:])
    expected = exported.reference.run(tokens)
    assert np.abs(verified.logits - expected.logits[prompt_length:]).max() <= TOLERANCE
    assert np.abs(verified.activations - expected.activations[0, prompt_length:].numpy()).max() <= TOLERANCE
    for spec in target.cache.specs:
        start = target.cache.local_start if spec.kind is CacheKind.LOCAL else 0
        for name, rows_wanted in zip((spec.key, spec.value), expected.kv[spec.layer], strict=True):
            held = target.cache.buffers[name][:, :, : len(tokens) - start]
            assert np.abs(held - rows_wanted[:, :, start:].numpy()).max() <= TOLERANCE


@pytest.mark.parametrize("length", [2, tiny.WINDOW, tiny.WINDOW + 1, PREFILL_CHUNK + tiny.WINDOW + 9])
def test_draft_steps_equal_the_torch_lowering(exported: Exported, length: int) -> None:
    """Four steps of a round; each is given the reference's state, so that only one step's error is measured."""
    tokens = some_tokens(length + 1, seed=length)
    target, graphs = exported.target(exported.cache())
    target.prefill(tokens[:length])
    past = exported.reference.run(tokens[:length])
    token, hidden = tokens[length], past.activations[0, -1]
    for _ in range(4):
        step = graphs.draft(token, hidden.numpy())
        choice, hidden = exported.reference.draft(past, length, token, hidden)
        token = int(choice.token)
        assert step.token == token
        assert abs(step.logit - float(choice.logit)) <= TOLERANCE
        assert abs(step.logsumexp - float(choice.logsumexp)) <= TOLERANCE
        assert np.abs(step.state - hidden.numpy()).max() <= TOLERANCE
        ours, theirs = np.argsort(step.scored), np.argsort(choice.scored.flatten().numpy())
        assert np.array_equal(step.scored[ours], choice.scored.flatten().numpy()[theirs])
        assert np.abs(step.logits[ours] - choice.logits.flatten().numpy()[theirs]).max() <= TOLERANCE


def test_a_later_round_sees_the_rows_committed_since(exported: Exported) -> None:
    """After a round in which two of four rows were kept, the drafter's views and position have moved on by two."""
    tokens = some_tokens(25, seed=5)
    target, graphs = exported.target(exported.cache())
    target.prefill(tokens[:20])
    graphs.draft(tokens[20], np.zeros(tiny.WIDTH, np.float32))
    target.verify([*tokens[20:22], 7, 8])
    target.commit(2)
    past = exported.reference.run(tokens[:22])
    step = graphs.draft(tokens[22], past.activations[0, -1].numpy())
    choice, hidden = exported.reference.draft(past, 22, tokens[22], past.activations[0, -1])
    assert step.token == int(choice.token)
    assert np.abs(step.state - hidden.numpy()).max() <= TOLERANCE
