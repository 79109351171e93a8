"""A bundle is complete or absent, the same bytes every time, and any later change to it is noticed."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import onnx
import pytest
import tiny
from safetensors.numpy import load_file, save_file

from paceline.bundle import MANIFEST, Bundle
from paceline.errors import InputError
from paceline.partial import remove_abandoned, workshop
from paceline_export.bundle import FORMATS, export
from paceline_export.config import target_config
from paceline_export.model.target import target_shapes
from paceline_export.recipes import F32

EXPORT = """
import os, signal, sys
from pathlib import Path
from paceline_export.bundle import FORMATS, export
from paceline_export.recipes import F32
export(*map(Path, sys.argv[1:]), lambda *_: {progress}, tuple(FORMATS), F32)
"""


def quiet(*_: object) -> None:
    """No progress."""


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def partial(out: Path, pid: int | str) -> Path:
    """What an export by process `pid` has begun."""
    folder = out.parent / f".{out.name}.partial-{pid}"
    folder.mkdir()
    (folder / "target.onnx.data").write_bytes(b"half")
    return folder


@pytest.fixture
def living() -> Iterator[int]:
    """The id of another process that is alive."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def test_exporting_twice_gives_the_same_bytes(tiny_pair: tuple[Path, Path], tiny_bundle: Path, tmp_path: Path) -> None:
    """Also by another process with another order of sets."""
    code = EXPORT.format(progress="None")
    command = [sys.executable, "-c", code, *map(str, tiny_pair), str(tmp_path / "again")]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "7"})
    assert content(tmp_path / "again") == content(tiny_bundle)


def test_a_bundle_holds_what_its_manifest_lists_and_nothing_else(tiny_bundle: Path) -> None:
    bundle = Bundle.read(tiny_bundle)
    bundle.check_sizes()
    bundle.check_hashes()
    assert {file.name for file in tiny_bundle.iterdir()} == {*bundle.manifest.files, MANIFEST}
    assert {"target.onnx", "target.onnx.data", "drafter.onnx", "tokenizer.json", "README.md"} <= set(bundle.manifest.files)


