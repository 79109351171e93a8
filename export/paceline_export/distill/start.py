"""A drafter for a target that has none: its config.json, and where its training starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline_export.config import AttentionKind, DrafterConfig, TargetConfig
from paceline_export.distill.rounds import CENTROIDS, HEAD_TABLE, ORDERING
from paceline_export.model.drafter import drafter_shapes
from paceline_export.weights import Shapes

KMEANS_ROUNDS = 15
CHOICES = 16  # nearest clusters that a token may fall back to before it goes where there is room
ROWS = 1 << 14  # tokens that are compared with all clusters at a time
WIDTH_STEP, LEAST_WIDTH = 64, 128
# Sizes of clusters, the preferred first: that of the published drafters, and one for small vocabularies.
CLUSTER_TOKENS = (128, 64, 32, 256, 16, 512)
LARGE_VOCABULARY = 1 << 16
SCORED_CLUSTERS = 32  # of many, as the published drafters score; an eighth where there are few


def fresh_config(raw: Mapping[str, Any], target: TargetConfig) -> dict[str, Any]:
    """The config.json of a new drafter for a target.

    Its proportions are those of the published drafters: a sixth of the target's width, three layers of the target's
    local kind and a full one, half of its heads.

    Args:
        raw: the target's config.json.
        target: what was read from it.
    """
    text = dict(raw["text_config"] if target.multimodal else raw)
    kinds = [kind for kind in (AttentionKind.LOCAL,) * 3 + (AttentionKind.FULL,) if target.last_own(kind)]
    sources = [source for kind in kinds if (source := target.last_own(kind))]
    width = min(target.hidden_size, max(LEAST_WIDTH, -(-target.hidden_size // 6 // WIDTH_STEP) * WIDTH_STEP))
    most_kv_heads = max(source.kv_heads for source in sources)
    heads = max(most_kv_heads, sources[0].heads // 2)
    if any(heads % source.kv_heads for source in sources):
        heads = sources[0].heads
    overrides = {
        str(index): {"head_dim": source.head_dim, "num_key_value_heads": source.kv_heads}
        for index, source in enumerate(sources)
    }
    for name in ("architectures", "per_layer_config", "transformers_version", "vocab_size_per_layer_input"):
        text.pop(name, None)
    text |= {
        "final_logit_softcapping": None,
        "hidden_size": width,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 4 * width,
        "layer_types": [kind.value for kind in kinds],
        "num_attention_heads": heads,
        "num_hidden_layers": len(kinds),
        "num_kv_shared_layers": len(kinds),
        "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": 0,
    }
    if "per_layer_config" in (raw["text_config"] if target.multimodal else raw):
        text["per_layer_config"] = overrides
    size = _cluster_tokens(target.vocab_size)
    clusters = target.vocab_size // size if size else 0
    head = {"num_centroids": clusters, "centroid_intermediate_top_k": min(SCORED_CLUSTERS, max(1, clusters // 8))}
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "backbone_hidden_size": target.hidden_size,
        "dtype": "bfloat16",
        "model_type": "gemma4_assistant",
        "text_config": text,
        "tie_word_embeddings": True,
        "use_ordered_embeddings": bool(size),
    } | (head if size else {})


def _cluster_tokens(vocabulary: int) -> int | None:
    """Tokens of a cluster; None where the vocabulary divides into no clusters of a sensible size."""
    sizes = CLUSTER_TOKENS if vocabulary >= LARGE_VOCABULARY else CLUSTER_TOKENS[1:]
    return next((size for size in sizes if vocabulary % size == 0 and vocabulary // size >= 8), None)


@torch.no_grad()
def start(config: DrafterConfig, table: Tensor, seed: int) -> dict[str, Tensor]:
    """The drafter's tensors, given the target's token embedding [V, D].

    Its head table and its projection back to D are the principal directions of `table`, so that its first guesses
    resemble the target's. A cluster holds tokens of similar embedding, and its centroid is their mean.
    """
    tensors = fresh(drafter_shapes(config), seed)
    strengths, directions = torch.linalg.eigh(table.mT @ table)
    directions = directions[:, strengths.argsort(descending=True)[: config.hidden_size]].contiguous()  # [D, D']
    own_table = table @ directions
    tensors[HEAD_TABLE].copy_(own_table)
    tensors["post_projection.weight"].copy_(directions)
    if config.head:
        ordering = balanced_clusters(table, config.head.clusters, seed).argsort(stable=True)
        tensors[ORDERING] = ordering
        tensors[CENTROIDS].copy_(own_table[ordering].view(config.head.clusters, -1, config.hidden_size).mean(1))
    return tensors


def fresh(shapes: Shapes, seed: int, fan_in: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """Tensors to be trained: matrices of unit gain, norms of 1, query and key norms of H^-1/4.

    Attention's scale is 1.0, so query and key norms of 1 would start it far too sharp.

    Args:
        fan_in: of matrices whose inputs are not their columns.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        if name == ORDERING:
            tensors[name] = torch.arange(shape[0])
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            tensors[name] = torch.full(shape, shape[0] ** -0.25)
        elif len(shape) == 1:
            tensors[name] = torch.ones(shape)
        else:
            inputs = (fan_in or {}).get(name, shape[1])
            tensors[name] = torch.randn(shape, generator=generator) * inputs**-0.5
    return tensors


def balanced_clusters(vectors: Tensor, clusters: int, seed: int) -> Tensor:
    """Spherical k-means with clusters of equal size: vectors [V, D] -> cluster of each, int64 [V].

    Those nearest to a centre choose first; a full cluster sends the rest to their next choice, and those that find all
    their choices full go where there is room.
    """
    x = F.normalize(vectors, dim=-1)
    centres = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:clusters]]
    assigned = torch.zeros(len(x), dtype=torch.int64)
    for _ in range(KMEANS_ROUNDS):
        assigned = _assigned(x, centres)
        ordering = assigned.argsort(stable=True)
        centres = F.normalize(x[ordering].view(clusters, -1, x.shape[1]).mean(1), dim=-1)
    return assigned


def _assigned(x: Tensor, centres: Tensor) -> Tensor:
    nearest = [(rows @ centres.mT).topk(min(CHOICES, len(centres)), -1) for rows in torch.split(x, ROWS)]
    choices = torch.cat([found.indices for found in nearest]).tolist()
    order = torch.cat([found.values[:, 0] for found in nearest]).argsort(descending=True).tolist()
    room, assigned, homeless = [len(x) // len(centres)] * len(centres), [0] * len(x), list[int]()
    for i in order:
        cluster = next((c for c in choices[i] if room[c]), None)
        if cluster is None:
            homeless.append(i)
        else:
            assigned[i], room[cluster] = cluster, room[cluster] - 1
    is_open = torch.tensor(room) > 0
    for i in homeless:
        cluster = int((centres @ x[i]).masked_fill(~is_open, -torch.inf).argmax())
        assigned[i], room[cluster] = cluster, room[cluster] - 1
        is_open[cluster] = room[cluster] > 0
    return torch.tensor(assigned)
