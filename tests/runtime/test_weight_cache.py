"""Packed weights on disk: written once, used while they are what was written, and never half-written or left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import refused, script
from damage import alter

import paceline
from paceline.backends.litert import weight_cache
from paceline.backends.litert.c_api import PACKAGE
from paceline.backends.litert.weight_cache import WeightCache
from paceline.bundle import MANIFEST, sha256
from paceline.cli.main import main
from paceline.errors import InputError
from paceline.partial import partial_name

PROMPT = "the little train"
PARTS = ("target", "drafter")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packed weights go; not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "paceline" / "xnnpack"


def generated(bundle: Path, weight_cache: bool = True) -> list[int]:
    model = paceline.load(bundle, backend="litert", weight_cache=weight_cache)
    tokens = [piece.token for piece in model.generate(PROMPT, max_new_tokens=8)]
    model.backend.describe()  # loads the target a second time
    return tokens


def cache_of(bundle: Path, part: str, runtime_version: str = version(PACKAGE)) -> WeightCache:
    source = bundle / f"{part}.tflite"
    return WeightCache(source, sha256(source), runtime_version)


def sealed(cache: WeightCache) -> Path:
    """The file of a cache that is built without XNNPACK."""
    with cache.opened() as file:
        file.write_bytes(b"weights")
    return cache.file


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    """Changes where a file is replaced or written to, even by the same bytes."""
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in folder.iterdir()}


def test_the_first_load_writes_one_sealed_file_for_target_and_drafter_each(tiny_bundle: Path, folder: Path) -> None:
    generated(tiny_bundle)
    files = [cache_of(tiny_bundle, part).file for part in PARTS]
    assert set(folder.iterdir()) == {*files, *(file.with_suffix(".json") for file in files)}
    for part, file in zip(PARTS, files, strict=True):
        assert file.stat().st_size > 100_000
        with cache_of(tiny_bundle, part).opened() as found:
            assert found == file  # complete: nothing is to be built


def test_a_second_load_reads_the_files_and_leaves_them_alone(tiny_bundle: Path, folder: Path) -> None:
    first = generated(tiny_bundle)
    before = identities(folder)
    assert generated(tiny_bundle) == first
    assert identities(folder) == before


def copied(file: Path) -> None:
    """The same bytes in another file."""
    shutil.copyfile(file, file.with_suffix(".copy"))
    file.with_suffix(".copy").rename(file)


def no_seal(file: Path) -> None:
    file.with_suffix(".json").unlink()


def seal_is(raw: bytes) -> Callable[[Path], object]:
    return lambda file: file.with_suffix(".json").write_bytes(raw)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda file: os.truncate(file, file.stat().st_size // 2), id="half of it"),
        pytest.param(lambda file: os.truncate(file, 0), id="an empty file"),
        pytest.param(alter, id="a bit flipped in secret"),
        pytest.param(copied, id="a copy"),
        pytest.param(no_seal, id="no seal"),
        pytest.param(seal_is(b"\xff\xfe{"), id="a seal that is no text"),
        pytest.param(seal_is(b'{"source": 1, "state": 1}'), id="a seal of other types"),
        pytest.param(seal_is(b'{"source": "\\u0000"}'), id="a seal of no path"),
        pytest.param(seal_is(b"[" * 100_000), id="a seal too deep to parse"),
    ],
)
def test_a_file_that_does_not_fit_its_seal_is_built_again(
    damage: Callable[[Path], object], tiny_bundle: Path, folder: Path
) -> None:
    text = generated(tiny_bundle)
    target, drafter = (cache_of(tiny_bundle, part).file for part in PARTS)
    whole = target.read_bytes()
    damage(target)
    before = identities(folder)
    assert generated(tiny_bundle) == text
    after = identities(folder)
    assert target.read_bytes() == whole
    assert after[target.name] != before[target.name]
    assert after[drafter.name] == before[drafter.name]
    assert generated(tiny_bundle) == text
    assert identities(folder) == after  # the new file has its seal


def test_a_build_removes_the_file_of_another_runtime_version(tiny_bundle: Path, folder: Path) -> None:
    old = sealed(cache_of(tiny_bundle, "target", runtime_version="0.0"))
    generated(tiny_bundle)
    assert old.name not in content(folder)
    assert len(content(folder)) == 4


def test_a_build_removes_the_file_of_what_the_graph_was_before(copy: Path) -> None:
    """The bundle was exported again to the same place."""
    files = []
    for graph in (b"an older graph", b"the graph"):
        (copy / "target.tflite").write_bytes(graph)
        files.append(sealed(cache_of(copy, "target")))
    assert [file.exists() for file in files] == [False, True]


def test_a_build_removes_the_files_of_graphs_that_are_gone_and_no_others(
    tiny_bundle: Path, folder: Path, tmp_path: Path
) -> None:
    gone, kept = tmp_path / "gone.tflite", tmp_path / "kept.tflite"
    files = []
    for graph in (gone, kept):
        graph.write_bytes(graph.name.encode())
        files.append(sealed(WeightCache(graph, sha256(graph), "0.0")))
    gone.unlink()
    generated(tiny_bundle)
    assert [file.exists() for file in files] == [False, True]
    assert not files[0].with_suffix(".json").exists()


def test_the_file_of_another_kind_of_cpu_is_left_alone(
    tiny_bundle: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home directory that several machines share serves all of them."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(weight_cache, "_cpu", lambda: "0123456789ab")
        sealed(cache_of(tiny_bundle, "target"))
    before = identities(folder)
    generated(tiny_bundle)
    assert identities(folder).items() >= before.items()


def test_what_a_killed_process_left_is_removed(tiny_bundle: Path, folder: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    mine = partial_name(cache_of(tiny_bundle, "target").file)
    abandoned = mine.with_name(mine.name.replace(f"-{os.getpid()}", f"-{process.pid}"))
    of_another_process = mine.with_name(mine.name.replace(f"-{os.getpid()}", f"-{os.getppid()}"))
    folder.mkdir(parents=True)
    abandoned.write_bytes(b"half of the weights")
    of_another_process.write_bytes(b"being written")
    generated(tiny_bundle)
    assert not abandoned.exists()
    assert of_another_process.exists()


def test_a_block_that_fails_leaves_neither_a_partial_nor_a_final_file(tiny_bundle: Path, folder: Path) -> None:
    def fail() -> None:
        with cache_of(tiny_bundle, "target").opened() as file:
            file.write_bytes(b"half of the weights")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert content(folder) == {}


def test_a_graph_that_cannot_be_loaded_leaves_no_file(copy: Path, folder: Path) -> None:
    (copy / "target.tflite").write_bytes(b"no graph")
    raw = json.loads((copy / MANIFEST).read_text())
    raw["files"]["target.tflite"] = {"bytes": 8, "sha256": sha256(copy / "target.tflite")}
    (copy / MANIFEST).write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"target\.tflite: LiteRT cannot load it"):
        paceline.load(copy, backend="litert")
    drafter = cache_of(copy, "drafter").file  # loaded before
    assert set(content(folder)) <= {drafter.name, drafter.with_suffix(".json").name}


def test_without_a_weight_cache_nothing_is_written(tiny_bundle: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = generated(tiny_bundle, weight_cache=False)
    assert main(["run", str(tiny_bundle), "-p", PROMPT, "--max-new-tokens", "8", "--json", "--no-weight-cache"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == text
    assert not folder.exists()
    assert generated(tiny_bundle) == text


def test_processes_that_start_together_do_not_disturb_each_other(tiny_bundle: Path, folder: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        arguments = ["run", str(tiny_bundle), "-p", PROMPT, "--max-new-tokens", "8"]
        runs = list(pool.map(lambda _: script(*arguments), range(3)))
    assert [(run.returncode, run.stderr) for run in runs] == [(0, "")] * 3
    assert len({run.stdout for run in runs}) == 1
    generated(tiny_bundle)
    assert len(content(folder)) == 4


@pytest.mark.parametrize("file", ["cache", "cache/paceline", "cache/paceline/xnnpack"])
def test_where_the_directory_cannot_be_written_weights_are_packed_at_every_start(
    file: str, tiny_bundle: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file stands where a directory should be, which stops even root."""
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("not a directory")
    without = generated(tiny_bundle, weight_cache=False)
    assert not caplog.messages
    assert generated(tiny_bundle) == without
    (hint,) = caplog.messages  # one for target and drafter
    assert f"the cache directory {folder} cannot be written (" in hint
    assert "XDG_CACHE_HOME" in hint
    assert "--no-weight-cache" in hint
    assert (tmp_path / file).read_text() == "not a directory"