def test_the_stop_ids_are_the_union_of_both_configs(tiny_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target = shutil.copytree(tiny_pair[0], tmp_path / "target")
    (target / "generation_config.json").write_text('{"eos_token_id": [106, 1, 50]}')
    manifest = export(target, tiny_pair[1], tmp_path / "out", quiet)
    assert manifest.stop_ids == (1, 50, 106)
    assert "generation_config.json" in manifest.files


@pytest.mark.parametrize("text", ["[]", '{"eos_token_id": "</s>"}', "{"])
def test_a_generation_config_that_cannot_be_used_is_refused_before_anything_is_written(
    text: str, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    target = shutil.copytree(tiny_pair[0], tmp_path / "target")
    (target / "generation_config.json").write_text(text)
    with pytest.raises(InputError, match=r"generation_config\.json"):
        export(target, tiny_pair[1], tmp_path / "new" / "out", quiet)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_an_existing_output_is_refused_and_left_as_it_is(kind: str, tiny_pair: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "directory":
        out.mkdir()
    else:
        out.write_text("mine")
    with pytest.raises(InputError, match="exists already; choose another output directory"):
        export(*tiny_pair, out, quiet)
    assert list(tmp_path.iterdir()) == [out]
    assert list(out.iterdir()) == [] if kind == "directory" else out.read_text() == "mine"


def test_a_target_without_a_tokenizer_is_refused_before_anything_is_written(
    tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    target = shutil.copytree(tiny_pair[0], tmp_path / "target")
    (target / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json is missing"):
        export(target, tiny_pair[1], tmp_path / "new" / "out", quiet)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize("moment", ["first tensor", "drafter", "hashes"])
def test_a_failure_at_any_moment_leaves_nothing_behind(
    error: type[BaseException], moment: str, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    begun: list[bool] = []

    def fail(stage: str, item: str, _: int) -> None:
        begun.append(any(tmp_path.iterdir()))
        if moment == "first tensor" or moment == stage or (moment == "drafter" and item == "pre_projection.weight"):
            raise error

    with pytest.raises(error):
        export(*tiny_pair, tmp_path / "out", fail)
    assert begun[-1]
    assert not list(tmp_path.iterdir())


def test_an_output_that_appears_meanwhile_is_not_overwritten(tiny_pair: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"

    def meanwhile(*_: object) -> None:
        out.mkdir(exist_ok=True)
        (out / "mine").write_text("mine")

    with pytest.raises(InputError, match="out was made by someone else meanwhile, and is left as it is; choose"):
        export(*tiny_pair, out, meanwhile)
    assert list(tmp_path.iterdir()) == [out]
    assert content(out) == {"mine": b"mine"}


def test_of_exports_into_one_place_one_wins_whole(tiny_pair: tuple[Path, Path], tiny_bundle: Path, tmp_path: Path) -> None:
    """They run side by side; the others are refused, or find the bundle that is there already."""
    command = [sys.executable, "-c", EXPORT.format(progress="None"), *map(str, tiny_pair), str(tmp_path / "out")]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[1] for process in running]
    assert sorted(process.returncode for process in running) == [0, 1]
    lost = next(text for process, text in zip(running, said, strict=True) if process.returncode)
    assert "was made by someone else meanwhile" in lost or "exists already" in lost
    assert content(tmp_path / "out") == content(tiny_bundle)
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_exports_of_two_containers_with_one_process_id_leave_each_other_alone(tmp_path: Path) -> None:
    """Both see their own id and file system, and neither sees the other process."""
    with workshop(tmp_path / "out") as first:
        (first / "file").write_text("of the first")
        remove_abandoned(tmp_path, "out")
        with workshop(tmp_path / "out") as second:
            assert first != second
            assert list(second.iterdir()) == []
            assert content(first) == {"file": b"of the first"}
    assert not list(tmp_path.iterdir())


def test_what_a_killed_export_left_is_removed_by_the_next_one(
    tiny_pair: tuple[Path, Path], tiny_bundle: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code = EXPORT.format(progress="os.kill(os.getpid(), signal.SIGKILL)")
    command = [sys.executable, "-c", code, *map(str, tiny_pair), str(out)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == -signal.SIGKILL
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".out.partial-")
    export(*tiny_pair, out, quiet, tuple(FORMATS), F32)
    assert list(tmp_path.iterdir()) == [out]
    assert content(out) == content(tiny_bundle)


def test_only_leftovers_of_dead_exports_of_this_output_are_removed(
    tiny_pair: tuple[Path, Path], living: int, tmp_path: Path
) -> None:
    """A living process may still be writing; our own id, given again as containers do, is no living one."""
    out = tmp_path / "out[1]"
    removed = [partial(out, os.getpid())]
    kept = [partial(out, living), partial(tmp_path / "other", os.getpid()), partial(out, "notes")]
    export(*tiny_pair, out, quiet)
    assert not any(folder.exists() for folder in removed)
    assert all(content(folder) == {"target.onnx.data": b"half"} for folder in kept)


def test_the_drafter_has_no_copy_of_the_targets_table(tiny_bundle: Path) -> None:
    """Its input embedding is the same bytes of the same file that the target reads; all else is in its own file."""
    target, drafter = (external(tiny_bundle / name) for name in ("target.onnx", "drafter.onnx"))
    table = "model.embed_tokens.weight"
    assert drafter[f"target.{table}"] == target[table]
    assert drafter[f"target.{table}"][0] == "target.onnx.data"
    own = {name: place for name, place in drafter.items() if name != f"target.{table}"}
    assert {location for location, _, _ in own.values()} == {"drafter.onnx.data"}
    assert max(offset + length for _, offset, length in own.values()) == (tiny_bundle / "drafter.onnx.data").stat().st_size


@pytest.mark.parametrize("name", ["target.onnx", "drafter.onnx"])
def test_tensors_in_a_data_file_do_not_overlap_and_big_ones_start_on_a_page(name: str, tiny_bundle: Path) -> None:
    places = sorted((offset, length) for location, offset, length in external(tiny_bundle / name).values() if name in location)
    assert all(start + length <= following for (start, length), (following, _) in itertools.pairwise(places))
    assert all(offset % 4096 == 0 for offset, length in places if length >= 4096)


def external(file: Path) -> dict[str, tuple[str, int, int]]:
    """Initializer -> (file, offset, length) of every tensor outside the graph file."""
    found = {}
    for tensor in onnx.load(file, load_external_data=False).graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            found[tensor.name] = (entries["location"], int(entries["offset"]), int(entries["length"]))
    return found


def test_every_weight_is_written_once(tiny_bundle: Path) -> None:
    """As float32, the tied table included."""
    shapes = target_shapes(target_config(tiny.text_fields(), "target"))
    written = external(tiny_bundle / "target.onnx")
    assert sum(length for _, _, length in written.values()) == sum(4 * prod(shape) for shape in shapes.values())
    assert set(written) == set(shapes)


def test_a_token_ordering_that_is_no_permutation_is_refused_and_nothing_is_written(
    tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its values are indices into the head's table."""
    drafter = shutil.copytree(tiny_pair[1], tmp_path / "drafter")
    tensors = load_file(drafter / "model.safetensors")
    ordering = tensors["masked_embedding.token_ordering"]
    ordering[0] = ordering[1]
    save_file(tensors, drafter / "model.safetensors")
    with pytest.raises(InputError, match=r"masked_embedding\.token_ordering holds values from .* not 0 to 511"):
        export(tiny_pair[0], drafter, tmp_path / "out", quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]
