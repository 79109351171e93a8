"""What is derived from a config.json, checked against the published files and against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from full_size import fields, published_shapes
from hypothesis import given
from hypothesis import strategies as st
from transformers import Gemma4Config, Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding
from transformers.models.gemma4_assistant import Gemma4AssistantConfig

from paceline.errors import InputError
from paceline_export.config import (
    AttentionKind,
    ClusteredHead,
    DrafterConfig,
    Rope,
    TargetConfig,
    drafter_config,
    target_config,
)
from paceline_export.lower.caches import cache_specs
from paceline_export.lower.torch import TorchOps
from paceline_export.model.drafter import draft_choice, draft_state, drafter_shapes
from paceline_export.model.target import fill, finish_rows, target_shapes
from paceline_export.weights import Shapes, Weight

DATA = Path(__file__).parents[1] / "data"
LOCAL, FULL = AttentionKind.LOCAL, AttentionKind.FULL
PREFIX = "model.language_model."


def published(name: str) -> dict[str, Any]:
    """A config.json as Google published it."""
    return json.loads((DATA / f"{name}.json").read_text())


def published_tensors(name: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Tensor -> (shape, remark) of a published checkpoint."""
    rows = [line.split("\t") for line in (DATA / f"{name}.tsv").read_text().splitlines()]
    return {name: (tuple(json.loads(shape)), remark) for name, shape, remark in rows}


def pair_of(target: dict[str, Any], drafter: dict[str, Any]) -> tuple[TargetConfig, DrafterConfig]:
    config = target_config(target, "target")
    return config, drafter_config(drafter, "drafter", config)


@pytest.fixture(scope="module")
def e2b() -> tuple[TargetConfig, DrafterConfig]:
    return pair_of(*fields("e2b"))


def test_e2b_layers_are_as_published(e2b: tuple[TargetConfig, DrafterConfig]) -> None:
    target, _ = e2b
    full = [4, 9, 14, 19, 24, 29, 34]
    assert [layer.index for layer in target.layers if layer.kind is FULL] == full
    assert [layer.index for layer in target.own_layers] == list(range(15))
    assert [layer.index for layer in target.shared_layers] == list(range(15, 35))
    assert [layer.kv_source for layer in target.layers] == [*range(15), *(14 if i in full else 13 for i in range(15, 35))]
    assert [layer.intermediate for layer in target.layers] == [6144] * 15 + [12288] * 20
    assert [layer.head_dim for layer in target.layers] == [512 if i in full else 256 for i in range(35)]
    assert {(layer.heads, layer.kv_heads) for layer in target.layers} == {(8, 1)}


def test_e2b_facts_beside_the_layers_are_as_published(e2b: tuple[TargetConfig, DrafterConfig]) -> None:
    target, _ = e2b
    assert (target.vocab_size, target.hidden_size, target.window, target.norm_epsilon) == (262144, 1536, 512, 1e-6)
    assert (target.per_layer_size, target.softcap, target.max_positions) == (256, 30.0, 131072)
    assert (target.bos_id, target.eos_ids, target.multimodal) == (2, (1, 106), True)


def test_e2b_drafter_reads_the_last_own_layer_of_each_kind(e2b: tuple[TargetConfig, DrafterConfig]) -> None:
    _, drafter = e2b
    assert [(layer.kind, layer.kv_source, layer.head_dim) for layer in drafter.layers] == [(LOCAL, 13, 256)] * 3 + [
        (FULL, 14, 512)
    ]
    assert not any(layer.owns_kv for layer in drafter.layers)
    assert {(layer.heads, layer.kv_heads, layer.intermediate) for layer in drafter.layers} == {(4, 1, 2048)}
    assert (drafter.hidden_size, drafter.target_hidden_size, drafter.head) == (256, 1536, ClusteredHead(2048, 32))


