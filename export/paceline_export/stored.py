"""The pair of a bundle, as its .tflite files store it: for graphs of another profile with the very same weights.

Weights keep their packed integers and scales, so nothing is rounded twice and no checkpoint is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paceline.backends.names import LITERT
from paceline.bundle import DRAFTER_CONFIG, TARGET_CONFIG, Bundle
from paceline.errors import InputError
from paceline.stored_weights import WEIGHTS_FILE, StoredWeight, read_weights
from paceline_export.checkpoint import Drafter, Target, read_json
from paceline_export.config import drafter_config, target_config
from paceline_export.lower.tflite import DRAFTER, TARGET
from paceline_export.lower.tflite_read import StoredTensors, stored_tensors
from paceline_export.model.drafter import drafter_shapes
from paceline_export.model.target import target_shapes
from paceline_export.recipes import F32, SCHEMES, Schemes
from paceline_export.rounding import Rounding
from paceline_export.weights import Shapes, Weight, Weights


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
        if not (bundle.folder / name).is_file():
            raise InputError(f"{bundle.folder} has no {name}; export it again with this version of paceline.")
    target = target_config(read_json(bundle.folder / TARGET_CONFIG), str(bundle.folder / TARGET_CONFIG))
    drafter = drafter_config(read_json(bundle.folder / DRAFTER_CONFIG), str(bundle.folder / DRAFTER_CONFIG), target)
    tensors = {f"{part}.tflite": stored_tensors(bundle.folder / file) for part, file in graphs.parts.items()}
    listed = read_weights(bundle.folder)
    target_weights, target_schemes = _weights(bundle, listed, "target", target_shapes(target), tensors[TARGET])
    drafter_weights, drafter_schemes = _weights(bundle, listed, "drafter", drafter_shapes(drafter), tensors[DRAFTER])
    return StoredPair(
        Target(bundle.folder, target, target_weights),
        Drafter(bundle.folder, drafter, drafter_weights),
        Rounding(target_schemes),
        Rounding(drafter_schemes),
        tensors,
    )


def _weights(
    bundle: Bundle, listed: list[StoredWeight], model: str, shapes: Shapes, tensors: StoredTensors
) -> tuple[Weights, Schemes]:
    ours = {weight.name: weight for weight in listed if weight.model == model}
    if {name: weight.shape for name, weight in ours.items()} != shapes:
        raise InputError(f"{bundle.folder / WEIGHTS_FILE} does not list the {model} of its config; export the bundle again.")
    weights = {name: Weight(name, shape, partial(_integers, tensors, name, shape)) for name, shape in shapes.items()}
    return weights, {name: SCHEMES[w.stored_as] for name, w in ours.items() if w.stored_as != F32.name}


def _integers(tensors: StoredTensors, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    return tensors[name].content.view(np.int32).astype(np.int64).reshape(shape)