def test_a_file_that_was_replaced_with_its_old_time_is_built_again(tiny_bundle: Path, folder: Path) -> None:
    file = sealed(cache_of(tiny_bundle, "target"))
    status = file.stat()
    file.write_bytes(b"WEIGHTS")  # as long as before
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with cache_of(tiny_bundle, "target").opened() as found:
        assert found != file


def test_two_processes_with_one_id_build_files_of_their_own(tiny_bundle: Path, folder: Path) -> None:
    """Two containers that share a home: neither may complete what the other has begun."""
    ours, theirs = (cache_of(tiny_bundle, "target") for _ in range(2))
    theirs_partial = theirs._begun()
    with ours.opened() as partial:
        assert partial != theirs_partial
        partial.write_bytes(b"whole")
        theirs_partial.write_bytes(b"half of the wei")
    assert ours.file.read_bytes() == b"whole"
    with cache_of(tiny_bundle, "target").opened() as found:
        assert found == ours.file


def test_too_little_room_is_refused_with_the_numbers(
    tiny_bundle: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before XNNPACK writes, because it ends the process when a disk is full."""
    monkeypatch.setattr(weight_cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    sentence = refused(["run", str(tiny_bundle), "-p", PROMPT], capsys)
    assert f"the cache directory {folder} has 1 MB left where packed weights need 2 MB; " in sentence
    assert "--no-weight-cache" in sentence
    drafter = cache_of(tiny_bundle, "drafter").file  # it fits, and is loaded first
    assert set(content(folder)) == {drafter.name, drafter.with_suffix(".json").name}
