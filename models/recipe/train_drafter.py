"""Trains the small drafter as `paceline distill --fresh` would, on the corpus's own mixture."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import data
import pair
import torch
from torch import Tensor

from paceline_export.distill.plan import FRESH_PHASES, SHORT, Plan
from paceline_export.distill.start import start
from paceline_export.distill.text import spread_windows
from paceline_export.distill.train import Moment
from paceline_export.distill.train import train as distil
from paceline_export.model.target import TABLE

HELD_OUT_WINDOWS = 32  # that reports are about


def train(folder: Path, minutes: float, seed: int = 0) -> dict[str, Tensor]:
    """Trains for `minutes` and returns the tensors; the state is kept in `folder` at every report.

    The target's values are the rounded ones that are published.
    """
    target = pair.frozen(pair.rounded(torch.load(folder / "target.pt")))
    trained = distil(
        target,
        pair.DRAFTER,
        start(pair.DRAFTER, target.tensors[TABLE], seed),
        data.batches(folder, seed + 2),
        spread_windows(data.read(folder, "held_out"), SHORT, HELD_OUT_WINDOWS, data.BOS),
        Plan(minutes=minutes, phases=FRESH_PHASES),
        _report,
        folder / "drafter.training",
        f"the small drafter, {minutes} minutes",
    )
    torch.save(trained.tensors, folder / "drafter.pt")
    return trained.tensors


def _report(moment: Moment) -> None:
    if moment.point:
        print(json.dumps(dataclasses.asdict(moment.point)), flush=True)
