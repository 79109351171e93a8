"""The ONNX graphs, run by onnxruntime through the runtime's own bindings, against the torch lowering."""

from __future__ import annotations

import json
import resource
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import tiny
from reference import Reference

from paceline.backends.ort import OrtBackend, OrtGraphs
from paceline.bundle import Bundle
from paceline.kv_cache import KVCache
from paceline.signatures import PREFILL_CHUNK, CacheKind, present
from paceline.target import Target
from paceline_export.bundle import export

TOLERANCE = 1e-4
VARIANTS = {"clustered": (True, 1), "dense": (False, 1), "two kv heads": (True, 2)}


@dataclass
class Exported:
    bundle: Bundle
    backend: OrtBackend
    reference: Reference

    def cache(self, capacity: int = 512) -> KVCache:
        manifest = self.backend.manifest
        return KVCache(manifest.caches, manifest.window, capacity)

    def target(self, cache: KVCache) -> tuple[Target, OrtGraphs]:
        graphs = self.backend.bind(cache)
        return Target(graphs, cache), graphs


@pytest.fixture(scope="module", params=list(VARIANTS))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    clustered, kv_heads = VARIANTS[request.param]
    folder: Path = tmp_path_factory.mktemp("variant")
    pair = tiny.write_pair(folder, 1, clustered, num_key_value_heads=kv_heads)
    export(*pair, folder / "bundle", lambda *_: None)
    bundle = Bundle.open(folder / "bundle")
    return Exported(bundle, OrtBackend(bundle, threads=1), Reference(*pair))


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, tiny.VOCABULARY, count)]


@pytest.mark.parametrize("prompt_length", [1, tiny.WINDOW - 1, tiny.WINDOW, PREFILL_CHUNK + tiny.WINDOW + 3, 300])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_verify_equals_the_torch_lowering(exported: Exported, prompt_length: int, rows: int) -> None:
    """Before, at and past the window, and after the local caches have moved their rows."""
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


def test_kv_tensors_are_the_caches_own_memory(exported: Exported) -> None:
    """Inputs and outputs of every target call, and the drafter's views, are addresses inside the one buffer."""
    cache = exported.cache()
    target, graphs = exported.target(cache)
    target.prefill(some_tokens(40))
    target.verify(some_tokens(3))
    names = [output.name for output in exported.backend.target.get_outputs()]
    values = graphs._verify_calls[3].io.get_outputs()
    addresses = dict(zip(names, [value.data_ptr() for value in values], strict=True))
    for name, buffer in cache.buffers.items():
        assert addresses[present(name)] == buffer.ctypes.data
    for spec in cache.specs:
        view = cache.view(spec, spec.key, spec.kv_heads - 1)
        assert view.flags.c_contiguous
        assert np.shares_memory(view, cache.buffers[spec.key])
        assert view.shape[1] == (tiny.WINDOW if spec.kind is CacheKind.LOCAL else 40)


def test_a_step_touches_only_the_rows_it_needs(exported: Exported) -> None:
    """With a cache of a million rows a round leaves nearly all of its pages untouched; any copy would touch them."""
    cache = exported.cache(capacity=1_000_000)
    target, graphs = exported.target(cache)
    full_bytes = max(buffer.nbytes for buffer in cache.buffers.values())
    assert full_bytes > 100_000_000
    target.prefill(some_tokens(20))  # warm up what the session allocates once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verified = target.verify(some_tokens(4))
    target.commit(2)
    graphs.draft(5, verified.activations[1].copy())
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < full_bytes / 4


def test_prefill_skips_the_layers_that_own_no_kv(exported: Exported, tmp_path: Path) -> None:
    """The profiler sees the attention of the layers with KV in a prefill call, and of all layers in a verify call."""
    bundle, config = exported.bundle, exported.reference.target.config
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    backend = OrtBackend(bundle, threads=1)
    backend.target = ort.InferenceSession(str(bundle.folder / "target.onnx"), options, providers=["CPUExecutionProvider"])
    cache = exported.cache()
    graphs = backend.bind(cache)
    graphs.prefill(np.array(some_tokens(5)))
    graphs.verify(np.array(some_tokens(2)))
    events = json.loads(Path(backend.target.end_profiling()).read_text())
    runs = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == "model_run")
    attention = [e["ts"] for e in events if e.get("args", {}).get("op_name") == "GroupQueryAttention"]
    executed = [sum(start <= ts < end for ts in attention) for start, end in runs]
    assert executed == [len(config.own_layers), len(config.layers)]
