"""Where the drafter's training starts: from the target's embedding, which fixes the clusters of its head for good."""

from __future__ import annotations

import pair
import torch
import torch.nn.functional as F
from torch import Tensor

KMEANS_ROUNDS = 15


@torch.no_grad()
def start(table: Tensor, seed: int) -> dict[str, Tensor]:
    """The drafter's tensors, given the target's token embedding [V, D].

    Its head table and its projection back to D are the principal directions of `table`, so that its first guesses
    resemble the target's. A cluster holds tokens of similar embedding, and its centroid is their mean.
    """
    tensors = pair.fresh(pair.DRAFTER_SHAPES, seed)
    directions = torch.linalg.svd(table, full_matrices=False).Vh[: pair.DRAFTER.hidden_size].mT  # [D, D']
    own_table = table @ directions
    assert pair.DRAFTER.head is not None
    clusters = pair.DRAFTER.head.clusters
    ordering = balanced_clusters(table, clusters, seed).argsort(stable=True)
    tensors["model.embed_tokens.weight"].copy_(own_table)
    tensors["post_projection.weight"].copy_(directions)
    tensors["masked_embedding.token_ordering"] = ordering
    tensors["masked_embedding.centroids.weight"].copy_(own_table[ordering].unflatten(0, (clusters, -1)).mean(1))
    return tensors


def balanced_clusters(vectors: Tensor, clusters: int, seed: int) -> Tensor:
    """Spherical k-means with clusters of equal size: vectors [V, D] -> cluster of each, int64 [V].

    Those nearest to a centre choose first; a full cluster sends the rest to their next choice.
    """
    x = F.normalize(vectors, dim=-1)
    centres = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:clusters]]
    for _ in range(KMEANS_ROUNDS):
        nearness = x @ centres.mT
        choices = nearness.argsort(-1, descending=True).tolist()
        assigned, room = [0] * len(x), [len(x) // clusters] * clusters
        for i in nearness.amax(-1).argsort(descending=True).tolist():
            assigned[i] = next(c for c in choices[i] if room[c])
            room[assigned[i]] -= 1
        ordering = torch.tensor(assigned).argsort(stable=True)
        centres = F.normalize(x[ordering].unflatten(0, (clusters, -1)).mean(1), dim=-1)
    return torch.tensor(assigned)
