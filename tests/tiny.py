"""Tiny random pairs with every architectural feature on, as transformers models and as checkpoint directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from transformers import Gemma4ForCausalLM, Gemma4TextConfig
from transformers.models.gemma4_assistant import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

LOCAL, FULL = "sliding_attention", "full_attention"
VOCABULARY, WINDOW, WIDTH = 512, 16, 64
ROPES = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    LOCAL: {"rope_type": "default", "rope_theta": 10000.0},
}


def text_fields(**changes: Any) -> dict[str, Any]:
    """A target's text config in the form that the published checkpoints use."""
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "attention_k_eq_v": False,
        "bos_token_id": 2,
        "enable_moe_block": False,
        "eos_token_id": 1,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 32,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": WIDTH,
        "hidden_size_per_layer_input": 8,
        "intermediate_size": 96,
        "layer_types": [LOCAL, LOCAL, LOCAL, LOCAL, FULL] * 2,
        "max_position_embeddings": 4096,
        "model_type": "gemma4_text",
        "num_attention_heads": 4,
        "num_hidden_layers": 10,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 5,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "rope_parameters": ROPES,
        "sliding_window": WINDOW,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": None,
        "use_double_wide_mlp": True,
        "vocab_size": VOCABULARY,
        "vocab_size_per_layer_input": VOCABULARY,
    } | changes


def drafter_fields(text: dict[str, Any], clustered: bool = True, **changes: Any) -> dict[str, Any]:
    """A drafter's config that fits the target `text`."""
    own = {
        "final_logit_softcapping": None,
        "hidden_size": 32,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 48,
        "layer_types": [LOCAL, LOCAL, LOCAL, FULL],
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 4,
        "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": 0,
    }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "backbone_hidden_size": text["hidden_size"],
        "centroid_intermediate_top_k": 4,
        "model_type": "gemma4_assistant",
        "num_centroids": 64,
        "text_config": {k: v for k, v in text.items() if k != "architectures"} | own,
        "tie_word_embeddings": True,
        "use_ordered_embeddings": clustered,
    } | changes


def transformers_pair(
    text: dict[str, Any], drafter: dict[str, Any], seed: int
) -> tuple[Gemma4ForCausalLM, Gemma4AssistantForCausalLM]:
    """Both models in float32 with random values in every tensor, so that each one matters."""
    target_config = Gemma4TextConfig(**text, attn_implementation="eager")
    drafter_config = Gemma4AssistantConfig(**drafter, attn_implementation="eager")
    target = Gemma4ForCausalLM(target_config).float().eval()
    assistant = Gemma4AssistantForCausalLM(drafter_config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for model in (target, assistant):
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                # Attention's scale is 1.0: with query and key norms of 1 its softmax would be so sharp that rounding
                # errors grow tenfold a layer, and parity would measure that growth.
                gain = parameter.shape[0] ** -0.25 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
                parameter.copy_(gain * (1 + 0.2 * noise) if parameter.ndim == 1 else noise * parameter.shape[-1] ** -0.5)
            for name, buffer in model.named_buffers():
                if name.endswith("layer_scalar"):
                    buffer.fill_(0.8 + 0.4 * float(torch.rand((), generator=generator)))
                if name.endswith("token_ordering"):
                    buffer.copy_(torch.randperm(text["vocab_size"], generator=generator))
            model.tie_weights()
    target.generation_config.eos_token_id = None
    return target, assistant


def write_checkpoint(folder: Path, fields: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    """Writes config.json and model.safetensors the way a published checkpoint has them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    kept = {n: t.contiguous() for n, t in tensors.items() if n != "lm_head.weight"}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_pair(folder: Path, seed: int = 0, clustered: bool = True, **changes: Any) -> tuple[Path, Path]:
    """Writes a random target (with `changes` to its text config) and a drafter that fits; returns both directories."""
    text = text_fields(**changes)
    drafter = drafter_fields(text, clustered)
    models_pair = transformers_pair(text, drafter, seed)
    folders = (folder / "target", folder / "drafter")
    for where, fields, model in zip(folders, (text, drafter), models_pair, strict=True):
        write_checkpoint(where, fields, dict(model.state_dict()))
    tokenizer().save(str(folders[0] / "tokenizer.json"))
    return folders


def tokenizer() -> Tokenizer:
    """Of Gemma's kind, VOCABULARY entries: BPE with byte fallback, a visible space, pairs of letters as the only merges."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
    characters = ["\n", "▁", *map(chr, range(ord("!"), 127))]
    entries = special + [f"<0x{byte:02X}>" for byte in range(256)] + characters
    merges = [(a, b) for a in "etaoinshrdluc" for b in "etaoinshrdluc"][: VOCABULARY - len(entries)]
    entries += [a + b for a, b in merges]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])])
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return made
