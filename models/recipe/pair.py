"""The small pair: its two config.json files, fresh weights, and saving in Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline_export.config import drafter_config, target_config
from paceline_export.distill.observed import FrozenTarget
from paceline_export.distill.start import fresh
from paceline_export.lower.held import Held
from paceline_export.lower.torch import handles
from paceline_export.model.target import target_shapes

LOCAL, FULL = "sliding_attention", "full_attention"
ROPES = {
    FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
    LOCAL: {"rope_theta": 10000.0, "rope_type": "default"},
}
SHARED_FIELDS: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_k_eq_v": False,
    "bos_token_id": 2,
    "dtype": "bfloat16",
    "enable_moe_block": False,
    "eos_token_id": 1,
    "global_head_dim": 64,
    "head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "model_type": "gemma4_text",
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": ROPES,
    "sliding_window": 64,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": None,
    "vocab_size": 4096,
}
TARGET_FIELDS: dict[str, Any] = SHARED_FIELDS | {
    "architectures": ["Gemma4ForCausalLM"],
    "final_logit_softcapping": 30.0,
    "hidden_size": 192,
    "hidden_size_per_layer_input": 16,
    "intermediate_size": 384,
    "layer_types": [LOCAL, LOCAL, LOCAL, FULL, LOCAL, LOCAL, LOCAL, FULL],
    "num_hidden_layers": 8,
    "num_kv_shared_layers": 4,
    "use_double_wide_mlp": True,
    "vocab_size_per_layer_input": 4096,
}
DRAFTER_FIELDS: dict[str, Any] = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "backbone_hidden_size": 192,
    "centroid_intermediate_top_k": 8,
    "dtype": "bfloat16",
    "model_type": "gemma4_assistant",
    "num_centroids": 64,
    "tie_word_embeddings": True,
    "use_ordered_embeddings": True,
    "text_config": SHARED_FIELDS
    | {
        "final_logit_softcapping": None,
        "hidden_size": 128,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 384,
        "layer_types": [LOCAL, LOCAL, LOCAL, FULL],
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 4,
        "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": 0,
    },
}
TARGET = target_config(TARGET_FIELDS, "target")
DRAFTER = drafter_config(DRAFTER_FIELDS, "drafter", TARGET)


def fresh_target(seed: int) -> dict[str, Tensor]:
    """The target's tensors before training; see `paceline_export.distill.start.fresh`."""
    # A table's rows are scaled by the square root of their width when they are looked up, and here of one layer's slice.
    return fresh(target_shapes(TARGET), seed, {"model.embed_tokens_per_layer.weight": TARGET.per_layer_size})


def frozen(tensors: dict[str, Tensor]) -> FrozenTarget:
    """A trained target for a drafter to learn from."""
    return FrozenTarget(TARGET, handles(tensors), Held(tensors), "cpu")


def rounded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The values that `save` will store, as float32: what the published pair computes with."""
    return {
        name: tensor.detach().to(torch.bfloat16).float() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def save(folder: Path, fields: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes config.json and model.safetensors (bfloat16) in Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: tensor.detach().to(torch.bfloat16) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }
    ordered = {name: stored[name].contiguous() for name in sorted(stored)}
    save_file(ordered, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
