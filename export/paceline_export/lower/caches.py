"""The KV tensors of a pair, as every graph format has them."""

from __future__ import annotations

from paceline.signatures import CacheKind, CacheSpec
from paceline_export.config import AttentionKind, DrafterConfig, TargetConfig

KINDS = {AttentionKind.LOCAL: CacheKind.LOCAL, AttentionKind.FULL: CacheKind.FULL}


def cache_specs(config: TargetConfig) -> tuple[CacheSpec, ...]:
    """The KV tensors of a target, in layer order."""
    return tuple(CacheSpec(x.index, KINDS[x.kind], x.kv_heads, x.head_dim) for x in config.own_layers)


def drafter_caches(target: TargetConfig, drafter: DrafterConfig) -> tuple[CacheSpec, ...]:
    """The target's KV tensors that the drafter reads, in layer order."""
    read = {layer.kv_source for layer in drafter.layers}
    return tuple(spec for spec in cache_specs(target) if spec.layer in read)
