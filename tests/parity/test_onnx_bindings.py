"""What onnxruntime is given to work on, and what it leaves alone: memory, and layers that own no KV."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import tiny

from paceline.backends.ort import OrtBackend
from paceline.bundle import Bundle
from paceline.kv_cache import KVCache
from paceline.signatures import CacheKind
from paceline.target import Target


def some_tokens(count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(0).integers(3, tiny.VOCABULARY, count)]


@pytest.fixture
def backend(tiny_bundle: Path) -> OrtBackend:
    return OrtBackend(Bundle.open(tiny_bundle), threads=1)


def new_cache(backend: OrtBackend, capacity: int = 512) -> KVCache:
    return KVCache(backend.manifest.caches, backend.manifest.window, capacity)


def test_kv_tensors_are_the_caches_own_memory(backend: OrtBackend) -> None:
    """Inputs and outputs of every target call, and the drafter's views, are addresses inside the one buffer."""
    cache = new_cache(backend)
    graphs = backend.bind(cache)
    target = Target(graphs, cache)
    target.prefill(some_tokens(40))
    target.verify(some_tokens(3))
    bound = {value.data_ptr() for value in graphs._verify_calls[4].io.get_outputs()}
    slots = cache.visible_slots(43)
    heads = [view for kind in CacheKind for view in cache.heads(kind, slots).values()]
    assert {view.ctypes.data for view in heads} <= bound
    assert len(bound) == len(heads) + 2  # logits and activations
    assert all(any(np.shares_memory(view, buffer) for buffer in cache.buffers.values()) for view in heads)
    for spec in cache.specs:
        view = cache.view(spec, spec.key, spec.kv_heads - 1)
        assert view.flags.c_contiguous
        assert np.shares_memory(view, cache.buffers[spec.key])
        assert view.shape[1] == (tiny.WINDOW if spec.kind is CacheKind.LOCAL else 40)


def test_a_step_touches_only_the_rows_it_needs(backend: OrtBackend) -> None:
    """With a cache of a million rows a round leaves nearly all of its pages untouched; any copy would touch them."""
    cache = new_cache(backend, capacity=1_000_000)
    graphs = backend.bind(cache)
    target = Target(graphs, cache)
    full_bytes = max(buffer.nbytes for buffer in cache.buffers.values())
    assert full_bytes > 100_000_000
    target.prefill(some_tokens(20))  # warm up what the session allocates once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verified = target.verify(some_tokens(4))
    target.commit(2)
    graphs.draft(5, verified.activations[1].copy())
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < full_bytes / 4


def test_prefill_skips_the_layers_that_own_no_kv(tiny_bundle: Path, tmp_path: Path) -> None:
    """The profiler sees the attention of the layers with KV in a prefill call, and of all layers in a verify call.

    The last layer with KV ends with its attention there, and only writes of rows lead to a result of it.
    """
    bundle = Bundle.open(tiny_bundle)
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    backend = OrtBackend(bundle, threads=1)
    backend.target = ort.InferenceSession(str(bundle.folder / "target.onnx"), options, providers=["CPUExecutionProvider"])
    cache = new_cache(backend)
    graphs = backend.bind(cache)
    graphs.prefill(np.array(some_tokens(5)))
    graphs.verify(np.array(some_tokens(2)), ())
    events = json.loads(Path(backend.target.end_profiling()).read_text())
    runs = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == "model_run")
    attention = [e["ts"] for e in events if e.get("args", {}).get("op_name") == "Softmax"]
    executed = [sum(start <= ts < end for ts in attention) for start, end in runs]
    assert executed == [len(backend.manifest.caches), backend.manifest.layers]
