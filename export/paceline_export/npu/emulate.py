"""A bundle's compiled programs on an emulator, through the whole loop, beside the same graphs on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from paceline.backends.litert.model import Environment
from paceline.backends.names import NPU
from paceline.bundle import Bundle
from paceline.errors import InputError, PacelineError
from paceline.machine import usable_cores
from paceline.model import Model
from paceline.npu.backend import NpuBackend, compiled_for, npu_files, read_profile
from paceline.npu.profile import PARTS
from paceline.npu.runners import LiteRtKernels, Runner
from paceline.text import load_tokenizer
from paceline_export.npu.compare import ALIKE, Compared, ComparingRunner, compared
from paceline_export.npu.emulator import HexagonEmulator


@dataclass(frozen=True)
class Emulation:
    """What came of it.

    Attributes:
        cosines: part -> the smallest of all calls.
        difference: the largest between two logits of the target.
    """

    soc: str
    dtype: str
    texts: list[Compared]
    cosines: dict[str, float]
    difference: float

    @property
    def agrees(self) -> bool:
        """Whether nothing but rounding sets the two apart."""
        alike = all(cosine >= ALIKE[self.dtype] for cosine in self.cosines.values())
        return alike and all(text.explained(self.difference) for text in self.texts)


def apart(folder: Path, soc: str, prompts: Sequence[str], new_tokens: int, drafts: int) -> Emulation:
    """`emulate` in a process of its own, which an emulator that fails takes along.

    Raises:
        PacelineError: it did; or as `emulate`.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(_opened, folder, soc, prompts, new_tokens, drafts).result()
        except BrokenProcessPool:
            raise PacelineError(
                f"the emulator broke off while it ran the programs for {soc}; it cannot run those with shared weights, so "
                "export the bundle anew and compile it without --share-weights."
            ) from None


def _opened(folder: Path, *options: Any) -> Emulation:
    return emulate(Bundle.open(folder), *options)


def emulate(bundle: Bundle, soc: str, prompts: Sequence[str], new_tokens: int, drafts: int) -> Emulation:
    """Continues prompts on both.

    Args:
        bundle: opened, and compiled for `soc`.

    Raises:
        InputError: the bundle lacks graphs for the chip, or the emulator is not installed or knows no such chip.
    """
    profile = read_profile(bundle)
    kernels = LiteRtKernels(Environment(), npu_files(bundle), usable_cores())
    emulator = HexagonEmulator(compiled_files(bundle, soc), soc)
    listed = {part: profile.signatures(bundle.manifest, part) for part in PARTS}
    runner = ComparingRunner(emulator, kernels, profile, listed)
    models = _model(bundle, runner), _model(bundle, kernels)
    texts = list(compared(*models, prompts, new_tokens, drafts))
    cosines = {part: min(noted) for part, noted in runner.cosines.items()}
    return Emulation(soc, profile.dtype, texts, cosines, runner.difference)


def compiled_files(bundle: Bundle, soc: str) -> dict[str, Path]:
    """The graphs that were compiled for a chip, by part.

    Raises:
        InputError: there are none; the text names the chips that there are.
    """
    graphs = bundle.manifest.graphs.get(f"{NPU}.{soc}")
    if graphs is None:
        held = ", ".join(compiled_for(bundle)) or "none"
        raise InputError(
            f"{bundle.folder} is compiled for {held}, and not for {soc}; run: paceline npu compile {bundle.folder} --soc {soc}"
        )
    return {part: bundle.folder / name for part, name in graphs.parts.items()}


def _model(bundle: Bundle, runner: Runner) -> Model:
    backend = NpuBackend(bundle, runner, PARTS, None, weight_cache=False)
    return Model(bundle, load_tokenizer(bundle.folder), backend, backend.profile.contexts[-1])
