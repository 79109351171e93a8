"""The C++ core writes what the Python runtime writes, token for token."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
from android_core import LIBRARY, Core, Request
from small_pair import DRAFTER, PROMPTS, TARGET

import paceline
from paceline_export.bundle import export
from paceline_export.recipes import RECIPES

NEW_TOKENS = 120  # with a prompt more than two windows, so that local caches move
LENGTHS = [0, 1, 2, 3, 4, 5, 6, 7, None]
SAMPLINGS = [
    paceline.Sampling(temperature=1.0, seed=2**64 - 1),
    paceline.Sampling(temperature=0.7, top_k=20, seed=1),
    paceline.Sampling(temperature=1.3, top_p=0.9, seed=2),
    paceline.Sampling(temperature=1.0, top_k=64, top_p=0.95, seed=3),
    paceline.Sampling(temperature=0.9, min_p=0.05, seed=4),
]


@pytest.fixture(scope="module", params=["f32", "mixed-wi4c"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundles") / "small"
    export(TARGET, DRAFTER, out, lambda *_: None, recipe=RECIPES[request.param])
    return out


@pytest.fixture(scope="module")
def model(bundle: Path) -> Iterator[paceline.Model]:
    with paceline.load(bundle, threads=1, capacity=1024) as loaded:
        yield loaded


def plain(model: paceline.Model, request: Request) -> list[int]:
    """What the Python runtime writes without drafting."""
    settings = {"max_new_tokens": request.new_tokens, "draft_length": 0, "sampling": request.sampling}
    return [piece.token for piece in model.generate(request.prompt, **settings)]  # type: ignore[arg-type]


def test_greedy_tokens_are_those_of_the_python_runtime(core: Core, model: paceline.Model, bundle: Path, tmp_path: Path) -> None:
    """Nine draft lengths over twenty prompts, and one of several prefill chunks and windows."""
    lengths = cycle(LENGTHS)
    prompts = [model.encode(prompt) for prompt in [*PROMPTS, "\n".join(PROMPTS[:8])]]
    requests = [Request(prompt, next(lengths), NEW_TOKENS) for prompt in prompts for _ in range(2)]
    expected = {tuple(prompt): plain(model, Request(prompt, 0, NEW_TOKENS)) for prompt in prompts}
    for request, found in zip(requests, core.continue_many(bundle, tmp_path, requests), strict=True):
        assert found == expected[tuple(request.prompt)], request


def test_a_seed_gives_the_tokens_of_the_python_runtime(core: Core, model: paceline.Model, bundle: Path, tmp_path: Path) -> None:
    prompts = [model.encode(prompt) for prompt in PROMPTS[:6]]
    plans = [(prompt, sampling) for prompt, sampling in zip(prompts, cycle(SAMPLINGS), strict=False)]
    requests = [Request(prompt, length, NEW_TOKENS, sampling) for prompt, sampling in plans for length in (0, 3, 7, None)]
    expected = {(tuple(prompt), sampling): plain(model, Request(prompt, 0, NEW_TOKENS, sampling)) for prompt, sampling in plans}
    for request, found in zip(requests, core.continue_many(bundle, tmp_path, requests), strict=True):
        assert found == expected[tuple(request.prompt), request.sampling], request


def written(core: Core, bundle: Path, *options: object) -> str:
    """What paceline-run writes to its standard output."""
    done = core.run("paceline-run", bundle, "--library", LIBRARY, "--threads", "1", "--context", "1024", *map(str, options))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_text_ends_at_a_stop_and_is_that_of_the_python_runtime(core: Core, model: paceline.Model, bundle: Path) -> None:
    for prompt, stop in zip(PROMPTS[:3], ["\n\n", "return", "e file"], strict=True):
        expected = "".join(piece.text for piece in model.generate(prompt, max_new_tokens=NEW_TOKENS, stop=[stop]))
        assert written(core, bundle, "-p", prompt, "-n", NEW_TOKENS, "--stop", stop) == expected + "\n"


def test_text_outside_the_vocabulary_comes_whole(core: Core, model: paceline.Model, bundle: Path) -> None:
    prompt, sampling = "naïve 漢字 🙂 ", paceline.Sampling(temperature=2.0, seed=5)  # hot enough for byte tokens
    expected = "".join(p.text for p in model.generate(prompt, max_new_tokens=NEW_TOKENS, sampling=sampling))
    assert written(core, bundle, "-p", prompt, "-n", NEW_TOKENS, "--temperature", "2", "--seed", "5") == expected + "\n"


def test_a_turn_is_written_as_the_template_writes_it(core: Core, model: paceline.Model, bundle: Path) -> None:
    said = " What does a queue do?\n"
    prompt = model.template.render([{"role": "user", "content": said}])
    expected = "".join(p.text for p in model.generate(prompt, max_new_tokens=40))
    assert written(core, bundle, "--chat", "-p", said, "-n", "40") == expected + "\n"


def test_the_c_interface(core: Core, bundle: Path, tmp_path: Path) -> None:
    """Descriptors, cancelling, kept rows, refusals, and no leak over 200 generations."""
    done = core.run("c_api_test", bundle, LIBRARY, tmp_path, "200")
    assert done.returncode == 0, done.stdout + done.stderr