def test_frequencies_are_those_of_transformers(e2b: tuple[TargetConfig, DrafterConfig]) -> None:
    """Full layers rotate 64 of 256 pairs, and the exponent still divides by the whole head."""
    target, _ = e2b
    module = Gemma4TextRotaryEmbedding(Gemma4Config(**published("e2b_config")).text_config)
    for kind, rotated in ((FULL, 64), (LOCAL, 128)):
        ours = target.ropes[kind].inverse_frequencies()
        theirs = getattr(module, f"{kind.value}_inv_freq").numpy()
        assert (len(ours), np.count_nonzero(ours)) == (target.ropes[kind].head_dim // 2, rotated)
        assert not ours[rotated:].any()
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@given(pairs=st.integers(1, 64), share=st.sampled_from([0.25, 0.5, 1.0]))
def test_only_the_rotated_share_of_a_head_has_a_frequency(pairs: int, share: float) -> None:
    frequencies = Rope(2 * pairs, 1e4, share).inverse_frequencies()
    assert frequencies.shape == (pairs,)
    assert np.count_nonzero(frequencies) == int(share * 2 * pairs // 2)
    assert np.all(np.diff(frequencies) <= 0)


def test_target_tensors_are_those_of_the_checkpoint(e2b: tuple[TargetConfig, DrafterConfig]) -> None:
    """Name by name and shape by shape; the 60 that the checkpoint has besides are K and V of layers that share."""
    target, _ = e2b
    stored = published_tensors("e2b_text_tensors")
    used = {name: shape for name, (shape, remark) in stored.items() if remark == "used"}
    assert {name.replace("model.", PREFIX, 1): shape for name, shape in target_shapes(target).items()} == used
    ignored = {
        f"{PREFIX}layers.{i}.self_attn.{x}" for i in range(15, 35) for x in ("k_proj.weight", "v_proj.weight", "k_norm.weight")
    }
    assert set(stored) - set(used) == ignored
    assert published_shapes(target) == {name: shape for name, (shape, _) in stored.items()}
    assert (len(used), len(ignored)) == (540, 60)


def test_drafter_tensors_are_those_of_the_checkpoint(e2b: tuple[TargetConfig, DrafterConfig]) -> None:
    stored = published_tensors("e2b_assistant_tensors")
    assert drafter_shapes(e2b[1]) == {name: shape for name, (shape, _) in stored.items()}


@pytest.mark.parametrize(("size", "rows"), [("e2b", 1), ("e2b", 8), ("e4b", 2)])
def test_the_whole_pair_builds_at_full_size(size: str, rows: int, e2b: tuple[TargetConfig, DrafterConfig]) -> None:
    """On the meta device: every product fits, and what comes out has the shapes that the signatures state."""
    target, drafter = e2b if size == "e2b" else pair_of(*fields("e4b"))
    with torch.device("meta"):
        positions = torch.arange(rows)
        tokens = torch.zeros(1, rows, dtype=torch.int64)
        op = TorchOps(meta(target_shapes(target)), positions, positions + 1)
        logits, activations = finish_rows(
            op, target, handles(target_shapes(target)), fill(op, target, handles(target_shapes(target)), tokens)
        )
        assert logits.shape == (1, rows, 262144)
        assert activations.shape == (1, rows, target.hidden_size)
        for spec in cache_specs(target):
            assert [x.shape for x in op.kv[spec.layer]] == [(1, spec.kv_heads, rows, spec.head_dim)] * 2

        table = Weight("target table", (target.vocab_size, target.hidden_size), lambda: None)
        shapes = drafter_shapes(drafter)
        op = TorchOps(meta(shapes | {table.name: table.shape}), positions[-1:], positions[-1:], op.kv)
        state, projected = draft_state(op, drafter, handles(shapes), table, tokens[:, :1], activations[:, -1:])
        choice = draft_choice(op, drafter, handles(shapes), state)
    assert state.shape == (1, 1, drafter.hidden_size)
    assert projected.shape == (1, 1, target.hidden_size)
    assert [x.shape for x in (choice.token, choice.logit, choice.logsumexp)] == [(1, 1)] * 3
    assert choice.token.dtype == torch.int64


def meta(shapes: Shapes) -> dict[str, torch.Tensor]:
    integers = "masked_embedding.token_ordering"
    return {n: torch.empty(s, dtype=torch.int64 if n == integers else torch.float32, device="meta") for n, s in shapes.items()}


def handles(shapes: Shapes) -> dict[str, Weight]:
    return {name: Weight(name, shape, lambda: None) for name, shape in shapes.items()}


def test_e4b_differs_in_sizes_only() -> None:
    target, drafter = pair_of(*fields("e4b"))
    assert [layer.index for layer in target.own_layers] == list(range(24))
    assert {layer.kv_source for layer in drafter.layers} == {layer.kv_source for layer in target.shared_layers} == {22, 23}
    shapes = target_shapes(target)
    assert shapes["model.layers.22.self_attn.k_proj.weight"] == (512, 2560)
    assert shapes["model.layers.23.self_attn.v_proj.weight"] == (1024, 2560)
    assert shapes["model.layers.41.mlp.up_proj.weight"] == (10240, 2560)


def test_the_form_that_transformers_saves_means_the_same(tmp_path: Path, e2b: tuple[TargetConfig, DrafterConfig]) -> None:
    """Newer transformers write `per_layer_config` where the published files have `global_head_dim`."""
    Gemma4Config(**published("e2b_config")).save_pretrained(tmp_path / "target")
    Gemma4AssistantConfig(**published("e2b_assistant_config")).save_pretrained(tmp_path / "drafter")
    saved = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("target", "drafter")]
    assert all("global_head_dim" not in raw["text_config"] for raw in saved)
    assert all(raw["text_config"]["per_layer_config"] for raw in saved)
    assert pair_of(*saved) == e2b


def test_a_text_only_config_means_the_same_as_the_section_of_a_multimodal_one(tmp_path: Path) -> None:
    fields = tiny.text_fields()
    Gemma4TextConfig(**fields).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    config = target_config(fields, "published")
    assert target_config(saved, "saved") == config
    nested = target_config({"architectures": ["Gemma4ForConditionalGeneration"], "text_config": fields}, "multimodal")
    assert nested.multimodal
    assert (nested.layers, nested.ropes, nested.eos_ids) == (config.layers, config.ropes, config.eos_ids)


@given(kinds=st.lists(st.sampled_from([LOCAL.value, FULL.value]), max_size=9), data=st.data())
def test_any_layout_shares_as_in_transformers(kinds: list[str], data: st.DataObject) -> None:
    """The layers that transformers stores for others are our sources, and what it refuses is refused."""
    kinds = [*kinds, FULL.value]  # transformers forces the last one
    shared = data.draw(st.integers(0, len(kinds) - 1))
    fields = tiny.text_fields(layer_types=kinds, num_hidden_layers=len(kinds), num_kv_shared_layers=shared)
    try:
        modes = Gemma4TextConfig(**fields).kv_sharing_modes
    except ValueError:
        with pytest.raises(InputError, match="layer_types"):
            target_config(fields, "target")
        return
    config = target_config(fields, "target")
    assert [layer.owns_kv for layer in config.layers] == [mode != "reuse" for mode in modes]
    last = [config.last_own(kind) for kind in AttentionKind]
    assert {layer.index for layer in last if layer} == {index for index, mode in enumerate(modes) if mode == "store"}
    for layer in config.shared_layers:
        source = config.layers[layer.kv_source]
        assert source == config.last_own(layer.kind)
        assert (source.kv_heads, source.head_dim) == (layer.kv_heads, layer.head_dim)
