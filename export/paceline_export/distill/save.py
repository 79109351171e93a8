"""Writes a trained drafter the way drafters are published: a Hugging Face checkpoint, complete or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from errno import EIO
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from paceline.bundle import GENERATION_CONFIG
from paceline.errors import InputError
from paceline.text import TOKENIZER_FILE
from paceline_export.checkpoint import CONFIG
from paceline_export.complete import complete_or_nothing
from paceline_export.weights import Shapes

COPIED = (TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json", GENERATION_CONFIG)
GB = 1e9
STATE_NUMBERS, SPARE_BYTES = 5, 64 << 20  # of a kept state for each of the drafter's numbers; config.json and the tokenizer


def save(out: Path, raw: Mapping[str, Any], tensors: Mapping[str, Tensor], beside: Path) -> None:
    """Writes config.json, model.safetensors (bfloat16) and the tokenizer's files.

    Args:
        out: a directory that does not exist.
        raw: the drafter's config.json.
        tensors: as they are named in a checkpoint.
        beside: the checkpoint whose tokenizer and generation settings are copied.

    Raises:
        InputError: `out` has been made meanwhile.
        OSError: it cannot be written.
    """
    stored = {
        name: tensor.detach().cpu().to(torch.bfloat16) if tensor.is_floating_point() else tensor.detach().cpu()
        for name, tensor in tensors.items()
    }
    with complete_or_nothing(out) as folder:
        ordered = {name: stored[name].contiguous() for name in sorted(stored)}
        write_tensors(ordered, folder / "model.safetensors", {"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        for name in COPIED:
            if (beside / name).is_file():
                shutil.copyfile(beside / name, folder / name)


def write_tensors(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
    """A safetensors file. Raises OSError, for which the library has an error of its own."""
    try:
        save_file(tensors, file, metadata)
    except SafetensorError as error:
        raise OSError(EIO, str(error), str(file)) from None


def require_place(out: Path, shapes: Shapes) -> None:
    """Checks that `out` is free and that the disk has room for a drafter and the state of its training.

    Raises:
        InputError: it has not; the text has the numbers.
    """
    if out.exists():
        raise InputError(f"{out} exists already; choose another output directory, or remove it first.")
    folder = next(parent for parent in out.absolute().parents if parent.is_dir())
    needed = (2 + 4 * STATE_NUMBERS) * sum(map(prod, shapes.values())) + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"{folder} has {free / GB:.2f} GB of free space and training needs about {needed / GB:.2f} GB for the drafter "
            "and the state to go on from; make room, or choose another directory with -o."
        )
