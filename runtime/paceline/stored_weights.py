"""What a bundle's weights are stored as, and what rounding them cost: `weights.json`, for people and for comparisons."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path

from paceline.errors import InputError
from paceline.reading import read_json

WEIGHTS_FILE = "weights.json"


@dataclass(frozen=True)
class StoredWeight:
    """One tensor of the checkpoint.

    Attributes:
        model: "target" or "drafter".
        stored_as: "f32", or bits and scales as in a recipe's name.
        bytes: of integers and scales as the scheme has them; a format may repeat or pad them.
        relative_error: norm of the difference to the checkpoint's values, of the norm of these.

    Raises:
        ValueError: a field is of another type, or a number is out of range.
    """

    model: str
    name: str
    shape: tuple[int, ...]
    stored_as: str
    bytes: int
    relative_error: float

    def __post_init__(self) -> None:
        for text in (self.model, self.name, self.stored_as):
            if not isinstance(text, str):
                raise ValueError(f"{text!r} is not a text")
        for size in (*self.shape, self.bytes):
            if type(size) is not int or size < 0:
                raise ValueError(f"the size {size!r} of {self.name} is not a whole number from 0 on")
        if not isinstance(self.relative_error, int | float) or not 0 <= self.relative_error <= 1:
            raise ValueError(f"the error {self.relative_error!r} of {self.name} is not a number from 0 to 1")


def write_weights(folder: Path, weights: Sequence[StoredWeight]) -> None:
    """Writes the file into a bundle under construction."""
    lines = ",\n".join(json.dumps(asdict(weight)) for weight in weights)
    (folder / WEIGHTS_FILE).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def read_weights(folder: Path) -> list[StoredWeight]:
    """Reads a bundle's file.

    Raises:
        InputError: there is none, or it is not as `write_weights` makes it.
    """
    file = folder / WEIGHTS_FILE
    try:
        weights = [StoredWeight(**row | {"shape": tuple(row["shape"])}) for row in read_json(file)]
        if not weights:
            raise ValueError("it lists none")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{file} does not list a bundle's weights ({error}); export the bundle again.") from None
    return weights


def summary(weights: Sequence[StoredWeight]) -> str:
    """Bytes, the error over all weights, and the worst of them."""
    size = sum(weight.bytes for weight in weights)
    worst = max(weights, key=lambda weight: weight.relative_error)
    rounded = [weight for weight in weights if weight.stored_as != "f32"]
    if not rounded:
        return f"weights: {size / 1e6:,.1f} MB, all float32"
    middle = sqrt(sum(weight.relative_error**2 for weight in rounded) / len(rounded))
    return (
        f"weights: {size / 1e6:,.1f} MB; {len(rounded)} are rounded, with a relative error of {middle:.1%} (mean square) and "
        f"{worst.relative_error:.1%} at most: {worst.name} of the {worst.model}, {worst.stored_as}"
    )
