"""The drafter: one step proposes one token from the target's hidden state and KV rows.

Source: transformers `models/gemma4_assistant/modeling_gemma4_assistant.py` (5.24).
"""

from __future__ import annotations

from paceline_export.config import DrafterConfig
from paceline_export.model.layer import attend, finish, layer_shapes
from paceline_export.model.ops import DraftChoice, Ops, Value
from paceline_export.weights import Shapes, Weight, Weights


def drafter_shapes(config: DrafterConfig) -> Shapes:
    """Names and shapes of every tensor the drafter reads; `masked_embedding.token_ordering` holds integers."""
    width = config.hidden_size
    shapes: Shapes = {
        "pre_projection.weight": (width, 2 * config.target_hidden_size),
        "post_projection.weight": (config.target_hidden_size, width),
        "model.embed_tokens.weight": (config.vocab_size, width),
        "model.norm.weight": (width,),
    }
    if config.head:
        shapes |= {
            "masked_embedding.centroids.weight": (config.head.clusters, width),
            "masked_embedding.token_ordering": (config.vocab_size,),
        }
    for layer in config.layers:
        shapes |= layer_shapes(config, layer, per_layer_size=0)
    return shapes


def draft_state(
    op: Ops, config: DrafterConfig, w: Weights, target_table: Weight, token: Value, hidden: Value
) -> tuple[Value, Value]:
    """`draft_layers` of a token and a hidden state.

    Args:
        target_table: the target's token embedding [V, D]; its rows come first in the input, scaled by sqrt(D).
        token: the newest token [B, T] (T is 1 outside training).
        hidden: [B, T, D] the target's activations of the row that produced `token`, or, on later
            steps of a round, the previous step's projected state.
    """
    embedded = op.scale(op.embedding(target_table, token), config.target_hidden_size**0.5)
    return draft_layers(op, config, w, op.concat(embedded, hidden))


def draft_layers(op: Ops, config: DrafterConfig, w: Weights, joined: Value) -> tuple[Value, Value]:
    """Runs the drafter's layers for one step.

    Args:
        joined: [B, T, 2 D], the token's scaled embedding and then the hidden state.

    Returns:
        the state [B, T, D'] that the head reads, and the projected state [B, T, D] for the next step.
    """
    x = op.linear(joined, w["pre_projection.weight"])
    for layer in config.layers:
        x = finish(op, config, w, layer, x, attend(op, config, w, layer, x), per_layer_input=None)
    state = op.rms_norm(x, w["model.norm.weight"], config.norm_epsilon)
    return state, op.linear(state, w["post_projection.weight"])


def draft_choice(op: Ops, config: DrafterConfig, w: Weights, state: Value) -> DraftChoice:
    """The drafter's token for `state` [B, T, D']. Its table serves only here; there is no soft cap."""
    table = w["model.embed_tokens.weight"]
    if config.head is None:
        return op.dense_head(state, table)
    centroids, ordering = w["masked_embedding.centroids.weight"], w["masked_embedding.token_ordering"]
    return op.clustered_head(state, centroids, ordering, table, config.head)
