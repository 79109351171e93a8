"""Opening a bundle: the manifest's literal form, and every way in which files can differ from it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from damage import alter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import paceline
from paceline import bundle as bundles
from paceline.bundle import MANIFEST, Bundle, GraphFiles, Manifest, StoredFile
from paceline.errors import InputError
from paceline.signatures import CacheKind, CacheSpec

FIXTURE = Path(__file__).parents[1] / "data" / "manifest_v3.json"
DATA = "target.onnx.data"

LITERAL = Manifest(
    made_by="paceline 0.1.0",
    recipe="f32",
    vocab_size=512,
    hidden_size=64,
    layers=10,
    per_layer_size=8,
    window=16,
    max_positions=4096,
    bos_id=2,
    stop_ids=(1, 106),
    draft_position_offset=-1,
    caches=(CacheSpec(3, CacheKind.LOCAL, 1, 16), CacheSpec(4, CacheKind.FULL, 2, 32)),
    drafter_layers=(3, 4),
    scored_tokens=32,
    vocabulary_sha256="00" * 32,
    graphs={
        "onnxruntime": GraphFiles(
            {"target": "target.onnx", "drafter": "drafter.onnx"},
            {"drafter.onnx": {"main": {"inputs": {"token": ["int64", [1]]}, "outputs": {"draft_logit": ["float32", [1]]}}}},
        )
    },
    files={"target.onnx": StoredFile(75114, "ab" * 32), "drafter.onnx": StoredFile(22559, "cd" * 32)},
)


def test_the_literal_manifest_means_what_it_always_meant() -> None:
    """Changing this fixture means a new format version."""
    text = FIXTURE.read_text(encoding="utf-8")
    assert Manifest.from_json(text, "fixture") == LITERAL
    assert LITERAL.to_json() == text


def with_its_graphs(manifest: Manifest) -> Manifest:
    """Lists the graphs among the files, as every bundle does."""
    graphs = {name: StoredFile(1, "") for g in manifest.graphs.values() for name in g.parts.values()}
    return replace(manifest, files=graphs | manifest.files)


names = st.text("ab._- é", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))
counts = st.integers(0, 1 << 40)
ports = st.dictionaries(st.sampled_from(["inputs", "outputs"]), st.lists(counts, max_size=2), max_size=2)
signatures = st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=5), ports, max_size=2), max_size=2)
parts = st.fixed_dictionaries({"target": names, "drafter": names}, optional={"embedder": names})
manifests = st.builds(
    Manifest,
    vocab_size=counts,
    hidden_size=counts,
    layers=counts,
    per_layer_size=counts,
    window=counts,
    max_positions=counts,
    bos_id=st.none() | counts,
    stop_ids=st.lists(counts, max_size=3).map(tuple),
    draft_position_offset=st.sampled_from([0, -1]),
    caches=st.lists(st.builds(CacheSpec, counts, st.sampled_from(CacheKind), counts, counts), max_size=3).map(tuple),
    drafter_layers=st.lists(counts, max_size=3).map(tuple),
    scored_tokens=counts,
    graphs=st.dictionaries(st.text(max_size=8), st.builds(GraphFiles, parts, signatures), max_size=2),
    files=st.dictionaries(names, st.builds(StoredFile, counts, st.text(max_size=8)), max_size=3),
).map(with_its_graphs)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(manifest=manifests)
def test_a_manifest_survives_its_file(manifest: Manifest) -> None:
    text = manifest.to_json()
    assert Manifest.from_json(text, "here") == manifest
    assert Manifest.from_json(text, "here").to_json() == text


def places(raw: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    inside = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    return [path, *(deeper for key, value in inside for deeper in places(value, (*path, key)))]


JSON = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.text(max_size=4)
    | st.just([])
    | st.just({})
    | st.just([{}])
)


@settings(max_examples=200)
@given(data=st.data(), value=JSON)
def test_a_damaged_manifest_is_refused_or_read_and_nothing_else(data: st.DataObject, value: object) -> None:
    document: Any = {"": json.loads(FIXTURE.read_text())}
    *way, last = data.draw(st.sampled_from(places(document)[1:]))
    inner = document
    for key in way:
        inner = inner[key]
    inner[last] = value
    try:
        Manifest.from_json(json.dumps(document[""]), "here")
    except InputError as error:
        assert str(error).startswith(("here", MANIFEST))  # noqa: PT017 - being read is as good


def test_a_graph_that_is_not_among_the_files_is_refused() -> None:
    """Its size and hash would never be checked."""
    text = FIXTURE.read_text().replace('"target": "target.onnx"', '"target": "other.onnx"')
    with pytest.raises(InputError, match=r"here is not a valid manifest .*other\.onnx.* not among its files"):
        Manifest.from_json(text, "here")


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_graphs_without_a_target_or_a_drafter_are_refused(part: str) -> None:
    raw = json.loads(FIXTURE.read_text())
    del raw["graphs"]["onnxruntime"]["parts"][part]
    with pytest.raises(InputError, match=r"here is not a valid manifest .*onnxruntime lack a target or a drafter"):
        Manifest.from_json(json.dumps(raw), "here")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", "[" * 100_000])
def test_what_is_no_manifest_is_refused(text: str, copy: Path) -> None:
    (copy / MANIFEST).write_text(text)
    with pytest.raises(InputError, match="is not a valid manifest"):
        Bundle.open(copy)


@pytest.mark.parametrize("change", [{"format_version": 2}, {"format_version": "3"}, {"format": "another-bundle"}])
def test_another_version_is_refused_with_both(change: dict[str, Any], copy: Path) -> None:
    raw = json.loads((copy / MANIFEST).read_text()) | change
    (copy / MANIFEST).write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"the format is .* version .*; this paceline reads paceline-bundle version 3"):
        Bundle.open(copy)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/file", "..", ".", "", "./target.onnx"])
@pytest.mark.parametrize("where", ["files", "target", "drafter"])
def test_a_file_name_that_leaves_the_bundle_is_refused(name: str, where: str, copy: Path) -> None:
    """The file outside exists and is as described, so only its name can be what is refused."""
    (copy.parent / "outside").write_bytes(b"")
    raw = json.loads((copy / MANIFEST).read_text())
    if where == "files":
        raw["files"][name] = {"bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    else:
        raw["graphs"]["onnxruntime"]["parts"][where] = name
    (copy / MANIFEST).write_text(json.dumps(raw))
    with pytest.raises(InputError, match="only plain names inside the bundle are allowed"):
        Bundle.open(copy)


@pytest.mark.parametrize("name", [DATA, "drafter.onnx", "target.tflite", "embedder.tflite", "tokenizer.json"])
def test_a_truncated_or_missing_file_is_noticed_at_every_load(name: str, copy: Path) -> None:
    paceline.load(copy)
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[:-1])
    with pytest.raises(InputError, match=f"{name} has {len(whole) - 1} bytes, the manifest says {len(whole)}"):
        paceline.load(copy)
    (copy / name).unlink()
    with pytest.raises(InputError, match=f"{name} is missing"):
        paceline.load(copy)


def test_an_altered_byte_is_noticed_at_the_first_load(copy: Path) -> None:
    alter(copy / DATA)
    for _ in range(2):  # a refusal is not remembered as a check
        with pytest.raises(InputError, match=f"{DATA} has sha256 .*the file was altered"):
            paceline.load(copy)


def test_files_are_hashed_at_the_first_load_only(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    real = bundles.sha256
    monkeypatch.setattr(bundles, "sha256", lambda file, progress=None: hashed.append(file.name) or real(file, progress))
    Bundle.open(copy)
    assert sorted(hashed) == sorted(Bundle.read(copy).manifest.files)
    hashed.clear()
    Bundle.open(copy)
    assert hashed == []
    (copy / DATA).touch()  # another file, for all that a look from outside tells
    Bundle.open(copy)
    assert DATA in hashed


def test_a_later_change_that_hides_itself_is_found_by_hashing(copy: Path) -> None:
    """What is not looked for at every start is what `inspect --check` is for."""
    Bundle.open(copy)
    alter(copy / DATA)
    Bundle.open(copy).check_sizes()
    with pytest.raises(InputError, match="the file was altered"):
        Bundle.read(copy).check_hashes()


def test_a_copy_of_a_checked_bundle_is_checked_again(copy: Path) -> None:
    Bundle.open(copy)
    other = shutil.copytree(copy, copy.parent / "other")
    alter(other / DATA)
    with pytest.raises(InputError, match="the file was altered"):
        Bundle.open(other)


def test_a_cache_that_cannot_be_written_costs_a_check_and_no_more(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy.parent / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(copy.parent / "file"))
    Bundle.open(copy)
    alter(copy / DATA)
    with pytest.raises(InputError, match="the file was altered"):
        Bundle.open(copy)


def test_progress_of_hashing_counts_every_byte(tiny_bundle: Path) -> None:
    seen: dict[str, int] = {}
    bundle = Bundle.read(tiny_bundle)
    bundle.check_hashes(lambda name, size: seen.update({name: seen.get(name, 0) + size}))
    assert seen == {name: stored.size for name, stored in bundle.manifest.files.items()}
