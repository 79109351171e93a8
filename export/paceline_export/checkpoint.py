"""A local Hugging Face checkpoint directory, read lazily: one tensor in memory at a time.

Format: https://github.com/huggingface/safetensors (README, section Format); shards by `model.safetensors.index.json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - registers bfloat16 with numpy, which safetensors looks up by name
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from paceline import reading
from paceline.bundle import GENERATION_CONFIG
from paceline.errors import InputError
from paceline_export.config import DrafterConfig, TargetConfig, drafter_config, target_config
from paceline_export.fields import Fields
from paceline_export.model.drafter import drafter_shapes
from paceline_export.model.target import target_shapes
from paceline_export.weights import Shapes, Weight, Weights

CONFIG = "config.json"
FLOATS = ("BF16", "F16", "F32")
INTEGERS = ("I32", "I64")
ORDERING = "masked_embedding.token_ordering"  # the one tensor that holds integers
MULTIMODAL_PREFIX, TEXT_PREFIX = "model.language_model.", "model."
NAMES_IN_MESSAGE = 6


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies: its shard, its name there, and its safetensors dtype."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> NDArray[Any]:
        """The values as float32, or int64 for integers."""
        return self._values(lambda shard: shard.get_tensor(self.name))

    def read_rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start to stop of the first axis, as `read` gives them."""
        return self._values(lambda shard: shard.get_slice(self.name)[start:stop])

    def _values(self, get: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        try:
            with safe_open(self.file, framework="numpy") as shard:
                values = get(shard)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{self.file}: {self.name} cannot be read ({error}); download the file again.") from None
        return values.astype(np.int64 if self.dtype in INTEGERS else np.float32)


@dataclass(frozen=True)
class Target:
    """A target checkpoint: its directory, configuration and weights as handles."""

    folder: Path
    config: TargetConfig
    weights: Weights


@dataclass(frozen=True)
class Drafter:
    """A drafter checkpoint that fits its target."""

    folder: Path
    config: DrafterConfig
    weights: Weights


def open_pair(target_folder: Path, drafter_folder: Path) -> tuple[Target, Drafter]:
    """Opens both checkpoints; configurations are checked against each other before any weight file is opened.

    Raises:
        InputError: a directory, file, field or tensor is missing, not as expected or not supported.
    """
    raw_target, target_file = _read_config(target_folder, "TARGET")
    raw_drafter, drafter_file = _read_config(drafter_folder, "the drafter")
    target = target_config(raw_target, str(target_file))
    drafter = drafter_config(raw_drafter, str(drafter_file), target)
    return (
        Target(target_folder, target, _target_weights(target_folder, target)),
        Drafter(drafter_folder, drafter, _weights(drafter_folder, drafter_shapes(drafter), stored_tensors(drafter_folder))),
    )


def open_target(folder: Path) -> Target:
    """Opens a target alone. Raises as `open_pair`."""
    raw, file = _read_config(folder, "TARGET")
    config = target_config(raw, str(file))
    return Target(folder, config, _target_weights(folder, config))


def stop_ids(target: Target) -> tuple[int, ...]:
    """The union of what config.json and generation_config.json call an end."""
    file = target.folder / GENERATION_CONFIG
    more = Fields(read_json(file), str(file)).ids("eos_token_id") if file.is_file() else ()
    return tuple(sorted({*target.config.eos_ids, *more}))


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Name -> place of every tensor in the directory's weight file or shards; only headers are read."""
    stored: dict[str, Stored] = {}
    for file in _shards(folder):
        try:
            with safe_open(file, framework="numpy") as shard:
                for name in shard.keys():  # noqa: SIM118 - not a dict
                    view = shard.get_slice(name)
                    stored[name] = Stored(file, name, view.get_dtype(), tuple(view.get_shape()))
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file} is not a complete safetensors file ({error}); download it again.") from None
    return stored


def read_json(file: Path) -> Any:
    """Parses a JSON file of a checkpoint."""
    try:
        return reading.read_json(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as JSON ({error}); download it again.") from None


def _read_config(folder: Path, what: str) -> tuple[dict[str, Any], Path]:
    if not folder.is_dir():
        hint = "give the path of a directory with config.json and model.safetensors."
        if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(folder)):
            hint = f"to fetch it from the hub: hf download {folder} --local-dir {folder.name}"
        raise InputError(f"{what} {str(folder)!r} is not a local directory; {hint}")
    file = folder / CONFIG
    if not file.is_file():
        raise InputError(f"{file} is missing; {what} must be a Hugging Face checkpoint directory.")
    return read_json(file), file


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise InputError(f"{folder} has neither model.safetensors nor {index.name}; download the weights, too.")
    raw = read_json(index)
    weight_map = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(x, str) for x in weight_map.values()):
        raise InputError(f"{index}: weight_map is {type(weight_map).__name__}; a map from tensor to shard is needed.")
    names = sorted(set(weight_map.values()))
    for name in names:
        if not reading.is_plain_name(name) or not (folder / name).is_file():  # a link is what a hub's cache has for a file
            raise InputError(f"{index} names the shard {name!r}, which is not in {folder}; download it, too.")
    return [folder / name for name in names]


def _target_weights(folder: Path, config: TargetConfig) -> Weights:
    """Renames a multimodal checkpoint's text tensors, and drops what the text path never reads."""
    stored = stored_tensors(folder)
    if config.multimodal:
        start = len(MULTIMODAL_PREFIX)
        stored = {TEXT_PREFIX + n[start:]: s for n, s in stored.items() if n.startswith(MULTIMODAL_PREFIX)}
    # Published checkpoints carry key and value projections also for layers that share the rows of another one,
    # and some tools store the tied head a second time.
    unused = {
        f"{TEXT_PREFIX}layers.{layer.index}.self_attn.{name}.weight"
        for layer in config.shared_layers
        for name in ("k_proj", "v_proj", "k_norm")
    } | {"lm_head.weight"}
    return _weights(folder, target_shapes(config), {n: s for n, s in stored.items() if n not in unused})


def _weights(folder: Path, expected: Shapes, stored: dict[str, Stored]) -> Weights:
    misshapen = [n for n, s in stored.items() if expected.get(n, s.shape) != s.shape]
    problems = [
        _listed("missing", [n for n in expected if n not in stored]),
        _listed("unexpected", [n for n in stored if n not in expected]),
        _listed(
            "of another shape",
            [f"{n} {list(stored[n].shape)} instead of {list(expected[n])}" for n in misshapen],
        ),
        _listed(
            "of a dtype that cannot be read",
            [f"{n} {s.dtype}" for n, s in stored.items() if s.dtype not in (INTEGERS if n == ORDERING else FLOATS)],
        ),
    ]
    if any(problems):
        raise InputError(
            f"{folder}: tensors do not match config.json: {'; '.join(p for p in problems if p)}. "
            f"Allowed dtypes are {', '.join(FLOATS)} ({ORDERING}: {', '.join(INTEGERS)}); "
            "is the checkpoint complete and of this configuration?"
        )
    return {name: Weight(name, shape, stored[name].read, stored[name].read_rows) for name, shape in expected.items()}


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - NAMES_IN_MESSAGE} more" if len(names) > NAMES_IN_MESSAGE else ""
    return f"{what}: {', '.join(names[:NAMES_IN_MESSAGE])}{more}"
