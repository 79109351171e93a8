"""The target: tokens in, KV rows written, logits and final hidden states out.

Source: transformers `models/gemma4/modeling_gemma4.py`, `Gemma4TextModel` and `Gemma4ForCausalLM` (5.24).
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline_export.config import TargetConfig
from paceline_export.model.layer import attend, finish, layer_shapes
from paceline_export.model.ops import Ops, Value
from paceline_export.weights import Shapes, Weights

TABLE = "model.embed_tokens.weight"  # of the tokens; the head is tied to it
PER_LAYER_TABLE = "model.embed_tokens_per_layer.weight"


@dataclass(frozen=True)
class Embedded:
    """What the tables hold for some tokens."""

    x: Value  # [B, T, D], scaled by sqrt(D)
    per_layer: Value | None  # [B, T, layers, P], scaled by sqrt(P); None where the model has no per-layer table


@dataclass(frozen=True)
class Filled:
    """Where a pass stands once every KV row is written: inside the last layer that owns KV."""

    x: Value  # [B, T, D] residual stream that went into that layer
    attended: Value  # [B, T, N * H] its attention
    per_layer_inputs: Value | None  # [B, T, layers, P]


def target_shapes(config: TargetConfig) -> Shapes:
    """Names and shapes of every tensor the target reads, as a text-only checkpoint names them."""
    shapes: Shapes = {TABLE: (config.vocab_size, config.hidden_size)}
    if config.per_layer_size:
        packed = len(config.layers) * config.per_layer_size
        shapes |= {
            PER_LAYER_TABLE: (config.vocab_size, packed),
            "model.per_layer_model_projection.weight": (packed, config.hidden_size),
            "model.per_layer_projection_norm.weight": (config.per_layer_size,),
        }
    for layer in config.layers:
        shapes |= layer_shapes(config, layer, config.per_layer_size)
    return shapes | {"model.norm.weight": (config.hidden_size,)}


def fill(op: Ops, config: TargetConfig, w: Weights, tokens: Value) -> Filled:
    """`fill_rows` of the embeddings of `tokens` [B, T]."""
    return fill_rows(op, config, w, embed(op, config, w, tokens))


def embed(op: Ops, config: TargetConfig, w: Weights, tokens: Value) -> Embedded:
    """Looks `tokens` [B, T] up; the only part of a pass that reads the token tables as tables."""
    per_layer = per_layer_embeddings(op, config, w, tokens) if config.per_layer_size else None
    return Embedded(token_embeddings(op, config, w, tokens), per_layer)


def token_embeddings(op: Ops, config: TargetConfig, w: Weights, tokens: Value) -> Value:
    """Rows of the main table, scaled: [B, T, D]."""
    return op.scale(op.embedding(w[TABLE], tokens), config.hidden_size**0.5)


def per_layer_embeddings(op: Ops, config: TargetConfig, w: Weights, tokens: Value) -> Value:
    """Rows of the per-layer table, scaled: [B, T, layers, P]."""
    packed = op.embedding(w[PER_LAYER_TABLE], tokens)
    return op.scale(op.fold(packed, len(config.layers)), config.per_layer_size**0.5)


def fill_rows(op: Ops, config: TargetConfig, w: Weights, embedded: Embedded) -> Filled:
    """Writes the KV rows of embedded tokens; this is all that prefill needs.

    Layers that share KV write nothing, so a prompt never runs through them, nor through the
    rest of the last layer that owns KV.
    """
    x, per_layer = embedded.x, _per_layer_inputs(op, config, w, embedded)
    *before, last = config.own_layers
    for layer in before:
        attended = attend(op, config, w, layer, x)
        x = finish(op, config, w, layer, x, attended, _slice(op, per_layer, layer.index))
    return Filled(x, attend(op, config, w, last, x), per_layer)


def finish_rows(op: Ops, config: TargetConfig, w: Weights, filled: Filled) -> tuple[Value, Value]:
    """The rest of the pass, for decode and verify.

    Returns:
        logits [B, T, V] (soft-capped) and activations [B, T, D], the hidden states after the final norm.
    """
    activations = activate_rows(op, config, w, filled)
    return score_rows(op, config, w, activations), activations


def activate_rows(op: Ops, config: TargetConfig, w: Weights, filled: Filled) -> Value:
    """The layers that are left, and the final norm: activations [B, T, D]."""
    last, per_layer = config.own_layers[-1], filled.per_layer_inputs
    x = finish(op, config, w, last, filled.x, filled.attended, _slice(op, per_layer, last.index))
    for layer in config.shared_layers:
        attended = attend(op, config, w, layer, x)
        x = finish(op, config, w, layer, x, attended, _slice(op, per_layer, layer.index))
    return op.rms_norm(x, w["model.norm.weight"], config.norm_epsilon)


def score_rows(op: Ops, config: TargetConfig, w: Weights, activations: Value) -> Value:
    """Soft-capped logits [B, T, V] of activations [B, T, D]."""
    logits = op.linear(activations, w[TABLE])
    return logits if config.softcap is None else op.softcap(logits, config.softcap)


def _per_layer_inputs(op: Ops, config: TargetConfig, w: Weights, embedded: Embedded) -> Value | None:
    """Every layer's own small embedding of the token, mixed with a projection of the main one: [B, T, layers, P]."""
    if embedded.per_layer is None:
        return None
    projected = op.linear(embedded.x, w["model.per_layer_model_projection.weight"])
    projected = op.fold(op.scale(projected, config.hidden_size**-0.5), len(config.layers))
    projected = op.rms_norm(projected, w["model.per_layer_projection_norm.weight"], config.norm_epsilon)
    return op.scale(op.add(projected, embedded.per_layer), 2**-0.5)


def _slice(op: Ops, per_layer_inputs: Value | None, layer: int) -> Value | None:
    return None if per_layer_inputs is None else op.pick(per_layer_inputs, layer)
