"""What several test files share: a tiny random pair on disk, and its bundle."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("paceline", deadline=None)  # a busy machine is not a bug
settings.load_profile("paceline")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor write the user's cache directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Checkpoint directories of a tiny target and its drafter; not to be changed."""
    import tiny

    return tiny.write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def tiny_bundle(tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny pair's bundle, in both formats; not to be changed."""
    from paceline_export.bundle import FORMATS, export
    from paceline_export.recipes import F32

    out = tmp_path_factory.mktemp("bundles") / "tiny"
    export(*tiny_pair, out, lambda *_: None, tuple(FORMATS), F32)
    return out


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained pair's bundle, in both formats; not to be changed."""
    from small_pair import DRAFTER, TARGET

    from paceline_export.bundle import FORMATS, export
    from paceline_export.recipes import F32

    out = tmp_path_factory.mktemp("bundles") / "small"
    export(TARGET, DRAFTER, out, lambda *_: None, tuple(FORMATS), F32)
    return out


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle that was never opened before, to be damaged."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(tiny_bundle, tmp_path / "bundle")
