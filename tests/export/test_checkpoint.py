"""A checkpoint gives the same weights in whatever layout it comes, and gives them only when they are asked for."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from paceline_export import checkpoint
from paceline_export.checkpoint import MULTIMODAL_PREFIX, TEXT_PREFIX, Target, open_pair, open_target, stored_tensors
from paceline_export.weights import Weights

DATA = Path(__file__).parents[1] / "data"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def tensors(tiny_pair: tuple[Path, Path]) -> dict[str, np.ndarray]:
    """The tiny target's tensors."""
    return load_file(tiny_pair[0] / WEIGHTS)


def write(folder: Path, fields: dict[str, Any], tensors: dict[str, np.ndarray], shards: int = 1) -> Path:
    """Writes a checkpoint directory, in shards with an index if there is more than one."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))
    if shards == 1:
        save_file(tensors, folder / WEIGHTS)
        return folder
    weight_map = {}
    for shard in range(shards):
        file = folder / f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[shard::shards]}
        save_file(part, file)
        weight_map |= dict.fromkeys(part, file.name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def assert_same(ours: Weights, expected: Weights) -> None:
    assert list(ours) == list(expected)
    for name, weight in ours.items():
        values = weight.read()
        assert values.shape == weight.shape == expected[name].shape
        np.testing.assert_array_equal(values, expected[name].read(), err_msg=name)


def test_shards_read_like_one_file(tensors: dict[str, np.ndarray], tiny_pair: tuple[Path, Path], tmp_path: Path) -> None:
    sharded = write(tmp_path / "target", tiny.text_fields(), tensors, shards=3)
    assert {stored.file.name for stored in stored_tensors(sharded).values()} == {
        f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)
    }
    assert_same(open_target(sharded).weights, open_target(tiny_pair[0]).weights)


@pytest.mark.parametrize("shards", [1, 2])
def test_the_multimodal_layout_reads_like_the_text_only_one(
    shards: int, tensors: dict[str, np.ndarray], tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Prefix, tensors of other towers, K and V of layers that share, and a second copy of the head change nothing."""
    junk = np.full((3, 5), np.nan, np.float32)
    layout = {MULTIMODAL_PREFIX + name.removeprefix(TEXT_PREFIX): values for name, values in tensors.items()}
    layout |= {"model.vision_tower.patch.weight": junk, "model.embed_audio.weight": junk, "lm_head.weight": junk}
    for layer in range(5, 10):
        for name in ("k_proj", "v_proj", "k_norm"):
            layout[f"{MULTIMODAL_PREFIX}layers.{layer}.self_attn.{name}.weight"] = junk
    fields = {"architectures": ["Gemma4ForConditionalGeneration"], "text_config": tiny.text_fields(), "vision_config": {}}
    multimodal = open_target(write(tmp_path / "target", fields, layout, shards))
    assert multimodal.config.multimodal
    assert_same(multimodal.weights, open_target(tiny_pair[0]).weights)


