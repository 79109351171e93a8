"""A drafter for a target that has none: its sizes fit, its clusters are equal, and E2B's memory is told beforehand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import full_size
import numpy as np
import psutil
import pytest
import tiny
import torch

from paceline.errors import InputError
from paceline_export.checkpoint import Target
from paceline_export.config import drafter_config, target_config
from paceline_export.distill.memory import Kept, needs
from paceline_export.distill.rounds import CENTROIDS, HEAD_TABLE, ORDERING
from paceline_export.distill.start import balanced_clusters, fresh_config, start
from paceline_export.model.drafter import drafter_shapes
from paceline_export.model.target import target_shapes
from paceline_export.weights import Weight


@pytest.mark.parametrize("size", ["e2b", "e4b"])
def test_a_new_drafter_has_the_published_ones_proportions(size: str) -> None:
    raw, published = full_size.fields(size)
    target = target_config(raw, "target")
    found = drafter_config(fresh_config(raw, target), "new", target)
    wanted = drafter_config(published, "published", target)
    assert found.head == wanted.head
    assert [layer.kind for layer in found.layers] == [layer.kind for layer in wanted.layers]
    assert [layer.kv_source for layer in found.layers] == [layer.kv_source for layer in wanted.layers]
    if size == "e2b":
        assert (found.hidden_size, found.layers[0].heads) == (wanted.hidden_size, wanted.layers[0].heads)


@pytest.mark.parametrize("changes", [{}, {"vocab_size": 509}, {"num_key_value_heads": 2}, {"layer_types": [tiny.FULL] * 10}])
def test_a_new_drafter_fits_whatever_the_target_is(changes: dict[str, object]) -> None:
    """A vocabulary that divides into no clusters gets a dense head, and a kind of layer that the target lacks is left out."""
    raw = tiny.text_fields(**changes)
    target = target_config(raw, "target")
    config = drafter_config(fresh_config(raw, target), "new", target)
    tensors = start(config, torch.randn(target.vocab_size, target.hidden_size), seed=0)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == drafter_shapes(config)
    assert (config.head is None) == (target.vocab_size == 509)


def test_clusters_are_equal_and_hold_what_is_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(8, 16, generator=generator)
    vectors = (centres[:, None] + 0.1 * torch.randn(8, 32, 16, generator=generator)).flatten(0, 1)
    found = balanced_clusters(vectors, 8, seed=1)
    assert found.bincount().tolist() == [32] * 8
    mean = torch.nn.functional.normalize(vectors, dim=-1)
    own = torch.stack([mean[found == cluster].mean(0).norm() for cluster in range(8)])
    random = torch.stack([mean[cluster::8].mean(0).norm() for cluster in range(8)])
    assert own.mean() > 2 * random.mean()


def test_more_tokens_than_choices_still_give_equal_clusters() -> None:
    """All vectors alike: nearly all tokens find their choices full."""
    vectors = torch.ones(640, 4) + 1e-3 * torch.randn(640, 4, generator=torch.Generator().manual_seed(0))
    assert balanced_clusters(vectors, 40, seed=0).bincount().tolist() == [16] * 40


def test_a_new_drafters_head_begins_with_what_the_target_knows_of_tokens() -> None:
    """A token's row points to itself: the state that the target's embedding projects to scores it highest."""
    raw = tiny.text_fields()
    target = target_config(raw, "target")
    config = drafter_config(fresh_config(raw, target), "new", target)
    table = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
    tensors = start(config, table, seed=0)
    directions = tensors["post_projection.weight"]
    assert torch.allclose(tensors[HEAD_TABLE], table @ directions)
    best = (torch.nn.functional.normalize(table) @ directions @ tensors[HEAD_TABLE].mT).argmax(-1)
    assert (best == torch.arange(512)).float().mean() > 0.9
    members = tensors[ORDERING].view(len(tensors[CENTROIDS]), -1)
    assert torch.allclose(tensors[CENTROIDS][3], tensors[HEAD_TABLE][members[3]].mean(0), atol=1e-5)


@pytest.mark.parametrize(("gib", "kept"), [(64, Kept.FLOAT32), (24, Kept.BFLOAT16), (13, Kept.STREAMED), (4, None)])
def test_what_e2b_needs_is_told_and_refused_where_it_is_not_there(
    gib: int, kept: Kept | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, published = full_size.fields("e2b")
    config = target_config(raw, "target")
    drafter = drafter_config(published, "drafter", config)
    shapes = target_shapes(config)
    target = Target(Path(), config, {name: Weight(name, shape, lambda: np.zeros(0)) for name, shape in shapes.items()})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=gib << 30))
    found = needs(target, drafter, 2048, "cpu")
    if kept is None:
        with pytest.raises(InputError, match=r"has 4\.3 GB of memory available and training needs about \d+\.\d GB"):
            found.chosen()
    else:
        assert found.chosen() is kept
        assert kept.value in found.sentence()
