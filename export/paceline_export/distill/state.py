"""Where a training run stands, in one file that is whole: it goes on from there after an interruption."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline import reading
from paceline.errors import InputError
from paceline.partial import partial_name
from paceline_export.distill.loss import STEPS, Agreement
from paceline_export.distill.save import write_tensors

KEY = "paceline.distill"
NOW, BEST, OPTIMIZER = "now.", "best.", "optimizer."


@dataclass(frozen=True)
class Point:
    """An evaluation on held-out text.

    Attributes:
        loss: mean over the steps since the last one, nats; None before the first step.
    """

    step: int
    seconds: float
    loss: float | None
    agreement: Agreement


@dataclass(frozen=True)
class State:
    """All that the rest of a run depends on.

    Attributes:
        of: what the run is about, in words; a file of another run is refused.
        points: so far, the first before any training.
        now, best: the drafter's tensors, and those of the best point.
        optimizer: see `Optimizer.state`.
    """

    of: str
    step: int
    seconds: float
    points: list[Point]
    now: Mapping[str, Tensor]
    best: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]

    def write(self, file: Path) -> None:
        """Replaces the file, whole or not at all. Raises OSError, which names the file."""
        kinds = ((NOW, self.now), (BEST, self.best), (OPTIMIZER, self.optimizer))
        tensors = {
            f"{kind}{name}": each.detach().cpu().contiguous().clone() for kind, own in kinds for name, each in own.items()
        }
        said = {"of": self.of, "step": self.step, "seconds": self.seconds, "points": [asdict(point) for point in self.points]}
        unfinished = partial_name(file)
        try:
            write_tensors(tensors, unfinished, {KEY: json.dumps(said)})
            with open(unfinished, "rb") as stream:
                os.fsync(stream.fileno())
            unfinished.replace(file)
        except OSError as error:
            error.filename = str(file)
            raise
        finally:
            with suppress(OSError):
                unfinished.unlink()

    @classmethod
    def read(cls, file: Path, of: str) -> State:
        """What `write` wrote.

        Raises:
            InputError: it cannot be read, or is of another run.
        """
        step = f"remove {file} to begin anew"
        try:
            with safe_open(file, framework="pt") as opened:
                said = reading.parse_json((opened.metadata() or {})[KEY])
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
            points = [_point(raw) for raw in said["points"]]
            found, where = str(said["of"]), (int(said["step"]), float(said["seconds"]))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{file} is not what an interrupted run leaves ({error}); {step}.") from None
        if found != of:
            raise InputError(f"{file} is of another run: {found}; this one is: {of}. Give the same options, or {step}.")
        kinds = ({n.removeprefix(kind): t for n, t in tensors.items() if n.startswith(kind)} for kind in (NOW, BEST, OPTIMIZER))
        return cls(found, *where, points, *kinds)

    def require_fit(self, tensors: Mapping[str, Tensor], file: Path) -> None:
        """Checks that both states are of a drafter with these tensors. Raises InputError."""
        wanted = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        if any({name: (own.shape, own.dtype) for name, own in kept.items()} != wanted for kept in (self.now, self.best)):
            raise InputError(f"{file} does not hold this drafter's tensors; remove it to begin anew.")


def _point(raw: Mapping[str, Any]) -> Point:
    own, dense = ([float(share) for share in raw["agreement"][kind]] for kind in ("own", "dense"))
    if len(own) != STEPS:
        raise ValueError(f"an evaluation of {len(own)} positions")
    loss = None if raw["loss"] is None else float(raw["loss"])
    return Point(int(raw["step"]), float(raw["seconds"]), loss, Agreement(int(raw["agreement"]["rounds"]), own, dense))
