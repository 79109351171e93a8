"""Whatever bytes a file has, it is read or refused with one of our errors, soon and without much memory.

The short test is part of the suite. The long one looks at one reader for as long as it is told to:
`PACELINE_FUZZ_S=600 pytest -m slow -n 0 tests/properties/test_readers.py`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import perf_counter
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import COSTS, INDEX, NPU_PROFILE, READERS, STATE, WEIGHTS, Places, npu_profile
from safetensors.numpy import load_file, save_file
from small_pair import TARGET

from paceline.bundle import CHAT_TEMPLATE, GENERATION_CONFIG, Bundle
from paceline.errors import InputError
from paceline_export.bundle import export
from paceline_export.recipes import RECIPES

LIMIT_S = 20  # of one file; a template may run for five seconds, and the machine may be busy
GROWTH_BYTES = 3 << 30  # of the process's largest size, over all files; a template may take one billion
FUZZ_S = float(os.environ.get("PACELINE_FUZZ_S", "10"))
EXAMPLES = {"template": 5} | {name: 3 for name in READERS if name.startswith("stored")}  # these take longer


@pytest.fixture(scope="module")
def valid(tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Valid files of every kind; not to be changed."""
    folder = tmp_path_factory.mktemp("valid")
    target, drafter = (shutil.copytree(each, folder / each.name) for each in tiny_pair)
    for name in (CHAT_TEMPLATE, GENERATION_CONFIG):
        shutil.copyfile(TARGET / name, target / name)
    export(target, drafter, folder / "bundle", lambda *_: None, recipe=RECIPES["mixed-wi4b32"])
    profile = npu_profile(Bundle.read(folder / "bundle").manifest)
    (folder / "bundle" / NPU_PROFILE).write_text(profile.to_json())
    sharded = shutil.copytree(target, folder / "sharded")
    tensors = load_file(sharded / WEIGHTS)
    (sharded / WEIGHTS).unlink()
    for part in range(2):
        save_file({name: tensors[name] for name in sorted(tensors)[part::2]}, sharded / f"{part}.safetensors")
    weight_map = {name: f"{index % 2}.safetensors" for index, name in enumerate(sorted(tensors))}
    (sharded / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    cache = folder / "cache"
    cache.mkdir()
    (cache / "costs.json").write_text(json.dumps(COSTS))
    (cache / "prompts.json").write_text(json.dumps({"code": ["a", "b"], "prose": ["c"]}))
    (cache / "documents.json").write_text(json.dumps(["one text", "another"]))
    STATE.write(cache / "out.training")
    (cache / "seal.json").write_text(json.dumps({"source": str(folder / "bundle" / "target.tflite"), "state": [1, 2, 3, 4]}))
    return Places(target, sharded, drafter, folder / "bundle", cache)


@pytest.fixture
def places(valid: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Valid files, to be changed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own cache"))
    return Places(*(shutil.copytree(each, tmp_path / each.name) for each in vars(valid).values()))


@contextmanager
def in_time() -> Iterator[None]:
    """Ends what takes longer than a reader may."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"it takes longer than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(name: str, content: bytes, places: Places) -> str:
    """What a reader makes of a file: "read" or "refused"; any other error is raised."""
    READERS[name].file(places).write_bytes(content)
    try:
        with in_time():
            READERS[name].read(places)
    except InputError as error:
        return require_sentence(str(error))
    return "read"


def require_sentence(said: str) -> str:
    assert len(said) < 5000
    assert said.isprintable()
    return "refused"


@pytest.mark.parametrize("name", READERS)
def test_a_valid_file_is_read(name: str, places: Places) -> None:
    assert outcome(name, READERS[name].file(places).read_bytes(), places) == "read"


@pytest.mark.parametrize("name", READERS)
def test_a_changed_file_is_read_or_refused(name: str, places: Places) -> None:
    content, reader = READERS[name].file(places).read_bytes(), READERS[name]

    @settings(max_examples=EXAMPLES.get(name, 15), suppress_health_check=list(HealthCheck), database=None)
    @given(seed=st.integers(0, (1 << 32) - 1))
    def check(seed: int) -> None:
        outcome(name, reader.mutate(content, Random(seed)), places)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_changed_file_is_read_or_refused_for_long(name: str, places: Places, tmp_path: Path) -> None:
    content, reader, found = READERS[name].file(places).read_bytes(), READERS[name], Counter[str]()
    first, end, largest = Random().getrandbits(32), perf_counter() + FUZZ_S, 0.0
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while perf_counter() < end:
        seed = first + found.total()
        changed, started = reader.mutate(content, Random(seed)), perf_counter()
        try:
            found[outcome(name, changed, places)] += 1
        except BaseException as error:
            error.add_note(f"{name}, seed {seed}: {changed[:400]!r}")
            raise
        largest = max(largest, perf_counter() - started)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - size)
    print(f"{name}: {found.total()} files, {dict(found)}, the slowest {largest:.1f} s, grown by {grown / 1e6:.0f} MB")
    assert grown < GROWTH_BYTES
