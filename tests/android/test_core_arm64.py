"""The core built for 64-bit ARM, on the kernels that three generations of its CPUs choose, emulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from android_core import NPU_ON_CPU, Core, Request
from arm64_sysroot import CPUS, Arm64
from small_pair import PROMPTS

import paceline
from paceline.sampling import GREEDY

NEW_TOKENS = 24  # enough for drafts of every kind; an emulated CPU takes its time
SEEDED = paceline.Sampling(temperature=0.8, top_p=0.95, seed=11)

Machine = Callable[[str], Arm64]


@pytest.mark.parametrize("cpu", CPUS)
def test_drafted_tokens_are_those_of_plain_decoding(
    arm64: Machine, arm64_core: Core, arm64_litert: Path, int4_bundle: Path, cpu: str
) -> None:
    """Of the trained pair with int4 weights, greedy over more than a window, and seeded."""
    with paceline.load(int4_bundle, threads=1, capacity=256) as model:
        plans = [(model.encode("\n".join(PROMPTS[:4])), GREEDY), (model.encode(PROMPTS[4]), SEEDED)]
    requests = [Request(prompt, length, NEW_TOKENS, sampling) for prompt, sampling in plans for length in (0, 3)]
    greedy, drafted, seeded, seeded_drafted = answers(arm64(cpu), arm64_core, int4_bundle, arm64_litert, requests)
    assert drafted == greedy
    assert seeded_drafted == seeded
    assert len(greedy) == len(seeded) == NEW_TOKENS


@pytest.mark.parametrize("cpu", CPUS)
def test_with_float32_weights_they_are_those_of_other_cpus(
    arm64: Machine, arm64_core: Core, arm64_litert: Path, tiny_bundle: Path, cpu: str
) -> None:
    """Kernels sum in other orders, which differs in the last bits only."""
    prompt = list(range(3, 43))
    with paceline.load(tiny_bundle, backend="litert", threads=1, capacity=256) as model:
        here = [piece.token for piece in model.generate(prompt, max_new_tokens=NEW_TOKENS, draft_length=0)]
    requests = [Request(prompt, length, NEW_TOKENS) for length in (0, 7)]
    assert answers(arm64(cpu), arm64_core, tiny_bundle, arm64_litert, requests) == [here, here]


def test_an_npus_graphs_write_the_same_here_and_there(
    arm64: Machine, arm64_core: Core, core: Core, arm64_litert: Path, npu_bundle: Path
) -> None:
    """Their integers do not depend on the order of sums."""
    requests = [Request(list(range(3, 43)), length, NEW_TOKENS) for length in (0, 7)]
    places = (NPU_ON_CPU, NPU_ON_CPU)
    here = core.continue_many(npu_bundle, "-", requests, places)
    assert answers(arm64("cortex-a76"), arm64_core, npu_bundle, arm64_litert, requests, places) == here


def answers(
    machine: Arm64, core: Core, bundle: Path, litert: Path, requests: Sequence[Request], places: Sequence[int] = ()
) -> list[list[int]]:
    lines = "".join(request.line() for request in requests)
    done = machine.run([core.program("continue_many"), bundle, litert, "-", *map(str, places)], stdin=lines)
    assert done.returncode == 0, done.stderr
    return [list(map(int, line.split())) for line in done.stdout.splitlines()]
