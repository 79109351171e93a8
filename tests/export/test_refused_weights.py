"""Weight files that are missing, damaged or of another model are refused by name, whatever is wrong with them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from paceline.errors import InputError
from paceline_export.checkpoint import NAMES_IN_MESSAGE, open_pair, stored_tensors

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
QUERY, NORM, ORDERING = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight", "masked_embedding.token_ordering"


@pytest.fixture
def pair(tiny_pair: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the tiny pair, to be damaged."""
    target, drafter = (shutil.copytree(folder, tmp_path / folder.name) for folder in tiny_pair)
    return target, drafter


def refusal(pair: tuple[Path, Path]) -> str:
    with pytest.raises(InputError) as refused:
        open_pair(*pair)
    return str(refused.value)


def change(folder: Path, edit: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Writes the directory's tensors again after `edit`."""
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


def test_every_kind_of_wrong_tensor_is_listed_by_name_in_one_message(pair: tuple[Path, Path]) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.0.self_attn.bias"] = np.zeros(3, np.float32)
        tensors[QUERY] = tensors[QUERY][:-1]
        tensors["model.layers.1.layer_scalar"] = tensors["model.layers.1.layer_scalar"].astype(np.float64)
        del tensors[NORM]

    change(pair[0], edit)
    message = refusal(pair)
    assert f"missing: {NORM};" in message
    assert "unexpected: model.layers.0.self_attn.bias;" in message
    assert f"of another shape: {QUERY} [63, 64] instead of [64, 64];" in message
    assert "of a dtype that cannot be read: model.layers.1.layer_scalar F64." in message
    assert "Allowed dtypes are BF16, F16, F32" in message
    assert str(pair[0]) in message


@pytest.mark.parametrize(("name", "dtype", "found"), [(QUERY, np.int32, "I32"), (ORDERING, np.float32, "F32")])
def test_integers_and_floats_do_not_stand_in_for_each_other(
    name: str, dtype: type, found: str, pair: tuple[Path, Path]
) -> None:
    change(pair[1], lambda tensors: tensors.update({name: tensors[name].astype(dtype)}))
    assert f"of a dtype that cannot be read: {name} {found}" in refusal(pair)


def test_a_long_list_is_cut_and_counted(pair: tuple[Path, Path]) -> None:
    change(pair[0], lambda tensors: [tensors.pop(name) for name in sorted(tensors)[:20]])
    assert f"and {20 - NAMES_IN_MESSAGE} more" in refusal(pair)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_noticed_at_any_length(share: float, tiny_pair: tuple[Path, Path], tmp_path: Path) -> None:
    """From its header alone: no tensor data needs to be read."""
    whole = (tiny_pair[1] / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=f"{WEIGHTS} is not a complete safetensors file"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize("kind", ["truncated header", "not safetensors"])
def test_a_file_that_is_no_safetensors_file_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / WEIGHTS).write_bytes(b"\xff" * 64 if kind == "not safetensors" else (1000).to_bytes(8, "little") + b"{}")
    with pytest.raises(InputError, match="not a complete safetensors file"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "model-00002-of-00002.safetensors"}, "names the shard 'model-00002-of-00002.safetensors', which is not in"),
        ({"a": "../outside.safetensors"}, "names the shard '../outside.safetensors', which is not in"),
        ({"a": "sub/../../outside.safetensors"}, "names the shard 'sub/../../outside.safetensors', which is not in"),
        ({"a": "ABSOLUTE"}, "names the shard '/.*outside.safetensors', which is not in"),
        ({"a": ".."}, "names the shard '..', which is not in"),
        ({"a": "a\0b"}, "which is not in"),
        ({"a": "a" * 300}, "which is not in"),
        ({"a": 3}, "a map from tensor to shard is needed"),
        (["a"], "weight_map is list; a map"),
        (None, "weight_map is NoneType; a map"),
    ],
)
def test_an_index_can_only_name_shards_beside_it(
    weight_map: object, words: str, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """The file outside is a whole one, so only the path can be what is refused."""
    folder, outside = tmp_path / "target", tmp_path / "outside.safetensors"
    (folder / "sub").mkdir(parents=True)
    shutil.copyfile(tiny_pair[0] / WEIGHTS, outside)
    text = json.dumps({"metadata": {}, "weight_map": weight_map}).replace("ABSOLUTE", str(outside))
    (folder / INDEX).write_text(text)
    with pytest.raises(InputError, match=words):
        stored_tensors(folder)


@pytest.mark.parametrize("text", ["[]", "3", '"text"'])
def test_an_index_that_is_not_an_object_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(InputError, match="a map from tensor to shard is needed"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize("name", ["config.json", INDEX])
@pytest.mark.parametrize("text", ["", "{", '{"architectures": }', b"\xff\xfe{}"])
def test_broken_json_is_refused_by_file(name: str, text: str | bytes, pair: tuple[Path, Path]) -> None:
    (pair[0] / WEIGHTS).unlink()
    (pair[0] / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refusal(pair)
    assert message.startswith(f"{pair[0] / name} cannot be read as JSON (")
    assert message.endswith("download it again.")


def test_a_directory_without_weights_or_config_says_what_is_missing(pair: tuple[Path, Path]) -> None:
    (pair[1] / WEIGHTS).unlink()
    assert f"{pair[1]} has neither {WEIGHTS} nor {INDEX}" in refusal(pair)
    (pair[1] / "config.json").unlink()
    assert f"{pair[1] / 'config.json'} is missing" in refusal(pair)


def test_what_looks_like_a_hub_id_gives_the_command_that_downloads_it(tiny_pair: tuple[Path, Path]) -> None:
    repository = Path("google/gemma-4-E2B-it")
    for message, what in (
        (refusal((repository, tiny_pair[1])), "TARGET"),
        (refusal((tiny_pair[0], repository)), "the drafter"),
    ):
        assert message.startswith(f"{what} 'google/gemma-4-E2B-it' is not a local directory")
        assert message.endswith("hf download google/gemma-4-E2B-it --local-dir gemma-4-E2B-it")


@pytest.mark.parametrize("path", ["nowhere", "../nowhere", "/no/where", "a/b/c", "./.hidden/x"])
def test_a_wrong_path_is_not_taken_for_a_hub_id(path: str, tiny_pair: tuple[Path, Path]) -> None:
    message = refusal((Path(path), tiny_pair[1]))
    assert "hf download" not in message
    assert "give the path of a directory" in message


def test_a_hubs_cache_whose_files_are_links_is_read(pair: tuple[Path, Path]) -> None:
    """snapshots/REVISION/NAME -> ../../blobs/HASH is how a hub's client stores a checkpoint."""
    blobs = pair[0].parent / "blobs"
    blobs.mkdir()
    for folder in pair:
        for index, file in enumerate(sorted(folder.iterdir())):
            blob = file.rename(blobs / f"{folder.name}{index}")
            file.symlink_to(Path("..") / "blobs" / blob.name)
    assert len(open_pair(*pair)[0].weights) > 100


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, INDEX])
@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_what_is_no_file_is_refused_and_nobody_waits_for_it(name: str, kind: str, pair: tuple[Path, Path]) -> None:
    (pair[0] / WEIGHTS).unlink()
    (pair[0] / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(pair[0] / name)
    elif kind == "directory":
        (pair[0] / name).mkdir()
    else:
        (pair[0] / name).symlink_to("/dev/zero")
    assert "is missing" in (said := refusal(pair)) or "has neither" in said


@pytest.mark.parametrize(
    ("header", "stated"),
    [
        (b"{}", 1 << 62),
        (b"{}", (1 << 64) - 1),
        (b"{}", 100_000_001),
        (b'{"x": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}}', None),
        (b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 18446744073709551615]}}', None),
        (b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}', None),
        (b'{"x": ' + b"[" * 100_000, None),
    ],
)
def test_a_header_that_promises_too_much_is_refused(header: bytes, stated: int | None, tmp_path: Path) -> None:
    size = len(header) if stated is None else stated
    (tmp_path / WEIGHTS).write_bytes(size.to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(InputError, match="not a complete safetensors file"):
        stored_tensors(tmp_path)
