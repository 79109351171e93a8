"""What a Gemma 4 target and its drafter are, derived once from their config.json.

Field names and their meaning: transformers `models/gemma4/configuration_gemma4.py` and
`models/gemma4_assistant/configuration_gemma4_assistant.py` (5.24). What the graphs do not implement is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline_export.fields import Fields

TARGET_ARCHITECTURES = ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM")
MOST_LAYERS = 1024  # the largest models have some hundred
DRAFTER_ARCHITECTURES = ("Gemma4AssistantForCausalLM",)


class AttentionKind(Enum):
    """How far a layer looks back: LOCAL sees the newest `window` rows, FULL sees all rows."""

    LOCAL = "sliding_attention"
    FULL = "full_attention"


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of one attention kind, rotate-half layout over the whole head."""

    head_dim: int
    theta: float
    rotated: float  # fraction of the head that rotates; the rest has frequency 0

    def inverse_frequencies(self) -> NDArray[np.float32]:
        """Returns float32 [H/2], zero where the head does not rotate.

        The exponent divides by the full head size also when only a part rotates
        (transformers `modeling_rope_utils.py`, rope_type "proportional").
        """
        rotated_pairs = int(self.rotated * self.head_dim // 2)
        frequencies = np.zeros(self.head_dim // 2, np.float32)
        exponents = np.arange(0, 2 * rotated_pairs, 2, dtype=np.float32) / np.float32(self.head_dim)
        frequencies[:rotated_pairs] = 1.0 / np.float32(self.theta) ** exponents
        return frequencies


@dataclass(frozen=True)
class Layer:
    """One decoder layer; `kv_source` is the target layer whose KV rows it attends to (itself when it owns them)."""

    index: int
    kind: AttentionKind
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    kv_source: int
    owns_kv: bool


@dataclass(frozen=True)
class Decoder:
    """What target and drafter have in common: a stack of Gemma 4 decoder layers."""

    vocab_size: int
    hidden_size: int
    window: int
    norm_epsilon: float
    layers: tuple[Layer, ...]
    ropes: dict[AttentionKind, Rope]


@dataclass(frozen=True)
class TargetConfig(Decoder):
    """A Gemma 4 text decoder: E2B, E4B or anything of their shape."""

    per_layer_size: int  # width of one layer's slice of the per-layer embedding; 0 means there is none
    softcap: float | None
    max_positions: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    multimodal: bool  # Gemma4ForConditionalGeneration: text tensors under `model.language_model.`

    @property
    def own_layers(self) -> tuple[Layer, ...]:
        """Layers that own KV rows; they come first."""
        return tuple(layer for layer in self.layers if layer.owns_kv)

    @property
    def shared_layers(self) -> tuple[Layer, ...]:
        """Layers that read the rows of an earlier layer."""
        return tuple(layer for layer in self.layers if not layer.owns_kv)

    def last_own(self, kind: AttentionKind) -> Layer | None:
        """The layer whose KV rows are shared with later layers of that kind and with the drafter."""
        return next((layer for layer in reversed(self.own_layers) if layer.kind is kind), None)


@dataclass(frozen=True)
class ClusteredHead:
    """The drafter's head: score `clusters` centroids, keep `top_k`, score only their tokens."""

    clusters: int
    top_k: int


@dataclass(frozen=True)
class DrafterConfig(Decoder):
    """A Gemma 4 MTP drafter; its layers own no KV."""

    target_hidden_size: int
    head: ClusteredHead | None  # None: one dense product with the whole table

    @property
    def scored_tokens(self) -> int:
        """Tokens that a draft step has a logit of."""
        return self.vocab_size if self.head is None else self.head.top_k * (self.vocab_size // self.head.clusters)


def target_config(raw: dict[str, Any], where: str) -> TargetConfig:
    """Reads a target's config.json.

    Args:
        raw: the parsed file.
        where: its path, for messages.

    Raises:
        InputError: a field is missing, of a wrong type, or asks for what is not implemented.
    """
    top = Fields(raw, where)
    _require_architecture(top, TARGET_ARCHITECTURES, "a Gemma 4 target")
    multimodal = "text_config" in raw
    text = top.section("text_config") if multimodal else top
    top.allow("quantization_config", None)
    top.allow("tie_word_embeddings", True)
    first_shared = text.whole("num_hidden_layers") - text.whole("num_kv_shared_layers", 0)
    layers = _layers(text, first_shared)
    ends = [*top.ids("eos_token_id"), *text.ids("eos_token_id")]
    softcap = text.optional_number("final_logit_softcapping")
    return TargetConfig(
        **_decoder(text, layers),
        per_layer_size=text.whole("hidden_size_per_layer_input", 0),
        softcap=softcap,
        max_positions=text.size("max_position_embeddings"),
        bos_id=next(iter(text.ids("bos_token_id")), None),
        eos_ids=tuple(dict.fromkeys(ends)),
        multimodal=multimodal,
    )


def drafter_config(raw: dict[str, Any], where: str, target: TargetConfig) -> DrafterConfig:
    """Reads a drafter's config.json and checks that it fits its target.

    Args:
        raw: the parsed file.
        where: its path, for messages.
        target: the target whose KV rows the drafter will read.

    Raises:
        InputError: as in `target_config`, or the drafter does not fit, with both values in the message.
    """
    top = Fields(raw, where)
    _require_architecture(top, DRAFTER_ARCHITECTURES, "a Gemma 4 drafter")
    top.allow("quantization_config", None)
    top.allow("tie_word_embeddings", True)
    text = top.section("text_config")
    text.allow("final_logit_softcapping", None)
    text.allow("hidden_size_per_layer_input", 0, None)
    layers = _layers(text, first_shared=0, sources=target)
    head = None
    if top.boolean("use_ordered_embeddings", False):
        head = ClusteredHead(top.size("num_centroids"), top.whole("centroid_intermediate_top_k"))
        if text.size("vocab_size") % head.clusters:
            raise top.refusal("num_centroids", head.clusters, f"a divisor of vocab_size {text.size('vocab_size')}")
        if not 0 < head.top_k <= head.clusters:
            raise top.refusal("centroid_intermediate_top_k", head.top_k, f"1 to num_centroids ({head.clusters})")
    drafter = DrafterConfig(
        **_decoder(text, layers),
        target_hidden_size=top.size("backbone_hidden_size"),
        head=head,
    )
    _require_fit(drafter, target, where)
    return drafter


def _require_architecture(top: Fields, allowed: tuple[str, ...], what: str) -> None:
    found = top.strings("architectures")
    if not set(found) & set(allowed):
        raise top.refusal("architectures", ", ".join(found) or "nothing", f"{' or '.join(allowed)} ({what})")


def _decoder(text: Fields, layers: tuple[Layer, ...]) -> dict[str, Any]:
    """The fields of `Decoder`, after refusing the variants that the graphs do not implement."""
    text.allow("hidden_activation", "gelu_pytorch_tanh")
    text.allow("attention_k_eq_v", False, None)
    text.allow("attention_bias", False, None)
    text.allow("enable_moe_block", False, None)
    text.allow("num_experts", None, 0)
    text.allow("use_bidirectional_attention", None)
    text.allow("tie_word_embeddings", True)
    ropes = {kind: _rope(text, kind, layers) for kind in AttentionKind if any(x.kind is kind for x in layers)}
    return {
        "vocab_size": text.size("vocab_size"),
        "hidden_size": text.size("hidden_size"),
        "window": text.size("sliding_window"),
        "norm_epsilon": text.number("rms_norm_eps"),
        "layers": layers,
        "ropes": ropes,
    }


def _layers(text: Fields, first_shared: int, sources: TargetConfig | None = None) -> tuple[Layer, ...]:
    """Derives every layer once. `sources` is the target when these are a drafter's layers."""
    kinds = [_kind(text, name) for name in text.strings("layer_types")]
    count = text.whole("num_hidden_layers")
    if count > MOST_LAYERS:
        raise text.refusal("num_hidden_layers", count, f"at most {MOST_LAYERS}")
    if len(kinds) != count:
        raise text.refusal("layer_types", f"{len(kinds)} entries", f"num_hidden_layers ({count}) entries")
    if sources is None and not 0 < first_shared <= count:
        shared = text.whole("num_kv_shared_layers")
        raise text.refusal("num_kv_shared_layers", shared, f"0 to {count - 1}")
    overrides = text.layer_overrides(("head_dim", "num_key_value_heads"))
    if max(overrides, default=0) >= count:
        raise text.refusal("per_layer_config", f"for layer {max(overrides)}", f"num_hidden_layers ({count}) layers")
    full_head_dim = text.size("global_head_dim", text.size("head_dim"))
    double_wide = text.boolean("use_double_wide_mlp", False)
    layers: list[Layer] = []
    for index, kind in enumerate(kinds):
        default = full_head_dim if kind is AttentionKind.FULL else text.size("head_dim")
        owns = index < first_shared
        own = next((x for x in reversed(layers) if x.kind is kind and x.owns_kv), None)
        source = sources.last_own(kind) if sources else own
        if not owns and source is None:
            raise text.refusal("layer_types", f"layer {index} is {kind.value}", "kinds whose KV rows an earlier layer owns")
        layers.append(
            Layer(
                index=index,
                kind=kind,
                heads=text.size("num_attention_heads"),
                kv_heads=overrides.get(index, {}).get("num_key_value_heads", text.size("num_key_value_heads")),
                head_dim=overrides.get(index, {}).get("head_dim", default),
                intermediate=text.size("intermediate_size") * (2 if double_wide and not owns else 1),
                kv_source=index if owns or source is None else source.index,
                owns_kv=owns,
            )
        )
        if layers[-1].heads % layers[-1].kv_heads:
            raise text.refusal("num_key_value_heads", layers[-1].kv_heads, f"a divisor of {layers[-1].heads} heads")
    return tuple(layers)


def _kind(text: Fields, name: str) -> AttentionKind:
    try:
        return AttentionKind(name)
    except ValueError:
        raise text.refusal("layer_types", name, " or ".join(kind.value for kind in AttentionKind)) from None


def _rope(text: Fields, kind: AttentionKind, layers: tuple[Layer, ...]) -> Rope:
    head_dims = {layer.head_dim for layer in layers if layer.kind is kind}
    if len(head_dims) != 1:
        raise text.refusal("head_dim", sorted(head_dims), f"one size for all {kind.value} layers")
    rope = text.section("rope_parameters").section(kind.value)
    rotated = 1.0
    if rope.choice("rope_type", "default", "proportional") == "proportional":
        rope.allow("factor", None, 1.0)
        rotated = rope.number("partial_rotary_factor", 1.0)
        if not rotated <= 1:
            raise rope.refusal("partial_rotary_factor", rotated, "a number above 0 and at most 1")
    return Rope(head_dims.pop(), rope.number("rope_theta"), rotated)


def _require_fit(drafter: DrafterConfig, target: TargetConfig, where: str) -> None:
    """A drafter reads the target's hidden state, embedding and KV rows, so all their sizes must agree."""
    pairs: list[tuple[str, object, object]] = [
        ("backbone_hidden_size", drafter.target_hidden_size, target.hidden_size),
        ("vocab_size", drafter.vocab_size, target.vocab_size),
        ("sliding_window", drafter.window, target.window),
    ]
    for layer in drafter.layers:
        source = target.layers[layer.kv_source]
        label = f"of {layer.kind.value} layer {layer.index}"
        pairs.append((f"head_dim {label}", layer.head_dim, source.head_dim))
        pairs.append((f"num_key_value_heads {label}", layer.kv_heads, source.kv_heads))
        pairs.append((f"rope_theta {label}", drafter.ropes[layer.kind].theta, target.ropes[layer.kind].theta))
        pairs.append((f"rotated fraction {label}", drafter.ropes[layer.kind].rotated, target.ropes[layer.kind].rotated))
    for name, found, wanted in pairs:
        if found != wanted:
            raise InputError(
                f"{where}: the drafter does not fit its target: {name} is {found}, the target has {wanted}; "
                "give the drafter that was published with this target."
            )
