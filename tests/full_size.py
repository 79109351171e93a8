"""Checkpoints of the published sizes with random weights: real names, shapes, dtype and shards, no download."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from paceline_export.config import TargetConfig, drafter_config, target_config
from paceline_export.model.drafter import drafter_shapes
from paceline_export.model.target import target_shapes
from paceline_export.weights import Shapes

DATA = Path(__file__).parent / "data"
TOKENIZER = Path(__file__).parents[1] / "models" / "target" / "tokenizer.json"
SHARD_BYTES = 1 << 30
LOCAL, FULL = "sliding_attention", "full_attention"
# E4B's text model where it differs from E2B's, as its model card and the runtimes that load it have it.
E4B = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42, "num_key_value_heads": 2}
E4B |= {"num_kv_shared_layers": 18, "use_double_wide_mlp": False, "layer_types": [*[LOCAL] * 5, FULL] * 7}


def fields(size: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json of a target and of its drafter; `size` is e2b or e4b."""
    target = json.loads((DATA / "e2b_config.json").read_text())
    drafter = json.loads((DATA / "e2b_assistant_config.json").read_text())
    if size == "e4b":
        target["text_config"] |= E4B
        drafter["text_config"] |= {"num_key_value_heads": E4B["num_key_value_heads"]}
        drafter |= {"backbone_hidden_size": E4B["hidden_size"]}
    return target, drafter


def published_shapes(config: TargetConfig) -> Shapes:
    """Names and shapes as a multimodal checkpoint has them, with the projections of shared layers that nobody reads."""
    shapes = target_shapes(config)
    for layer in config.shared_layers:
        own = config.last_own(layer.kind)
        assert own is not None
        for name in ("k_proj", "v_proj", "k_norm"):
            part = f"self_attn.{name}.weight"
            shapes[f"model.layers.{layer.index}.{part}"] = shapes[f"model.layers.{own.index}.{part}"]
    return {name.replace("model.", "model.language_model.", 1): shape for name, shape in shapes.items()}


def write_pair(folder: Path, size: str) -> tuple[Path, Path]:
    """Writes a random target and drafter of a published size below `folder`, and returns both directories."""
    target_fields, drafter_fields = fields(size)
    config = target_config(target_fields, "target")
    write(folder / "target", target_fields, published_shapes(config))
    write(folder / "drafter", drafter_fields, drafter_shapes(drafter_config(drafter_fields, "drafter", config)))
    (folder / "target" / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    return folder / "target", folder / "drafter"


def write(folder: Path, config: dict[str, Any], shapes: Shapes) -> None:
    """A sharded bfloat16 checkpoint with an index, one shard in memory at a time."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    rng, weight_map, shard, size = np.random.default_rng(0), dict[str, str](), dict[str, NDArray[Any]](), 0
    for index, (name, shape) in enumerate(shapes.items()):
        shard[name] = random_weight(name, shape, rng)
        size += 2 * prod(shape)
        if size > SHARD_BYTES or index + 1 == len(shapes):
            file = f"model-{len(set(weight_map.values())) + 1:05}.safetensors"
            save_file(shard, folder / file)
            weight_map |= dict.fromkeys(shard, file)
            shard, size = {}, 0
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def random_weight(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    """bfloat16 of unit gain; norms near 1, and query and key norms that keep attention soft."""
    if name.endswith("token_ordering"):
        return rng.permutation(shape[0])
    if len(shape) == 1:
        gain = shape[0] ** -0.25 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
        return (gain * (1 + 0.1 * rng.standard_normal(shape, np.float32))).astype(ml_dtypes.bfloat16)
    fan_in = 256 if name.endswith("embed_tokens_per_layer.weight") else shape[1]
    values = np.empty(shape, ml_dtypes.bfloat16)
    for row in range(0, shape[0], 4096):
        part = values[row : row + 4096]
        part[:] = rng.standard_normal(part.shape, np.float32) * fan_in**-0.5
    return values
