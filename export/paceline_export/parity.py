"""Whether a bundle's graphs compute what the checkpoints do: the torch lowering, a tensor in memory at a time, is the oracle.

Weights that the bundle stores as integers are rounded as it rounds them, so what is left is how kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.checks import FailedError, Models, Trial
from paceline.manifest import Manifest
from paceline.model import Model
from paceline_export.checkpoint import Drafter, Target
from paceline_export.lower.held import HeldOps, Streamed
from paceline_export.model.drafter import draft_choice, draft_state
from paceline_export.model.target import TABLE, fill, finish_rows
from paceline_export.recipes import recipe

PROMPT, ROWS = 20, 4  # tokens that are prefilled, and then verified
# Of the norm: float32 kernels, and integer ones, which round activations to int8 (1 to 4 % were measured).
DIFFERS = {"f32": 1e-4, "other": 0.06}


@dataclass(frozen=True)
class Expected:
    """What the checkpoints say of a text: of its last rows, and of the draft step behind the row before these."""

    tokens: list[int]
    logits: NDArray[np.float32]  # [ROWS, V]
    activations: NDArray[np.float32]  # [ROWS, D]
    hidden: NDArray[np.float32]  # [D]
    draft_token: int
    state: NDArray[np.float32]  # [D]


@torch.no_grad()
def expected(target: Target, drafter: Drafter, manifest: Manifest) -> Expected:
    """Runs the checkpoints on a seeded text.

    Raises:
        FailedError: the bundle is of another pair.
    """
    config = target.config
    sizes = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size, "layers": len(config.layers)}
    for name, size in sizes.items():
        if vars(manifest)[name] != size:
            raise FailedError(f"{name} of the bundle is {vars(manifest)[name]} and of {target.folder} {size}.")
    rounded = recipe(manifest.recipe)
    tokens: list[int] = np.random.default_rng(3).integers(config.vocab_size, size=PROMPT + ROWS).tolist()
    positions = torch.arange(len(tokens))
    weights = Streamed(target.weights, rounded.target(target.weights))
    op = HeldOps(weights, positions, positions + 1)
    logits, activations = finish_rows(op, config, target.weights, fill(op, config, target.weights, torch.tensor([tokens])))
    hidden, at = activations[0, PROMPT - 1], torch.tensor([PROMPT])
    # The drafter looks the token up in the target's table, under a name that its own tensors do not have.
    table = replace(target.weights[TABLE], name="target.table")
    drafter_weights = {**drafter.weights, table.name: table}
    schemes = {**rounded.drafter(drafter.weights)}
    if TABLE in weights.schemes:
        schemes[table.name] = weights.schemes[TABLE]
    op = HeldOps(Streamed(drafter_weights, schemes), at + manifest.draft_position_offset, at, dict(op.kv))
    token = torch.tensor([[tokens[PROMPT]]])
    state, projected = draft_state(op, drafter.config, drafter.weights, table, token, hidden[None, None])
    choice = draft_choice(op, drafter.config, drafter.weights, state)
    return Expected(
        tokens,
        logits[0, -ROWS:].numpy().copy(),
        activations[0, -ROWS:].numpy().copy(),
        hidden.numpy().copy(),
        int(choice.token),
        projected[0, 0].numpy().copy(),
    )


def trials(models: Models, target: Target, drafter: Drafter, manifest: Manifest) -> list[Trial]:
    """Parity of every backend's graphs; the checkpoints run once, when the first is tried."""
    wanted = cache(partial(expected, target, drafter, manifest))
    return [(f"parity, {name}", partial(parity, model, wanted)) for name, model in models.items()]


def parity(model: Model, ask: Callable[[], Expected]) -> str:
    """Logits, activations and a draft step, against the checkpoints'."""
    wanted = ask()
    with model.sequence() as (target, drafter):
        target.prefill(wanted.tokens[:PROMPT])
        step = drafter.graphs.draft(wanted.tokens[PROMPT], wanted.hidden)
        state, token = step.state.copy(), step.token
        verified = target.verify(wanted.tokens[PROMPT:])
        found = {
            "logits": _relative(verified.logits, wanted.logits),
            "activations": _relative(verified.activations, wanted.activations),
            "draft state": _relative(state, wanted.state),
        }
    kind = model.manifest.recipe
    limit = DIFFERS.get(kind, DIFFERS["other"])
    said = ", ".join(f"{name} {difference:.1e}" for name, difference in found.items())
    if not all(difference <= limit for difference in found.values()):
        raise FailedError(f"{said} of the norm away from the checkpoints; with {kind} weights up to {limit:g} is rounding.")
    return f"{said} of the norm; drafted {token}, the checkpoints {wanted.draft_token}"


def _relative(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