def test_a_text_only_checkpoint_may_carry_unused_tensors_too(
    tensors: dict[str, np.ndarray], tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    extra = {
        "lm_head.weight": tensors["model.embed_tokens.weight"],
        "model.layers.9.self_attn.k_norm.weight": np.zeros(9, np.float32),
    }
    folder = write(tmp_path / "target", tiny.text_fields(), tensors | extra)
    assert_same(open_target(folder).weights, open_target(tiny_pair[0]).weights)


@pytest.mark.parametrize("clustered", [True, False])
def test_a_drafter_reads_what_its_head_needs(clustered: bool, tmp_path: Path) -> None:
    _, drafter = open_pair(*tiny.write_pair(tmp_path, clustered=clustered))
    ordering = drafter.weights.get("masked_embedding.token_ordering")
    assert (ordering is not None) == clustered == (drafter.config.head is not None)
    if ordering:
        assert ordering.read().dtype == np.int64
        assert sorted(ordering.read()) == list(range(tiny.VOCABULARY))


@given(data=st.data(), dtype=st.sampled_from([ml_dtypes.bfloat16, np.float16, np.float32]))
def test_every_bit_pattern_of_a_float_reads_as_the_same_number(
    data: st.DataObject, dtype: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Widening is exact: float32 holds every value of bfloat16 and float16, infinities and subnormals included."""
    word = np.uint32 if dtype is np.float32 else np.uint16
    bits = data.draw(st.lists(st.integers(0, int(np.iinfo(word).max)), min_size=1, max_size=20))
    values = np.array(bits, word).view(dtype)
    folder = tmp_path_factory.mktemp("dtype")
    save_file({"x": values}, folder / WEIGHTS)
    read = stored_tensors(folder)["x"].read()
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, [widened(int(pattern), dtype) for pattern in bits])


def widened(bits: int, dtype: Any) -> np.float32:
    """The number that a bit pattern stands for, by the formats' own definitions."""
    if dtype is np.float16:
        return np.float32(struct.unpack("<e", struct.pack("<H", bits))[0])
    wide = bits << 16 if dtype is ml_dtypes.bfloat16 else bits  # bfloat16 is the upper half of a float32
    return np.array([wide], np.uint32).view(np.float32)[0]


def test_a_bf16_checkpoint_opens_as_float32(tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    halved = {name: values.astype(ml_dtypes.bfloat16) for name, values in tensors.items()}
    target = open_target(write(tmp_path / "target", tiny.text_fields(), halved))
    for name, weight in target.weights.items():
        assert weight.read().dtype == np.float32
        np.testing.assert_array_equal(weight.read(), halved[name].astype(np.float32))


def test_a_tensor_is_read_when_it_is_asked_for_and_not_before(
    tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()
    real = checkpoint.safe_open

    class Counting:
        """safetensors' own reader, with a count of what is read."""

        def __init__(self, *arguments: Any, **named: Any):
            self.opened = real(*arguments, **named)

        def __enter__(self) -> Any:
            self.shard = self.opened.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self.opened.__exit__(*error)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.shard, name)

        def get_tensor(self, name: str) -> Any:
            reads[name] += 1
            return self.shard.get_tensor(name)

    monkeypatch.setattr(checkpoint, "safe_open", Counting)
    target, drafter = open_pair(*tiny_pair)
    assert not reads
    target.weights["model.norm.weight"].read()
    assert reads == {"model.norm.weight": 1}
    drafter.weights["pre_projection.weight"].read()
    assert reads == {"model.norm.weight": 1, "pre_projection.weight": 1}


def sparse(file: Path, tensors: dict[str, tuple[int, ...]], integers: tuple[str, ...] = ()) -> None:
    """A safetensors file whose data is a hole: it takes no room on the disk, whatever the sizes."""
    header, end = {}, 0
    for name, shape in tensors.items():
        start, end = end, end + int(np.prod(shape)) * (8 if name in integers else 2)
        header[name] = {"dtype": "I64" if name in integers else "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with open(file, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)


def test_the_published_pair_opens_by_its_headers_alone(tmp_path: Path) -> None:
    """E2B at its real size, 9.5 GB of holes: 540 of 600 text tensors and all 50 of the drafter have their place."""
    for folder, config, table in (("target", "e2b_config", "e2b_text"), ("drafter", "e2b_assistant_config", "e2b_assistant")):
        (tmp_path / folder).mkdir()
        shutil.copyfile(DATA / f"{config}.json", tmp_path / folder / "config.json")
        rows = [line.split("\t") for line in (DATA / f"{table}_tensors.tsv").read_text().splitlines()]
        shapes = {row[0]: tuple(json.loads(row[1])) for row in rows}
        sparse(tmp_path / folder / WEIGHTS, shapes, integers=("masked_embedding.token_ordering",))
    target, drafter = open_pair(tmp_path / "target", tmp_path / "drafter")
    assert isinstance(target, Target)
    assert (len(target.weights), len(drafter.weights)) == (540, 50)
    assert not target.weights["model.layers.34.layer_scalar"].read().any()
