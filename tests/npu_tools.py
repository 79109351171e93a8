"""What the tests on a neural processor's emulator need: where it is missing they skip, or fail where it was promised."""

from __future__ import annotations

import os

import pytest

from paceline.npu.qnn import usable


def qnn_or_skip() -> None:
    """Skips a test without onnxruntime-qnn. PACELINE_REQUIRE_NPU=1 makes that a failure."""
    said = usable()
    if not said.startswith("not usable"):
        return
    if os.environ.get("PACELINE_REQUIRE_NPU"):
        pytest.fail(said)
    pytest.skip(said)
