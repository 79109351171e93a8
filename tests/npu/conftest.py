"""The small pair with graphs for neural processors, shared by all tests of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from npu_models import exported
from npu_tools import qnn_or_skip


@pytest.fixture(scope="session")
def npu_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained pair, float32 on the CPU, a16w8 and within NNAPI; caches of 256 rows, three drafter steps in one. Not to be
    changed.
    """
    from small_pair import DRAFTER, TARGET

    return exported(TARGET, DRAFTER, tmp_path_factory.mktemp("npu") / "small", profiles=("npu", "nnapi"), unrolled=3)


@pytest.fixture(scope="session")
def compiled_bundle(npu_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, compiled for SM8750; not to be changed."""
    from paceline.bundle import Bundle
    from paceline_export.npu.compile import compile_bundle

    qnn_or_skip()
    copy = shutil.copytree(npu_bundle, tmp_path_factory.mktemp("npu") / "compiled")
    compile_bundle(Bundle.open(copy), "SM8750", False, lambda _: None)
    return copy
