"""A tiny pair in memory, text for it, and one thread: two test processes share two cores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import Pair, opened


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def pair(tiny_pair: tuple[Path, Path]) -> Pair:
    """Float32 values, the drafter's to be trained."""
    return opened(tiny_pair)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some thousand tokens of made-up words in forty documents."""
    rng = np.random.default_rng(0)
    words = np.array(["the", "train", "little", "stone", "runs", "under", "a", "bridge", "and", "then", "rests", "."])
    documents = [" ".join(rng.choice(words, size=120)) for _ in range(40)]
    file = tmp_path_factory.mktemp("text") / "documents.json"
    file.write_text(json.dumps(documents))
    return file
