"""What the C++ core refuses: one sentence and exit code 2; and the files that it keeps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from android_core import LIBRARY, Core


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_bundle, tmp_path / "bundle")


def refused(core: Core, *arguments: object) -> str:
    done = core.run("paceline-run", *map(str, arguments))
    assert done.returncode == 2, (done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("paceline-run: ")]
    assert len(lines) == 1
    assert done.stdout == ""
    return lines[0]


def test_arguments(core: Core, tiny_bundle: Path, tmp_path: Path) -> None:
    run = (tiny_bundle, "--library", LIBRARY, "-p", "x")
    for options, word in (
        ([], "bundle is missing"),
        ([tmp_path / "none", "-p", "x"], "cannot be opened"),
        ([tiny_bundle, "--what"], "--what"),
        ([*run, "--draft", "8"], "--draft"),
        ([*run, "--seed", "-1"], "--seed"),
        ([*run, "--prompt-ids", "1,,2"], "--prompt-ids"),
        ([*run, "--context", "1000000"], "context"),
        ([*run, "--context", "16", "-p", "word " * 40], "do not fit"),
        ([*run, "--memory", "1"], "memory"),
        ([*run, "--backend", "gpu"], "GPU"),
        ([*run, "--target-on", "npu"], "NPU"),
        ([tiny_bundle, "-p", "x", "--library", tmp_path / "none.so"], "LiteRT cannot be loaded"),
        ([*run, "--cache", tmp_path / "none"], "cache directory"),
    ):
        assert word in refused(core, *options)


@pytest.mark.parametrize("name", ["drafter.tflite", "tokenizer.bin"])
def test_altered_files(core: Core, copy: Path, name: str, tmp_path: Path) -> None:
    run = (copy, "--library", LIBRARY, "--cache", tmp_path, "-p", "x", "-n", "1")
    assert core.run("paceline-run", *run).returncode == 0
    file = copy / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert name in refused(core, *run)
    file.write_bytes(content[:-1])
    assert "bytes" in refused(core, *run)
    file.unlink()
    assert name in refused(core, *run)


def test_manifests(core: Core, copy: Path) -> None:
    file = copy / "manifest.json"
    raw = json.loads(file.read_text())
    run = (copy, "--library", LIBRARY, "-p", "x")
    for change, word in (
        ({"format": "other"}, "paceline bundle"),
        ({"format_version": 2}, "format_version"),
        ({"draft_position_offset": 1}, "draft_position_offset"),
        ({"drafter_reads_layers": [99]}, "drafter_reads_layers"),
        ({"model": {**raw["model"], "vocab_size": 10**30}}, "model.vocab_size"),
        ({"model": {**raw["model"], "window": raw["model"]["window"] + 64}}, "another type or shape"),
        ({"graphs": {"onnxruntime": {}}}, "no TFLite graphs"),
    ):
        file.write_text(json.dumps({**raw, **change}))
        assert word in refused(core, *run)
    parts = {**raw["graphs"]["litert"]["parts"], "target": "../target.tflite"}
    file.write_text(json.dumps({**raw, "graphs": {"litert": {**raw["graphs"]["litert"], "parts": parts}}}))
    assert "without a directory" in refused(core, *run)
    for text in ("", "[" * 100_000, '{"format": 1', '{"a": 1, "a": 2}', "\xff"):
        file.write_text(text, encoding="latin-1")
        assert "manifest.json" in refused(core, *run)


def test_packed_weights_are_used_again_and_built_again_when_they_changed(core: Core, tiny_bundle: Path, tmp_path: Path) -> None:
    def run() -> dict[str, tuple[int, bytes]]:
        done = core.run("paceline-run", tiny_bundle, "--library", LIBRARY, "--cache", tmp_path, "-p", "x", "-n", "1")
        assert done.returncode == 0, done.stderr
        return {file.name: (file.stat().st_ctime_ns, file.read_bytes()) for file in tmp_path.glob("*.xnnpack")}

    first = run()
    assert len(first) == 2
    assert run() == first
    damaged = next(tmp_path.glob("*.xnnpack"))
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    again = run()
    assert again.keys() == first.keys()
    assert again[damaged.name][1].strip(b"x")
    assert not list(tmp_path.glob("*.partial"))
