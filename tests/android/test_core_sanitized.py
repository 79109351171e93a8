"""Address, leak and undefined-behaviour sanitizers find nothing in the core; its fuzzers themselves run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from android_core import CPU, LIBRARY, NPU_ON_CPU, PROGRAMS, UNITY, Core, Request, built, shared_by_workers
from gemma_tokenizers import FIXTURE, fixture_tokenizer, hard_texts
from small_pair import PROMPTS

import paceline
from paceline.sampling import GREEDY

SANITIZED = ("-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0 -fsanitize=address,undefined -fno-sanitize-recover=undefined")
TARGETS = (*PROGRAMS, "manifest_replay", "npu_profile_replay", "tokenizer_replay")
SAMPLED = paceline.Sampling(temperature=1.0, top_k=64, top_p=0.95, min_p=0.01, seed=3)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    return built(shared_by_workers(tmp_path_factory), "core-sanitized", TARGETS, UNITY, *SANITIZED)


def test_the_c_interface(core: Core, int4_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASAN_OPTIONS", "quarantine_size_mb=1")  # freed memory held back would look like a leak
    done = core.run("c_api_test", int4_bundle, LIBRARY, tmp_path, "10")
    assert done.returncode == 0, done.stdout + done.stderr


def test_texts(core: Core, int4_bundle: Path, tmp_path: Path) -> None:
    with paceline.load(int4_bundle, threads=1, capacity=1024) as model:
        requests = [Request(model.encode(PROMPTS[0]), None, 40, sampling) for sampling in (GREEDY, SAMPLED)]
        expected = [
            [p.token for p in model.generate(each.prompt, max_new_tokens=40, draft_length=0, sampling=each.sampling)]
            for each in requests
        ]
    assert core.continue_many(int4_bundle, tmp_path, requests) == expected


def test_an_npus_graphs(core: Core, npu_bundle: Path) -> None:
    """On the CPU, over a move of the local rows and a larger context."""
    with paceline.load(npu_bundle, threads=1, capacity=512) as model:
        prompt = model.encode("\n".join(PROMPTS[6:] + PROMPTS[:6]))[:238]
    for places in ((NPU_ON_CPU, NPU_ON_CPU), (NPU_ON_CPU, CPU), (CPU, NPU_ON_CPU)):
        plain, drafted = core.continue_many(npu_bundle, "-", [Request(prompt, length, 24) for length in (0, 7)], places)
        assert plain == drafted
        assert len(prompt) + len(plain) > 256


def test_changed_manifests(core: Core, npu_bundle: Path) -> None:
    for reader, file in (("manifest_replay", "manifest.json"), ("npu_profile_replay", "npu.json")):
        done = core.run(reader, "500", npu_bundle / file)
        assert done.returncode == 0, done.stderr


def test_changed_tokenizers_and_hard_texts(core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = core.run("tokenizer_replay", "5000", FIXTURE)
    assert done.returncode == 0, done.stderr
    texts = [tmp_path / str(i) for i in range(40)]
    for file, text in zip(texts, hard_texts(fixture_tokenizer(), 1000, 3)[-40:], strict=True):
        file.write_bytes(text)
    monkeypatch.setenv("PACELINE_TOKENIZER", str(FIXTURE))
    done = core.run("tokenizer_replay", "50", *texts)
    assert done.returncode == 0, done.stderr
