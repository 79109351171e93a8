"""The pair of a bundle, as its .tflite files store it: for graphs of another profile with the very same weights.

Weights keep their packed integers and scales, so nothing is rounded twice and no checkpoint is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from paceline.backends.names import LITERT
from paceline.bundle import DRAFTER_CONFIG, TARGET_CONFIG, Bundle
from paceline.errors import InputError
from paceline.stored_weights import WEIGHTS_FILE, StoredWeight, read_weights
from paceline_export.checkpoint import Drafter, Target, read_json
from paceline_export.config import drafter_config, target_config
from paceline_export.lower.tflite import DRAFTER, EMBEDDER, PER_LAYER_EMBEDDER, TARGET
from paceline_export.lower.tflite_read import StoredTensors, stored_tensors
from paceline_export.model.drafter import drafter_shapes
from paceline_export.model.target import target_shapes
from paceline_export.quantize import Scheme
from paceline_export.recipes import F32, SCHEMES, Schemes
from paceline_export.rounding import Rounding
from paceline_export.weights import Shapes, Weight, Weights

VALUES_A_BYTE = 2  # at most: of int4


@dataclass(frozen=True)
class StoredPair:
    """The pair of a bundle.

    Attributes:
        target, drafter: whose weights are handles without values, but for the integers among them.
        target_rounding, drafter_rounding: schemes of the weights.
        tensors: file of the graphs, by the name that this exporter gives it -> what it stores, by name.
    """

    target: Target
    drafter: Drafter
    target_rounding: Rounding
    drafter_rounding: Rounding
    tensors: Mapping[str, StoredTensors]


def open_stored(bundle: Bundle) -> StoredPair:
    """Opens the pair of a bundle that has TFLite graphs.

    Raises:
        InputError: it has none, lacks a file that tells of the weights, or these do not fit together.
    """
    graphs = bundle.manifest.graphs.get(LITERT)
    if graphs is None:
        raise InputError(f"{bundle.folder} has no TFLite graphs to take the weights from; export it with --format tflite.")
    for name in (TARGET_CONFIG, DRAFTER_CONFIG, WEIGHTS_FILE):
        if name not in bundle.manifest.files:
            raise InputError(f"{bundle.folder} has no {name}; export it again with this version of paceline.")
    target = target_config(read_json(bundle.folder / TARGET_CONFIG), str(bundle.folder / TARGET_CONFIG))
    drafter = drafter_config(read_json(bundle.folder / DRAFTER_CONFIG), str(bundle.folder / DRAFTER_CONFIG), target)
    listed, shapes = read_weights(bundle.folder), (target_shapes(target), drafter_shapes(drafter))
    tensors = {f"{part}.tflite": stored_tensors(bundle.folder / file) for part, file in graphs.parts.items()}
    wanted = {TARGET, DRAFTER, EMBEDDER} | ({PER_LAYER_EMBEDDER} if target.per_layer_size else set())
    if wanted != set(tensors):
        parts = [", ".join(sorted(names)) for names in (tensors, wanted)]
        raise InputError(f"{bundle.folder} has the graphs {parts[0]}; this model needs {parts[1]}; export the bundle again.")
    _require_values(bundle, shapes, tensors)
    target_weights, target_schemes = _weights(bundle, listed, "target", shapes[0], tensors[TARGET])
    drafter_weights, drafter_schemes = _weights(bundle, listed, "drafter", shapes[1], tensors[DRAFTER])
    return StoredPair(
        Target(bundle.folder, target, target_weights),
        Drafter(bundle.folder, drafter, drafter_weights),
        Rounding(target_schemes),
        Rounding(drafter_schemes),
        tensors,
    )


def _require_values(bundle: Bundle, shapes: Iterable[Shapes], tensors: Mapping[str, StoredTensors]) -> None:
    """Nothing is made of a configuration's sizes before the files are known to be as large."""
    values = sum(prod(shape) for model in shapes for shape in model.values())
    held = sum(len(tensor.content) for file in tensors.values() for tensor in file.values())
    if values > held * VALUES_A_BYTE:
        raise InputError(
            f"{bundle.folder} has graphs with {held} bytes of weights, and {TARGET_CONFIG} and {DRAFTER_CONFIG} describe "
            f"{values} values; export the bundle again."
        )


def _weights(
    bundle: Bundle, listed: list[StoredWeight], model: str, shapes: Shapes, tensors: StoredTensors
) -> tuple[Weights, Schemes]:
    ours = {weight.name: weight for weight in listed if weight.model == model}
    if {name: weight.shape for name, weight in ours.items()} != shapes:
        raise InputError(f"{bundle.folder / WEIGHTS_FILE} does not list the {model} of its config; export the bundle again.")
    weights = {name: Weight(name, shape, partial(_integers, tensors, name, shape)) for name, shape in shapes.items()}
    return weights, {name: _scheme(bundle, weight) for name, weight in ours.items() if weight.stored_as != F32.name}


def _scheme(bundle: Bundle, weight: StoredWeight) -> Scheme:
    scheme = SCHEMES.get(weight.stored_as)
    if scheme is None or not scheme.fits(weight.shape):
        raise InputError(
            f"{bundle.folder / WEIGHTS_FILE}: {weight.name} {list(weight.shape)} is stored as {weight.stored_as}; allowed are "
            f"{F32.name} and, where its rows are whole blocks, {', '.join(SCHEMES)}; export the bundle again."
        )
    return scheme


def _integers(tensors: StoredTensors, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    held, needed = len(tensors[name].content) if name in tensors else 0, prod(shape) * np.dtype(np.int32).itemsize
    if held != needed:
        raise InputError(f"the bundle's graphs hold {held} bytes of {name}, which needs {needed}; export the bundle again.")
    return tensors[name].content.view(np.int32).astype(np.int64).reshape(shape)
