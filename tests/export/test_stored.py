"""The pair that a bundle's own files store: whatever a stranger has put into them, what does not fit is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from paceline.bundle import DRAFTER_CONFIG, MANIFEST, TARGET_CONFIG, Bundle
from paceline.errors import InputError
from paceline.stored_weights import WEIGHTS_FILE
from paceline_export.bundle import export
from paceline_export.lower import litertlm
from paceline_export.lower.flatbuffer import TfliteFile
from paceline_export.lower.litertlm_signatures import LiteRtLmProfile
from paceline_export.lower.tflite_read import MOST_TENSORS, stored_tensors
from paceline_export.recipes import RECIPES
from paceline_export.stored import open_stored


@pytest.fixture(scope="module")
def integers(tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of integers with a scale for each row; not to be changed."""
    out = tmp_path_factory.mktemp("bundles") / "integers"
    export(*tiny_pair, out, lambda *_: None, recipe=RECIPES["wi4c"])
    return out


@pytest.fixture
def bundle(integers: Path, tmp_path: Path) -> Path:
    """One to be changed."""
    return shutil.copytree(integers, tmp_path / "bundle")


def edit(file: Path, change: Callable[[Any], object]) -> None:
    """Changes a JSON file in place."""
    raw = json.loads(file.read_text())
    change(raw)
    file.write_text(json.dumps(raw))


def packed(bundle: Path, folder: Path) -> list[str]:
    folder.mkdir()
    return litertlm.write_graphs(folder, open_stored(Bundle.read(bundle)), LiteRtLmProfile(64, 1), 0, lambda *_: None)


def first(rows: list[dict[str, Any]], columns: int = 2) -> dict[str, Any]:
    return next(row for row in rows if len(row["shape"]) == columns)


CHANGES: list[tuple[str, Callable[[Any], object], str]] = [
    (WEIGHTS_FILE, lambda rows: first(rows).update(stored_as="wi3c"), r"is stored as wi3c; allowed are f32 and"),
    (WEIGHTS_FILE, lambda rows: first(rows, 1).update(stored_as="wi8c"), r"is stored as wi8c; allowed are f32 and"),
    (WEIGHTS_FILE, lambda rows: first(rows).update(stored_as="wi8c"), r"the bundle's graphs hold \d+ bytes of .*, which needs"),
    (WEIGHTS_FILE, lambda rows: first(rows).update(relative_error=1.5), "is not a number from 0 to 1"),
    (WEIGHTS_FILE, lambda rows: first(rows).update(bytes=-1), "is not a whole number from 0 on"),
    (WEIGHTS_FILE, lambda rows: first(rows).update(name=3), "3 is not a text"),
    (WEIGHTS_FILE, lambda rows: rows.clear(), "it lists none"),
    (WEIGHTS_FILE, lambda rows: rows.pop(), "does not list the drafter of its config"),
    (TARGET_CONFIG, lambda raw: raw.update(intermediate_size=1 << 30), "does not list the target|describe \\d+ values"),
    (
        TARGET_CONFIG,
        lambda raw: raw.update(hidden_size_per_layer_input=0),
        "this model needs drafter.tflite, embedder.tflite, t",
    ),
    (DRAFTER_CONFIG, lambda raw: raw.update(num_centroids=32), "does not list the drafter of its config"),
    (MANIFEST, lambda raw: raw["files"].pop(WEIGHTS_FILE), "has no weights.json; export it again"),
    (
        MANIFEST,
        lambda raw: raw["graphs"]["litert"]["parts"].pop("embedder"),
        "this model needs drafter.tflite, embedder.tflite",
    ),
]


@pytest.mark.parametrize(("name", "change", "words"), CHANGES)
def test_files_that_do_not_fit_together_are_refused(
    name: str, change: Callable[[Any], object], words: str, bundle: Path, tmp_path: Path
) -> None:
    edit(bundle / name, change)
    with pytest.raises(InputError, match=words):
        packed(bundle, tmp_path / "out")


def test_sizes_that_no_file_holds_take_no_memory(bundle: Path) -> None:
    """Configuration and list agree, so only the graphs' own size tells."""
    edit(bundle / TARGET_CONFIG, lambda raw: raw.update(intermediate_size=1 << 30))

    def widen(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["model"] == "target" and ".mlp." in row["name"]:
                layer = int(row["name"].split(".")[2])
                row["shape"] = [1 << (31 if layer >= 5 else 30) if size > 64 else size for size in row["shape"]]

    edit(bundle / WEIGHTS_FILE, widen)
    with pytest.raises(InputError, match=r"has graphs with \d+ bytes of weights, and .* describe \d+ values"):
        open_stored(Bundle.read(bundle))


def test_other_scales_than_rows_are_refused(bundle: Path, tmp_path: Path) -> None:
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs((bundle / "drafter.tflite").read_bytes()))
    for tensor in model.subgraphs[0].tensors:
        if tensor.quantization is not None and tensor.quantization.scale is not None:
            tensor.quantization.scale = tensor.quantization.scale[:-1]
    edited = TfliteFile()
    edited.model = model
    head = edited._packed()
    weights = (bundle / "drafter.tflite").read_bytes()[len(head) :]
    (bundle / "drafter.tflite").write_bytes(bytes(head) + weights)
    with pytest.raises(InputError, match=r"the bundle's graphs hold \d+ (scales|bytes) of .*, which"):
        packed(bundle, tmp_path / "out")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda raw: b"", id="empty"),
        pytest.param(lambda raw: b"TFL3", id="short"),
        pytest.param(lambda raw: bytes(64), id="zeros"),
        pytest.param(lambda raw: b"\xff" * 64, id="ones"),
        pytest.param(lambda raw: raw[:1000], id="cut in the flatbuffer"),
        pytest.param(lambda raw: raw[:-100], id="cut in the weights"),
        pytest.param(lambda raw: b"\xff\xff\xff\x7f" + raw[4:], id="a root outside"),
    ],
)
def test_what_is_no_whole_graph_is_refused(content: Callable[[bytes], bytes], bundle: Path) -> None:
    file = bundle / "target.tflite"
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(InputError, match=r"target.tflite is not a whole .tflite file \("):
        stored_tensors(file)


@pytest.mark.parametrize("claimed", [MOST_TENSORS, (1 << 32) - 1])
def test_a_small_file_that_claims_countless_tensors_is_refused_at_once(claimed: int, tmp_path: Path) -> None:
    raw = bytearray(_one_tensor())
    table = schema.Model.GetRootAs(raw).Subgraphs(0)._tab
    length = table.Vector(table.Offset(4)) - 4
    raw[length : length + 4] = claimed.to_bytes(4, "little")
    (tmp_path / "x.tflite").write_bytes(raw)
    with pytest.raises(InputError, match=f"it has more than {MOST_TENSORS} tensors"):
        stored_tensors(tmp_path / "x.tflite")


def _one_tensor() -> bytes:
    made, graph, tensor = TfliteFile(), schema.SubGraphT(), schema.TensorT()
    tensor.name, tensor.shape = b"x", np.array([1], np.int32)
    graph.tensors, graph.inputs, graph.outputs, graph.operators = [tensor], [], [], []
    made.model.subgraphs = [graph]
    return bytes(made._packed())
