"""The TFLite files: what XNNPACK takes of them, what they share, and which memory they touch."""

from __future__ import annotations

import resource
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from ai_edge_litert import schema_py_generated as schema

from paceline.backends.litert.backend import LiteRtBackend
from paceline.backends.litert.delegation import Delegation, delegation
from paceline.backends.litert.model import Environment
from paceline.bundle import Bundle
from paceline.kv_cache import KVCache
from paceline.signatures import GROWTH_SLOTS, PREFILL, VERIFY, CacheKind
from paceline.target import Target
from paceline_export.bundle import export
from paceline_export.checkpoint import open_pair
from paceline_export.lower import tflite
from paceline_export.recipes import F32

# Lookups, writes of KV rows and integers; all that has weights or rows to multiply is XNNPACK's.
LEFT_TO_LITERT = {"CAST", "DYNAMIC_UPDATE_SLICE", "EMBEDDING_LOOKUP", "RESHAPE", "TOPK_V2", "GATHER", "ARG_MAX"}


@pytest.fixture(scope="module", params=["one kv head", "two kv heads", "dense head"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    kv_heads = 2 if request.param == "two kv heads" else 1
    return tiny.write_pair(folder, clustered=request.param != "dense head", num_key_value_heads=kv_heads)


@pytest.fixture(scope="module")
def bundle(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("bundle") / "bundle"
    export(*pair, out, lambda *_: None, recipe=F32)
    return Bundle.open(out)


@pytest.fixture(scope="module")
def backend(bundle: Bundle) -> LiteRtBackend:
    return LiteRtBackend(bundle, threads=1, weight_cache=False)


def new_target(backend: LiteRtBackend, capacity: int = 512) -> Target:
    cache = KVCache(backend.manifest.caches, backend.manifest.window, capacity)
    return Target(backend.bind(cache), cache)


def some_tokens(count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(0).integers(3, tiny.VOCABULARY, count)]


def ran(bundle: Bundle) -> dict[tuple[str, str], Delegation]:
    environment, graphs = Environment(), bundle.manifest.graphs["litert"]
    ways = [(part, name) for part, file in graphs.parts.items() for name in graphs.signatures[file]]
    return {(part, name): delegation(environment, bundle, part, name) for part, name in ways}


def test_no_matrix_product_falls_off_the_delegate(bundle: Bundle) -> None:
    signatures = ran(bundle)
    assert len(signatures) == 3 * len(VERIFY | PREFILL) + 1
    for (part, name), found in signatures.items():
        assert found.delegated_products == found.products, f"{part} {name}"
        assert not set(found.own) - LEFT_TO_LITERT, f"{part} {name}: {found}"
        if part in ("target", "drafter"):
            assert found.products > 10


def test_the_profiler_sees_every_matrix_product_run(bundle: Bundle) -> None:
    """The same count from the other side: what XNNPACK says that it ran."""
    environment = Environment()
    for part, name in (("target", "verify"), ("drafter", "draft")):
        found = delegation(environment, bundle, part, name)
        products = sum(count for operator, count in found.by_xnnpack.items() if "GEMM" in operator)
        assert products == found.products


def opened(file: Path) -> Any:
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(bytearray(file.read_bytes())))


def test_prefill_holds_only_the_layers_that_own_kv(bundle: Bundle) -> None:
    """And of the last of them only what its keys and values need."""
    model = opened(bundle.folder / tflite.TARGET)
    last = max(spec.layer for spec in bundle.manifest.caches)
    for graph in model.subgraphs:
        read = {graph.tensors[index].name.decode() for operator in graph.operators for index in operator.inputs if index >= 0}
        layers = {int(name.split(".")[2]) for name in read if name.startswith("model.layers.")}
        if graph.name.decode() in VERIFY.values():
            assert layers == set(range(bundle.manifest.layers))
        else:
            assert layers == set(range(last + 1))
            assert {name for name in read if name.startswith(f"model.layers.{last}.")} == {
                f"model.layers.{last}.{part}.weight"
                for part in ("input_layernorm", "self_attn.k_norm", "self_attn.k_proj", "self_attn.v_proj")
            }


def test_the_signatures_share_every_weight(bundle: Bundle, pair: tuple[Path, Path]) -> None:
    """The file holds each weight once, and nothing else of its size; the per-layer table is in a file of its own."""
    target, _ = open_pair(*pair)
    weights = [w for name, w in target.weights.items() if name != "model.embed_tokens_per_layer.weight"]
    model = opened(bundle.folder / tflite.TARGET)
    ends = [(buffer.offset, buffer.size) for buffer in model.buffers if buffer.offset]
    assert Counter(size for _, size in ends) == Counter(4 * prod(weight.shape) for weight in weights)
    assert all(offset % 64 == 0 for offset, _ in ends)
    assert not any(tensor.buffer == 0 for graph in model.subgraphs for tensor in graph.tensors if b"weight" in tensor.name)


def test_kv_tensors_are_the_caches_own_memory(backend: LiteRtBackend) -> None:
    """One buffer for all signatures and the drafter; a longer view begins where the shorter one does."""
    target = new_target(backend)
    cache, views = target.cache, target.graphs.views  # type: ignore[attr-defined]
    for slots in (GROWTH_SLOTS, 2 * GROWTH_SLOTS):
        buffers = views.at(slots)
        assert buffers is not views.at(slots)
        for spec in cache.specs:
            for tensor in (spec.key, spec.value):
                for head, name in enumerate(spec.head_names(tensor)):
                    view = buffers[name].array
                    assert view.ctypes.data == cache.buffers[tensor][:, head].ctypes.data
                    assert view.shape[2] == (cache.local_slots if spec.kind is CacheKind.LOCAL else slots)
                    assert views.at(slots)[name] is buffers[name]


@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_a_call_writes_its_rows_and_their_padding_and_nothing_else(backend: LiteRtBackend, count: int) -> None:
    target = new_target(backend)
    cache = target.cache
    target.prefill(some_tokens(30))
    for buffer in cache.buffers.values():
        buffer[:, :, 30:] = 7.0
    before = {name: buffer.copy() for name, buffer in cache.buffers.items()}
    target.verify(some_tokens(count))
    padded = min(rows for rows in VERIFY if rows >= count)
    for name, buffer in cache.buffers.items():
        changed = np.flatnonzero((buffer != before[name]).any(axis=(0, 1, 3)))
        assert list(changed) == list(range(30, 30 + padded))


def test_a_step_touches_only_the_rows_it_needs(backend: LiteRtBackend) -> None:
    """With a cache of a million rows a round leaves nearly all of its pages untouched; any copy would touch them."""
    target = new_target(backend, capacity=1_000_000)
    full_bytes = max(buffer.nbytes for buffer in target.cache.buffers.values())
    assert full_bytes > 100_000_000
    target.prefill(some_tokens(20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verified = target.verify(some_tokens(4))
    target.commit(2)
    target.graphs.draft(5, verified.activations[1].copy())
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < full_bytes / 4


@pytest.mark.parametrize(
    ("prompt", "calls"), [(1, [16]), (16, [16]), (17, [16, 16]), (112, 7 * [16]), (113, [128]), (128, [128])]
)
def test_a_prompt_is_padded_by_less_than_the_short_size(backend: LiteRtBackend, prompt: int, calls: list[int]) -> None:
    target = new_target(backend)
    made: list[int] = []
    real = target.graphs._call  # type: ignore[attr-defined]
    target.graphs._call = lambda rows: made.append(rows) or real(rows)  # type: ignore[attr-defined]
    target.prefill(some_tokens(prompt))
    assert made == calls
