"""One Gemma 4 decoder layer, for target and drafter alike.

Source: transformers `models/gemma4/modeling_gemma4.py`, `Gemma4TextDecoderLayer` (5.24).
"""

from __future__ import annotations

from paceline_export.config import AttentionKind, Decoder, Layer
from paceline_export.model.ops import Ops, Value
from paceline_export.weights import Shapes, Weights


def layer_shapes(config: Decoder, layer: Layer, per_layer_size: int) -> Shapes:
    """Names and shapes of the tensors that one layer reads."""
    width, inner, head = config.hidden_size, layer.intermediate, layer.head_dim
    attention = {
        "q_proj.weight": (layer.heads * head, width),
        "q_norm.weight": (head,),
        "o_proj.weight": (width, layer.heads * head),
    }
    if layer.owns_kv:
        attention |= {
            "k_proj.weight": (layer.kv_heads * head, width),
            "k_norm.weight": (head,),
            "v_proj.weight": (layer.kv_heads * head, width),
        }
    shapes: Shapes = {f"self_attn.{name}": shape for name, shape in attention.items()}
    shapes |= {
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "pre_feedforward_layernorm.weight": (width,),
        "post_feedforward_layernorm.weight": (width,),
        "layer_scalar": (1,),
    }
    if per_layer_size:
        shapes |= {
            "per_layer_input_gate.weight": (per_layer_size, width),
            "per_layer_projection.weight": (width, per_layer_size),
            "post_per_layer_input_norm.weight": (width,),
        }
    return {f"{_prefix(layer)}{name}": shape for name, shape in shapes.items()}


def attend(op: Ops, config: Decoder, w: Weights, layer: Layer, x: Value) -> Value:
    """The layer's attention, after its KV rows are written if it owns any.

    Args:
        x: the residual stream [B, T, D].

    Returns:
        [B, T, N * H], before the output projection.
    """
    p = f"{_prefix(layer)}self_attn."
    rope, epsilon = config.ropes[layer.kind], config.norm_epsilon
    h = op.rms_norm(x, w[f"{_prefix(layer)}input_layernorm.weight"], epsilon)
    q = op.fold(op.linear(h, w[p + "q_proj.weight"]), layer.heads)
    q = op.rotate(op.rms_norm(q, w[p + "q_norm.weight"], epsilon), rope)
    if layer.owns_kv:
        k = op.fold(op.linear(h, w[p + "k_proj.weight"]), layer.kv_heads)
        k = op.rotate(op.rms_norm(k, w[p + "k_norm.weight"], epsilon), rope)
        v = op.fold(op.linear(h, w[p + "v_proj.weight"]), layer.kv_heads)
        v = op.rms_norm(v, None, epsilon)  # normed without a weight, and not rotated
        kv = op.cache_update(layer.index, k, v)
    else:
        kv = op.cache_read(layer.kv_source)
    window = config.window if layer.kind is AttentionKind.LOCAL else None
    return op.unfold_heads(op.attention(q, kv, window))


def finish(
    op: Ops, config: Decoder, w: Weights, layer: Layer, x: Value, attended: Value, per_layer_input: Value | None
) -> Value:
    """Everything of the layer that follows its attention.

    Args:
        x: the residual stream that went into `attend`, [B, T, D].
        attended: what `attend` returned, [B, T, N * H].
        per_layer_input: this layer's slice of the per-layer embedding [B, T, P]; None where the model has none.

    Returns:
        The residual stream after the layer, [B, T, D].
    """
    p, epsilon = _prefix(layer), config.norm_epsilon
    a = op.linear(attended, w[p + "self_attn.o_proj.weight"])
    x = op.add(x, op.rms_norm(a, w[p + "post_attention_layernorm.weight"], epsilon))
    h = op.rms_norm(x, w[p + "pre_feedforward_layernorm.weight"], epsilon)
    gate = op.gelu(op.linear(h, w[p + "mlp.gate_proj.weight"]))
    h = op.linear(op.multiply(gate, op.linear(h, w[p + "mlp.up_proj.weight"])), w[p + "mlp.down_proj.weight"])
    x = op.add(x, op.rms_norm(h, w[p + "post_feedforward_layernorm.weight"], epsilon))
    if per_layer_input is not None:
        # The gate reads the residual stream as it is, without a norm.
        g = op.multiply(op.gelu(op.linear(x, w[p + "per_layer_input_gate.weight"])), per_layer_input)
        g = op.linear(g, w[p + "per_layer_projection.weight"])
        x = op.add(x, op.rms_norm(g, w[p + "post_per_layer_input_norm.weight"], epsilon))
    return op.scale_by(x, w[p + "layer_scalar"])


def _prefix(layer: Layer) -> str:
    return f"model.layers.{layer.index}."
