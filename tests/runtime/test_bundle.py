"""Opening a bundle: the manifest's literal form, and every way in which files can differ from it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from damage import alter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import paceline
from paceline import bundle as bundles
from paceline.bundle import MANIFEST, Bundle
from paceline.draft_length import AdaptiveLimits
from paceline.errors import InputError
from paceline.manifest import ChatTurns, GraphFiles, Manifest, StoredFile
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


names = st.text("ab._- é", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))
words = st.text(max_size=8)
sizes = st.integers(1, (1 << 31) - 1)
hashes = st.text("0123456789abcdef", min_size=64, max_size=64)
shapes = st.lists(st.integers(1, 9) | st.sampled_from("TS"), max_size=3)
ports = st.dictionaries(st.text(max_size=5), st.tuples(st.sampled_from(["float32", "int32"]), shapes).map(list), max_size=2)
signatures = st.dictionaries(
    st.text(max_size=5), st.fixed_dictionaries({"inputs": ports, "outputs": ports}), min_size=1, max_size=2
)
parts = st.fixed_dictionaries({"target": names, "drafter": names}, optional={"embedder": names})


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    layers = draw(st.integers(1, 40))
    cached = draw(st.lists(st.integers(0, layers - 1), min_size=1, max_size=3, unique=True))
    graphs = draw(
        st.dictionaries(st.text(max_size=8), st.builds(GraphFiles, parts, st.dictionaries(names, signatures)), max_size=2)
    )
    listed = {name for g in graphs.values() for name in g.parts.values()} | draw(st.sets(names, max_size=3))
    vocab_size = draw(sizes)
    return Manifest(
        made_by=draw(st.text(max_size=8)),
        recipe=draw(st.text(max_size=8)),
        vocab_size=vocab_size,
        hidden_size=draw(sizes),
        layers=layers,
        per_layer_size=draw(st.integers(0, 300)),
        window=draw(sizes),
        max_positions=draw(sizes),
        bos_id=draw(st.none() | st.integers(0, 300)),
        stop_ids=tuple(draw(st.lists(st.integers(0, 300), max_size=3))),
        draft_position_offset=draw(st.sampled_from([0, -1])),
        caches=tuple(CacheSpec(layer, draw(st.sampled_from(CacheKind)), draw(sizes), draw(sizes)) for layer in cached),
        drafter_layers=tuple(draw(st.lists(st.sampled_from(cached), max_size=3, unique=True))),
        scored_tokens=draw(st.integers(1, vocab_size)),
        vocabulary_sha256=draw(hashes),
        graphs=graphs,
        files={name: StoredFile(draw(st.integers(0, 1 << 50)), draw(hashes)) for name in sorted(listed)},
        chat_turns=draw(st.none() | st.builds(ChatTurns, words, st.tuples(words, words), st.tuples(words, words), words)),
        adaptive=AdaptiveLimits(draw(st.integers(0, 7)), draw(st.booleans())),
    )


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(manifest=manifests())
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


ESCAPES = ["../outside", "/etc/passwd", "sub/file", "..", ".", "", "./target.onnx", "a\0b", "..\\outside", "C:x", "a" * 256]


@pytest.mark.parametrize("name", ESCAPES)
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


def test_a_change_that_sets_its_time_back_is_noticed(copy: Path) -> None:
    """Size, inode and time of modification are what they were; the file system's own time of change is not."""
    Bundle.open(copy)
    alter(copy / DATA)
    for opened in (Bundle.open, lambda folder: Bundle.read(folder).check_hashes()):
        with pytest.raises(InputError, match="the file was altered"):
            opened(copy)


@pytest.mark.parametrize("year", [-30, 30])
def test_a_clock_that_was_wrong_costs_a_check_and_no_more(year: int, copy: Path) -> None:
    then = (copy / DATA).stat().st_mtime + year * 365 * 86_400
    for file in copy.iterdir():
        os.utime(file, (then, then))
    Bundle.open(copy)
    assert paceline.load(copy).manifest == Bundle.read(copy).manifest


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
