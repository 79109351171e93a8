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


def e2b_slice(folder: Path) -> tuple[Path, Path]:
    """Random checkpoints with E2B's own sizes, but for the number of layers and of tokens."""
    import full_size
    import tiny

    from paceline_export.config import drafter_config, target_config
    from paceline_export.model.drafter import drafter_shapes
    from paceline_export.model.target import target_shapes

    published, drafter = full_size.fields("e2b")
    fewer = {"vocab_size": tiny.VOCABULARY * 8, "vocab_size_per_layer_input": tiny.VOCABULARY * 8}
    layers = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": [full_size.LOCAL, full_size.FULL] * 2}
    target = published["text_config"] | {"architectures": ["Gemma4ForCausalLM"]} | fewer | layers
    drafter |= {"num_centroids": 64, "text_config": drafter["text_config"] | fewer}
    config = target_config(target, "target")
    full_size.write(folder / "target", target, target_shapes(config))
    full_size.write(folder / "drafter", drafter, drafter_shapes(drafter_config(drafter, "drafter", config)))
    tiny.tokenizer().save(str(folder / "target" / "tokenizer.json"))
    return folder / "target", folder / "drafter"
