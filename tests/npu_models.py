"""Bundles with graphs for neural processors, and models that run them on LiteRT's own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.backends.litert.model import Environment
from paceline.bundle import Bundle
from paceline.model import Model
from paceline.npu.backend import NpuBackend, npu_files
from paceline.npu.runners import LiteRtKernels, Runner
from paceline.prompts import PROMPTS
from paceline.text import load_tokenizer
from paceline_export.bundle import export
from paceline_export.npu.write import NpuOptions
from paceline_export.recipes import F32

BOTH = ("target", "drafter")
MEASURED_ON = PROMPTS[:3]


def exported(
    target: Path,
    drafter: Path,
    out: Path,
    contexts: tuple[int, ...] = (256,),
    prompts: tuple[str, ...] = MEASURED_ON,
    **options: Any,
) -> Path:
    """A float32 bundle with static graphs."""
    export(target, drafter, out, lambda *_: None, recipe=F32, npu=NpuOptions(prompts, contexts=contexts, **options))
    return out


def model(folder: Path, placed: Sequence[str] = BOTH, profile: str = "npu", runner: Runner | None = None) -> Model:
    """A bundle with some of the pair on its static graphs, which LiteRT's kernels run."""
    bundle = Bundle.open(folder)
    runner = runner or LiteRtKernels(Environment(), npu_files(bundle, profile), 1)
    backend = NpuBackend(bundle, runner, placed, 1, False, profile)
    return Model(bundle, load_tokenizer(folder), backend, backend.profile.contexts[-1])


def tokens(model: Model, prompt: str | Sequence[int], count: int = 24, **options: Any) -> list[int]:
    """What a model writes."""
    return [piece.token for piece in model.generate(prompt, max_new_tokens=count, **options)]
