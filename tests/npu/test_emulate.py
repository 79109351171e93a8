"""The very bytes that a compiler made, on an emulator of the chip, beside LiteRT's kernels on the graphs they were made of."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ran, refused
from npu_models import BOTH, e2b_slice, exported, model, tokens
from npu_tools import qnn_or_skip
from numpy.typing import NDArray
from small_pair import PROMPTS

from paceline.backends.litert.model import Environment
from paceline.bundle import Bundle
from paceline.model import Model
from paceline.npu.backend import npu_files, read_profile
from paceline.npu.runners import LiteRtKernels
from paceline_export.npu.chips import QUALCOMM
from paceline_export.npu.compare import ALIKE, Compared, ComparingRunner
from paceline_export.npu.compile import compile_file
from paceline_export.npu.emulate import Emulation, compiled_files
from paceline_export.npu.emulator import HexagonEmulator

SOC = "SM8750"


@pytest.fixture(scope="module")
def runner(compiled_bundle: Path) -> ComparingRunner:
    """The emulator, compared with the kernels at every call."""
    bundle = Bundle.open(compiled_bundle)
    kernels = LiteRtKernels(Environment(), npu_files(bundle), 1)
    listed = {part: read_profile(bundle).signatures(bundle.manifest, part) for part in BOTH}
    return ComparingRunner(HexagonEmulator(compiled_files(bundle, SOC), SOC), kernels, read_profile(bundle), listed)


@pytest.fixture(scope="module")
def emulated(compiled_bundle: Path, runner: ComparingRunner) -> Model:
    return model(compiled_bundle, runner=runner)


def test_twenty_inputs_give_the_same_token_and_nearly_the_same_logits(
    compiled_bundle: Path, emulated: Model, runner: ComparingRunner
) -> None:
    """Four rows of five texts, each processor on the KV rows that it has made itself."""
    on_cpu, rows = model(compiled_bundle), 0
    for prompt in PROMPTS[2:7]:
        found = []
        for each in (emulated, on_cpu):
            text = each.encode(prompt)
            with each.sequence() as (target, _):
                target.prefill(text[:-4])
                found.append(target.verify(text[-4:]).logits.copy())
        for one, other in zip(*found, strict=True):
            assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) >= ALIKE["int16"]
            assert one.argmax() == other.argmax()
            rows += 1
    assert rows == 20
    assert min(runner.cosines["target"]) >= ALIKE["int16"]


def test_the_whole_loop_writes_what_the_cpu_writes(compiled_bundle: Path, emulated: Model, runner: ComparingRunner) -> None:
    """Drafts and verification on the emulator, KV rows written by the CPU; the same text without drafts, too."""
    prompt = PROMPTS[6]
    drafted = list(emulated.generate(prompt, max_new_tokens=12, draft_length=3))
    written = [piece.token for piece in drafted]
    assert written == tokens(model(compiled_bundle), prompt, 12, draft_length=3)
    assert written == tokens(emulated, prompt, 12, draft_length=0)
    stats = drafted[-1].stats
    assert stats is not None
    assert stats.accepted > 0
    assert min(runner.cosines["drafter"]) >= ALIKE["int16"]


def test_the_command_says_how_near_they_are(compiled_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ran(["npu", "emulate", str(compiled_bundle), "-n", "4", "-p", PROMPTS[1], "--draft", "1"], capsys)
    assert code == 0
    assert "equal" in said
    assert "no chip has run this bundle here" in said
    assert " ms" not in said  # an emulator's times are nobody's
    assert "tokens/s" not in said


def test_a_bundle_for_another_chip_is_a_sentence(compiled_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["npu", "emulate", str(compiled_bundle), "--soc", "SM8650"], capsys)
    assert "is compiled for SM8750, and not for SM8650; run: paceline npu compile" in said


def test_an_emulator_that_breaks_off_takes_nothing_along(
    npu_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It crashes on programs that share weights."""
    qnn_or_skip()
    copy = shutil.copytree(npu_bundle, tmp_path / "bundle")
    assert ran(["npu", "compile", str(copy), "--soc", SOC, "--share-weights"], capsys)[0] == 0
    code, said = ran(["npu", "emulate", str(copy), "-n", "1", "-p", "a"], capsys)
    assert code == 3
    assert "the emulator broke off while it ran the programs for SM8750; it cannot run those with shared weights" in said


class Disturbed:
    """Kernels whose logits are moved a little, or far."""

    def __init__(self, kernels: LiteRtKernels, steps: int):
        self.kernels, self.steps = kernels, steps

    def bind(self, part: str, signature: str, arrays: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        run, noise = self.kernels.bind(part, signature, arrays), np.random.default_rng(0)

        def disturbed() -> None:
            run()
            if "logits" in arrays:
                moved = arrays["logits"] + noise.integers(-self.steps, self.steps + 1, arrays["logits"].shape)
                arrays["logits"][:] = moved.clip(-32767, 32767)

        return disturbed

    def describe(self) -> str:
        return "disturbed kernels"


@pytest.mark.parametrize(("steps", "near"), [(3, True), (9000, False)])
def test_a_comparison_notices_what_is_off(npu_bundle: Path, steps: int, near: bool) -> None:
    bundle = Bundle.open(npu_bundle)
    profile, kernels = read_profile(bundle), LiteRtKernels(Environment(), npu_files(bundle), 1)
    listed = {part: profile.signatures(bundle.manifest, part) for part in BOTH}
    comparing = ComparingRunner(Disturbed(kernels, steps), kernels, profile, listed)
    tokens(model(npu_bundle, runner=comparing), PROMPTS[1], 6, draft_length=3)
    found = Emulation(SOC, "int16", [], {part: min(each) for part, each in comparing.cosines.items()}, comparing.difference)
    assert found.agrees is near
    assert (comparing.difference < 0.02) is near


def test_only_a_margin_within_twice_the_difference_is_explained() -> None:
    assert Compared("a", "b", 5, None, 0.0).explained(0.0)
    assert Compared("a", "b", 5, 2, 0.02).explained(0.01)
    assert not Compared("a", "b", 5, 2, 0.021).explained(0.01)


@pytest.mark.slow
def test_a_drafter_step_of_e2bs_size(tmp_path: Path) -> None:
    """A step of E2B's drafter on random weights, emulated: cosine at least 0.999 and the same token."""
    qnn_or_skip()
    folder = exported(*e2b_slice(tmp_path / "pair"), tmp_path / "bundle", (512,), ("def read_lines(path):",))
    compile_file(folder / "drafter.npu.tflite", tmp_path / "compiled.tflite", SOC, QUALCOMM, False)
    emulator = HexagonEmulator({"drafter": tmp_path / "compiled.tflite"}, SOC)
    hidden, found = np.random.default_rng(0).standard_normal(1536).astype(np.float32), []
    for runner in (None, emulator):
        each = model(folder, ("drafter",), runner=runner)
        with each.sequence() as (target, drafter):
            rng = np.random.default_rng(1)
            for view in target.graphs.rows.views.values():
                view[:] = rng.integers(-8000, 8000, view.shape)
            target.commit(100)
            found.append(drafter.graphs.draft(7, hidden))
    one, other = found
    assert one.token == other.token
    assert one.state @ other.state / np.linalg.norm(one.state) / np.linalg.norm(other.state) >= 0.999
