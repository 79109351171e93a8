"""Disks that are full or must not be written: one sentence, nothing half-written, and the old file still whole.

A limit of the size of files fails as a full disk does, wherever the tests run. Real file systems need someone who may mount.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from command import script
from full_disk import limited

import paceline
from paceline import calibration
from paceline.bundle import MANIFEST, Bundle
from paceline.chat import Chat
from paceline.cli.chat import save
from paceline.draft_length import NO_LIMITS, CallCosts
from paceline.errors import InputError
from paceline.partial import write_whole
from paceline.tuning import BACKUP, write_tuned

PROMPT = ["-p", "the little train", "--max-new-tokens", "2", "--threads", "1"]
LIMIT = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))\n"
COSTS = CallCosts(66.0, {2: 100.0, 4: 110.0, 8: 190.0}, 2.5)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of a hundred megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", folder], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)


def fill(disk: Path) -> None:
    with open(disk / "filler", "wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, shutil.disk_usage(disk).free)


def failed(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line that a command said when it failed with this exit code."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("paceline: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_an_export_that_finds_no_room_leaves_nothing(tiny_pair: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = script("export", str(tiny_pair[0]), "--drafter", str(tiny_pair[1]), "-o", str(out), before=LIMIT.format(300_000))
    said = failed(done, 3)
    assert f"File too large: '{out}'; nothing half-written is left behind." in said
    assert not list(tmp_path.iterdir())


def test_a_packed_file_that_finds_no_room_leaves_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.litertlm"
    done = script("pack", str(tiny_bundle), "-o", str(out), before=LIMIT.format(300_000))
    assert f"File too large: '{out}'; nothing half-written is left behind." in failed(done, 3)
    assert not list(tmp_path.iterdir())


def test_a_manifest_that_cannot_be_written_stays_as_it_was(copy: Path) -> None:
    before = content(copy)
    with limited(1000), pytest.raises(OSError, match=BACKUP) as refused:
        write_tuned(Bundle.read(copy), -1, NO_LIMITS)
    assert refused.value.errno == errno.EFBIG
    assert content(copy) == before


def test_packed_weights_that_find_no_room_are_refused_before_xnnpack_ends_the_process(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = failed(script("run", str(tiny_bundle), *PROMPT, before=LIMIT.format(100_000)), 2)
    assert f"the cache directory {tmp_path}/paceline/xnnpack cannot hold" in said
    assert "--no-weight-cache" in said
    assert not list((tmp_path / "paceline" / "xnnpack").iterdir())


def test_costs_that_find_no_room_are_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "costs" / "some.json"
    with limited(20):
        calibration._write(file, {"format": 1}, COSTS)
    assert not list(file.parent.iterdir())
    calibration._write(file, {"format": 1}, COSTS)
    assert calibration._read(file, {"format": 1}) == COSTS
    whole = file.read_bytes()
    with limited(20):
        calibration._write(file, {"format": 1}, replace(COSTS, draft_ms=3.0))
    assert file.read_bytes() == whole


def test_a_conversation_that_finds_no_room_is_not_saved_by_half(tiny_bundle: Path, tmp_path: Path) -> None:
    with paceline.load(tiny_bundle, backend="onnxruntime", threads=1, capacity=64) as model:
        model.__dict__["template"] = None  # the tiny pair has none, and nothing is asked
        chat = Chat(model, system="x" * 5000)
        with limited(1000), pytest.raises(InputError, match=r"chat.json cannot be written \(.*File too large.*name another"):
            save(str(tmp_path / "chat.json"), chat)
    assert not list(tmp_path.iterdir())


def test_on_a_full_disk_the_old_file_stays(disk: Path) -> None:
    file = disk / "file"
    write_whole(file, "old")
    fill(disk)
    with pytest.raises(OSError, match=f"No space left on device: '{file}'"):
        write_whole(file, "new" * 100_000)
    assert file.read_text() == "old"
    assert {each.name for each in disk.iterdir()} == {"file", "filler"}


def test_a_full_disk_is_told_before_an_export_and_before_weights_are_packed(
    disk: Path, tiny_pair: tuple[Path, Path], tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(disk)
    done = script("export", str(tiny_pair[0]), "--drafter", str(tiny_pair[1]), "-o", str(disk / "out"))
    assert f"{disk} has 0.00 GB of free space and the bundle needs about" in failed(done, 2)
    assert {each.name for each in disk.iterdir()} == {"filler"}
    (disk / "paceline" / "xnnpack").mkdir(parents=True)  # which takes no room
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
    assert "MB left where packed weights need" in failed(script("run", str(tiny_bundle), *PROMPT), 2)


def test_nothing_can_be_written_to_a_read_only_disk_and_bundles_on_it_run(
    disk: Path, tiny_pair: tuple[Path, Path], tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, text = disk / "out", (tiny_bundle / MANIFEST).read_text()
    (disk / MANIFEST).write_text(text)
    read_only(disk)
    done = script("export", str(tiny_pair[0]), "--drafter", str(tiny_pair[1]), "-o", str(out), "--recipe", "wi4c")
    assert f"Read-only file system: '{out}'; nothing half-written is left behind." in failed(done, 3)
    with pytest.raises(OSError, match=f"Read-only file system: '{disk / BACKUP}'"):
        write_tuned(Bundle.read(disk), -1, NO_LIMITS)
    assert (disk / MANIFEST).read_text() == text
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
    done = script("run", str(tiny_bundle), *PROMPT, "--json")
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["tokens"]) == 2
    (hint,) = done.stderr.splitlines()
    assert f"the cache directory {disk}/paceline/xnnpack cannot be written (Read-only file system), so weights" in hint
