"""Bundles of strangers: links that lead out, places that are no files, and numbers that cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.backends import BACKENDS
from paceline.bundle import MANIFEST, Bundle
from paceline.cli.main import main
from paceline.errors import InputError
from paceline.manifest import Manifest

FIXTURE = Path(__file__).parents[1] / "data" / "manifest_v3.json"
DATA = "target.onnx.data"


@pytest.mark.parametrize("name", [MANIFEST, "tokenizer.json", "target.tflite"])
def test_a_link_out_of_the_bundle_is_refused_with_where_it_leads(name: str, copy: Path) -> None:
    """What it leads to is as the manifest says, so only the link can be what is refused."""
    outside = (copy / name).rename(copy.parent / "outside")
    (copy / name).symlink_to(outside)
    with pytest.raises(InputError, match=f"{name} is a link to {outside}, which is not in the bundle; copy the bundle with"):
        Bundle.open(copy)


def test_links_inside_the_bundle_and_to_it_are_followed(copy: Path) -> None:
    (copy / DATA).rename(copy / "weights")
    (copy / DATA).symlink_to("weights")
    (copy.parent / "linked").symlink_to(copy)
    assert Bundle.open(copy.parent / "linked").manifest == Bundle.read(copy).manifest


def no_file(path: Path, kind: str) -> None:
    """Puts something in a file's place from which reading never ends, or never begins."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)


@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "circle"])
@pytest.mark.parametrize("name", [MANIFEST, "tokenizer.json", "weights.json"])
def test_what_is_no_file_is_refused_and_nobody_waits_for_it(name: str, kind: str, copy: Path) -> None:
    no_file(copy / name, kind)
    with pytest.raises(InputError, match="has no manifest.json" if name == MANIFEST else f"{name} is missing"):
        Bundle.open(copy)
    assert main(["inspect", str(copy), "--weights"]) == 2
    assert main(["verify", str(copy)]) in (1, 2)
    assert main(["pack", str(copy), "-o", str(copy.parent / "out")]) == 2


CONTRADICTIONS: list[tuple[tuple[str | int, ...], object, str]] = [
    (("model", "vocab_size"), 1 << 31, "vocab_size is 2147483648, and not a whole number from 1 to 2147483647"),
    (("model", "vocab_size"), True, "vocab_size is True"),
    (("model", "hidden_size"), 0, "hidden_size is 0"),
    (("model", "window"), 16.5, "window is 16.5"),
    (("model", "layers"), "10", "layers is '10'"),
    (("model", "stop_ids"), [1, -1], "stop_ids is -1"),
    (("model", "vocabulary_sha256"), "../" * 21 + "x", "and not the 64 hexadecimal digits of a hash"),
    (("draft_position_offset",), 1, "draft_position_offset is 1, and not a whole number from -1 to 0"),
    (("kv_cache",), [], "kv_cache has no layer"),
    (("kv_cache", 0, "layer"), 10, r"kv_cache is \[10, 4\], which does not fit"),
    (("kv_cache", 0, "layer"), 4, r"kv_cache is \[4, 4\], which does not fit"),
    (("kv_cache", 0, "head_dim"), 0, "head_dim is 0"),
    (("drafter_reads_layers",), [5], r"drafter_reads_layers is \[5\], which does not fit"),
    (("drafter_scores_tokens",), 513, r"drafter_scores_tokens is \[513\], which does not fit"),
    (("files", "target.onnx", "bytes"), -1, "bytes is -1"),
    (("files", "target.onnx", "sha256"), "0", "sha256 is '0'"),
    (("graphs", "onnxruntime", "signatures", "drafter.onnx"), {}, "drafter.onnx has no signatures"),
    (("graphs", "onnxruntime", "signatures", "drafter.onnx", "main", "inputs", "token"), [3, [1]], "token is 3"),
]


@pytest.mark.parametrize(("place", "value", "words"), CONTRADICTIONS)
def test_a_number_that_cannot_be_is_refused_with_its_field(place: tuple[str | int, ...], value: object, words: str) -> None:
    raw: Any = json.loads(FIXTURE.read_text())
    inner = raw
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(InputError, match=words):
        Manifest.from_json(json.dumps(raw), "here")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("field", ["vocab_size", "hidden_size"])
def test_numbers_are_compared_with_the_graphs_before_memory_is_taken(
    backend: str, field: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = json.loads((copy / MANIFEST).read_text())
    raw["model"][field] = (1 << 31) - 1
    (copy / MANIFEST).write_text(json.dumps(raw))
    monkeypatch.setattr("paceline.model.KVCache", None)
    with pytest.raises(InputError, match=r"it belongs to another pair; export the bundle again"):
        paceline.load(copy, backend=backend)
