"""A loaded model as an object: closed at the end, with the template of its bundle."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

import paceline
from paceline.backends import BACKENDS


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_closed_model_is_gone_and_says_so(small_bundle: Path, backend: str) -> None:
    with paceline.load(small_bundle, backend=backend, threads=1, capacity=64) as model:
        assert len(list(model.generate([2, 7], max_new_tokens=3))) == 3
        begun = model.generate([2, 7], max_new_tokens=5)
        first = next(begun).token
        held = weakref.ref(model.backend)
    with pytest.raises(paceline.PacelineError, match="the model is closed; load the bundle again"):
        next(model.generate([2, 7]))
    assert [first, *(piece.token for piece in begun)] == [
        piece.token
        for piece in paceline.load(small_bundle, backend=backend, threads=1, capacity=64).generate([2, 7], max_new_tokens=5)
    ]
    del begun
    gc.collect()
    assert held() is None
    assert "<|turn>" in model.template.render([{"role": "user", "content": "x"}])
