"""What a training run needs of memory, and how the target is kept so that it fits; asked before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

import psutil
import torch

from paceline.errors import InputError
from paceline_export.checkpoint import Target
from paceline_export.config import DrafterConfig
from paceline_export.distill.observed import FrozenTarget
from paceline_export.distill.plan import HELD_OUT_STEPS, LONG, SHORT
from paceline_export.distill.rounds import CHUNK_NUMBERS
from paceline_export.distill.train import HELD_OUT_BATCH
from paceline_export.lower.held import Streamed, read_into_memory
from paceline_export.model.drafter import drafter_shapes
from paceline_export.recipes import Schemes

GB = 1e9
PROCESS_BYTES = 400 << 20  # torch itself
# float32 numbers for each of the drafter's: its weight, as it is stored, gradient, two averages, the best so far, a copy of
# what is written, and what rounding works on.
COPIES = 9
CHUNKS = 6  # vocabulary-wide arrays: the target's scores and probabilities, the drafter's for a step, and their gradients
LAYER_ARRAYS = 8  # of a layer's widest size that are there at a time


class Kept(Enum):
    """How the target's weights are kept; all are computed with as float32, a tensor at a time."""

    FLOAT32 = "held as float32"
    BFLOAT16 = "held as bfloat16"
    STREAMED = "read from disk at every step"


@dataclass(frozen=True)
class Needs:
    """Bytes of a run, by how the target is kept."""

    by_kept: dict[Kept, int]
    available: int
    where: str

    def chosen(self) -> Kept:
        """The first that fits.

        Raises:
            InputError: none does.
        """
        for kept, needed in self.by_kept.items():
            if needed <= self.available:
                return kept
        kept, needed = min(self.by_kept.items(), key=lambda item: item[1])
        raise InputError(
            f"{self.where} has {self.available / GB:.1f} GB of memory available and training needs about {needed / GB:.1f} GB "
            f"with the target {kept.value}; close other programs, make --batch-tokens smaller, or use a larger machine."
        )

    def sentence(self) -> str:
        """What is said before training starts."""
        kept = self.chosen()
        return (
            f"memory: about {self.by_kept[kept] / GB:.1f} GB of {self.available / GB:.1f} GB available on {self.where}, "
            f"the target {kept.value}"
        )


def needs(target: Target, drafter: DrafterConfig, batch_tokens: int, device: str) -> Needs:
    """What training on batches of so many tokens takes."""
    shapes = {name: prod(weight.shape) for name, weight in target.weights.items()}
    own = COPIES * 4 * sum(map(prod, drafter_shapes(drafter).values()))
    config = target.config
    batch = max(batch_tokens, LONG)
    widest = max(*(layer.intermediate for layer in config.layers), *(layer.heads * layer.head_dim for layer in config.layers))
    rows = 4 * batch * (LAYER_ARRAYS * widest + 4 * config.hidden_size + len(config.layers) * config.per_layer_size * 3)
    attention = 4 * 3 * batch * LONG * max(layer.heads for layer in config.layers)
    kv_row = sum(2 * layer.kv_heads * layer.head_dim for layer in config.own_layers)
    held_out = 4 * HELD_OUT_STEPS * batch * (kv_row + config.hidden_size)
    chunk = 4 * CHUNKS * max(CHUNK_NUMBERS, max(HELD_OUT_BATCH, batch // SHORT) * config.vocab_size)
    chunk = min(chunk, 4 * CHUNKS * batch * config.vocab_size)
    drafting = 4 * 4 * batch * sum(8 * layer.intermediate + 8 * drafter.hidden_size for layer in drafter.layers)
    working = PROCESS_BYTES + own + rows + attention + held_out + chunk + drafting
    # The per-layer table is looked up by row, and never whole.
    matrices = 4 * max(count for name, count in shapes.items() if "per_layer.weight" not in name)
    by_kept = {
        Kept.FLOAT32: working + 4 * sum(shapes.values()),
        Kept.BFLOAT16: working + 2 * sum(shapes.values()) + matrices,
    }
    if device == "cpu":
        return Needs(by_kept | {Kept.STREAMED: working + 2 * matrices}, psutil.virtual_memory().available, "this machine")
    free, _ = torch.cuda.mem_get_info(device)
    return Needs(by_kept, free, device)


def freeze(target: Target, schemes: Schemes, kept: Kept, device: str) -> FrozenTarget:
    """Reads a target for a drafter to learn from, its weights rounded by `schemes`.

    Raises:
        InputError: a value is not finite.
    """
    if kept is Kept.STREAMED:
        return FrozenTarget(target.config, target.weights, Streamed(target.weights, schemes), device)
    dtype = torch.float32 if kept is Kept.FLOAT32 else torch.bfloat16
    return FrozenTarget(target.config, target.weights, read_into_memory(target.weights, schemes, dtype, device), device)


def device_of(name: str) -> str:
    """The device of an option.

    Raises:
        InputError: torch has no such device here.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device is cuda and torch {torch.__version__} finds no GPU; give cpu, or install torch for CUDA.")
    return name
