"""TFLite bundles that are whole by size and hash, and still not what they should be: each is refused in one line."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from ai_edge_litert import schema_py_generated as schema
from command import SCRIPT, refused

import paceline
from paceline import signatures
from paceline.backends.names import LITERT, ONNXRUNTIME
from paceline.bundle import MANIFEST, sha256
from paceline.cli.main import main
from paceline.errors import CapacityError, InputError
from paceline.signatures import PREFILL, VERIFY, Port, Signature
from paceline_export.bundle import export
from paceline_export.lower.flatbuffer import Builtin, Subgraph, TfliteFile
from paceline_export.lower.tflite_ops import TfliteOps

TARGET, DRAFTER, EMBEDDER = "target.tflite", "drafter.tflite", "embedder.tflite"
RUN = ["-p", "the little train", "--max-new-tokens", "6"]
ROWS = VERIFY | PREFILL
FLIPS = {TARGET: 12, DRAFTER: 14, EMBEDDER: 6}
CRASHED = -1000
TIMEOUT_S = 60


def restate(bundle: Path, *names: str) -> None:
    """Makes the manifest state the size and hash that files have now."""
    raw = json.loads((bundle / MANIFEST).read_text())
    for name in names:
        raw["files"][name] = {"bytes": (bundle / name).stat().st_size, "sha256": sha256(bundle / name)}
    (bundle / MANIFEST).unlink()  # it may be a link to another bundle's
    (bundle / MANIFEST).write_text(json.dumps(raw))


def replaced(bundle: Path, name: str, content: bytes) -> Path:
    (bundle / name).unlink()
    (bundle / name).write_bytes(content)
    restate(bundle, name)
    return bundle


def without(bundle: Path, backend: str) -> Path:
    raw = json.loads((bundle / MANIFEST).read_text())
    for name in raw["graphs"].pop(backend)["parts"].values():
        del raw["files"][name]
    (bundle / MANIFEST).write_text(json.dumps(raw))
    return bundle


def head_bytes(raw: bytes) -> int:
    """Where the weights start."""
    model = schema.Model.GetRootAs(raw)
    return min(offset for i in range(model.BuffersLength()) if (offset := model.Buffers(i).Offset()) > 1)


def run_apart(bundle: Path, command: str = "run") -> subprocess.CompletedProcess[str]:
    """In a process of its own, which may die."""
    arguments = [sys.executable, "-c", SCRIPT, command, str(bundle), *(["--no-weight-cache", *RUN] if command == "run" else [])]
    try:
        return subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(arguments, CRASHED, "", "it hangs")


def test_a_truncated_graph_is_refused_with_both_sizes(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = (copy / TARGET).stat().st_size
    os.truncate(copy / TARGET, whole // 2)
    assert f"{TARGET} has {whole // 2} bytes, the manifest says {whole}" in refused(["run", str(copy), *RUN], capfd)


@pytest.mark.parametrize("part", [TARGET, DRAFTER, EMBEDDER, "per_layer_embedder.tflite"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"no graph", id="text"),
        pytest.param(lambda _: bytes(100_000), id="zeros"),
        pytest.param(lambda raw: raw[:8], id="an identifier and no more"),
        pytest.param(lambda raw: raw[:-64], id="cut in the weights"),
        pytest.param(lambda raw: raw[: head_bytes(raw)], id="no weights"),
        pytest.param(lambda raw: b"\xff\xff\xff\x7f" + raw[4:], id="a root outside"),
    ],
)
def test_a_file_that_is_no_whole_graph_is_refused_by_name(
    content: Callable[[bytes], bytes], part: str, copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    replaced(copy, part, content((copy / part).read_bytes()))
    sentence = refused(["run", str(copy), *RUN], capfd)
    assert f"{copy / part}: LiteRT cannot load it (" in sentence
    assert sentence.endswith("); export the bundle again.\n")


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("part", [TARGET, DRAFTER])
def test_a_graph_cut_before_its_weights_does_not_end_the_process(part: str, share: float, copy: Path) -> None:
    raw = (copy / part).read_bytes()
    done = run_apart(replaced(copy, part, raw[: int(head_bytes(raw) * share)]))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{part}: LiteRT cannot load it (" in done.stderr


@pytest.fixture(scope="module")
def flipped(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """What came of one bit turned over somewhere in front of the weights, by file, byte and bit."""

    def run(part: str, byte: int, bit: int) -> subprocess.CompletedProcess[str]:
        bundle = tmp_path_factory.mktemp("flipped") / "bundle"
        shutil.copytree(tiny_bundle, bundle, copy_function=os.link)
        raw = bytearray((bundle / part).read_bytes())
        raw[byte] ^= 1 << bit
        return run_apart(replaced(bundle, part, bytes(raw)))

    draw = random.Random(0)
    places = [
        (part, draw.randrange(head_bytes((tiny_bundle / part).read_bytes())), draw.randrange(8))
        for part, count in FLIPS.items()
        for _ in range(count)
    ]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(map(str, places), pool.map(lambda place: run(*place), places), strict=True))


def test_a_flipped_bit_in_a_graph_does_not_end_the_process(flipped: dict[str, subprocess.CompletedProcess[str]]) -> None:
    """It runs, or is refused, or fails in the way of the command."""
    died = {place: done.returncode for place, done in flipped.items() if done.returncode not in (0, 2, 3)}
    assert not died
    assert any(done.returncode == 2 for done in flipped.values())


def test_a_flipped_bit_in_a_graph_is_told_in_one_line_or_is_harmless(
    flipped: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    said = {place: done.stderr for place, done in flipped.items() if done.returncode in (0, 2, 3)}
    wordy = {place: text for place, text in said.items() if text and (text.count("\n"), text[:10]) != (1, "paceline: ")}
    assert not wordy
    assert not {place: text for place, text in said.items() if "this is a bug" in text}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"hidden_size": 32},
            "activations of signature draft is float32 [1, 1, 64], and this bundle's target and drafter have",
        ),
        (
            {"head_dim": 32},
            "kv_cache_k_3 of signature draft is float32 [1, 1, 256, 32], and this bundle's target and drafter have",
        ),
        ({"num_key_value_heads": 2}, "signature draft lacks kv_cache_k_3; export the bundle again"),
        ({"sliding_window": 128}, "local_mask of signature draft is float32 [1, 1, 1, 320], and this bundle's target and"),
    ],
)
def test_a_drafter_of_another_target_is_refused_with_what_differs(
    changes: dict[str, int], words: str, copy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    export(*tiny.write_pair(tmp_path / "pair", **changes), tmp_path / "other", lambda *_: None)
    capfd.readouterr()
    replaced(copy, DRAFTER, (tmp_path / "other" / DRAFTER).read_bytes())
    assert f"{copy / DRAFTER}: {words}" in refused(["run", str(copy), *RUN], capfd)


def test_target_and_drafter_in_each_others_place_are_refused(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target, drafter = ((copy / name).read_bytes() for name in (TARGET, DRAFTER))
    (copy / TARGET).write_bytes(drafter)
    (copy / DRAFTER).write_bytes(target)
    restate(copy, TARGET, DRAFTER)
    sentence = refused(["run", str(copy), *RUN], capfd)
    assert f"{DRAFTER} has no signature draft (it has decode, prefill_128, prefill_16, verify, verify_2, verify_8)" in sentence


def test_an_embedder_in_the_targets_place_is_refused(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its signatures have the same names."""
    replaced(copy, TARGET, (copy / EMBEDDER).read_bytes())
    assert f"{TARGET}: signature decode lacks " in refused(["run", str(copy), *RUN], capfd)


def embedder(file: Path, change: Callable[[Signature], Signature] = lambda made: made, table_rows: int = 512) -> None:
    """Writes a small embedder that is right but for what is asked."""
    made = TfliteFile()
    for rows, name in ROWS.items():
        signature = change(signatures.tflite_embedder(signatures.EMBEDDINGS, rows, (tiny.WIDTH,)))
        op = TfliteOps(Subgraph(made, name))
        tokens, *_ = (op.graph.input(port) for port in signature.inputs)
        width = signature.outputs[0].shape[-1]
        assert isinstance(width, int)
        table = op.constant(np.ones((table_rows, width)))
        ids = op.reshape(tokens, rows, dtype="int32")
        found = op.node(Builtin.EMBEDDING_LOOKUP, [ids, table], (rows, width))
        op.graph.output(signature.outputs[0], op.reshape(found, 1, rows, width))
        op.graph.finish()
    file.unlink()
    made.save(file, lambda *_: None)
    restate(file.parent, file.name)


def with_output(**changes: object) -> Callable[[Signature], Signature]:
    return lambda made: replace(made, outputs=(replace(made.outputs[0], **changes),))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(with_output(name="vectors"), "signature decode lacks embeddings", id="renamed to a later name"),
        pytest.param(with_output(name="a"), "signature decode lacks embeddings", id="renamed to an earlier name"),
        pytest.param(
            lambda made: replace(made, inputs=(*made.inputs, Port("more", "int32", (1,)))),
            "signature decode has the unknown tensor more",
            id="one more",
        ),
        pytest.param(with_output(shape=(1, 1, 32)), "embeddings of signature decode is float32 [1, 1, 32]", id="narrower"),
    ],
)
def test_a_signature_with_another_tensor_is_refused_with_its_name(
    change: Callable[[Signature], Signature], words: str, copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def first_only(made: Signature) -> Signature:
        return change(made) if made.inputs[0].shape == (1, 1) else made

    embedder(copy / EMBEDDER)
    assert main(["run", str(copy), *RUN]) == 0
    capfd.readouterr()
    embedder(copy / EMBEDDER, first_only)
    assert f"{copy / EMBEDDER}: {words}" in refused(["run", str(copy), *RUN], capfd)


def test_a_name_that_is_no_text_is_refused(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    raw = (copy / EMBEDDER).read_bytes()
    replaced(copy, EMBEDDER, raw.replace(b"token_ids", b"\xfe\xffken_ids"))
    assert f"{EMBEDDER}: signature decode lacks token_ids" in refused(["run", str(copy), *RUN], capfd)


def test_a_graph_that_fails_while_it_runs_is_told_in_one_line(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The table of a smaller vocabulary has the same signatures, and no row for the prompt."""
    embedder(copy / EMBEDDER, table_rows=4)
    assert main(["run", str(copy), *RUN]) == 3
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("paceline: failed: LiteRT")
    assert captured.err.count("\n") == 1


def test_inspect_refuses_a_graph_that_cannot_be_loaded_before_it_prints(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    replaced(copy, DRAFTER, b"no graph")
    assert f"{DRAFTER}: LiteRT cannot load it" in refused(["inspect", str(copy)], capfd)


@pytest.mark.parametrize("backend", [LITERT, ONNXRUNTIME])
def test_a_backend_without_graphs_is_refused_with_the_format_to_export(
    backend: str, copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    without(copy, backend)
    sentence = refused(["run", str(copy), *RUN, "--backend", backend], capfd)
    name, flag = {LITERT: ("TFLite", "tflite"), ONNXRUNTIME: ("ONNX", "onnx")}[backend]
    assert f"{copy} has no {name} graphs; export it with --format {flag}" in sentence
    assert main(["run", str(copy), *RUN]) == 0  # on the other one


def test_a_backend_of_another_name_is_refused_with_those_there_are(tiny_bundle: Path) -> None:
    with pytest.raises(InputError, match="backend is 'tflite'; allowed are litert and onnxruntime"):
        paceline.load(tiny_bundle, backend="tflite")


def test_a_prompt_longer_than_the_capacity_is_refused_before_a_graph_runs(
    tiny_bundle: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sentence = refused(["run", str(tiny_bundle), *RUN, "--capacity", "5", "--backend", LITERT], capfd)
    assert "tokens do not fit in a KV cache of capacity 5" in sentence
    model = paceline.load(tiny_bundle, backend=LITERT, capacity=200)
    with pytest.raises(CapacityError, match="201 tokens do not fit in a KV cache of capacity 200"):
        next(model.generate([2] * 201))
    assert [piece.token for piece in model.generate([2] * 200, max_new_tokens=1)]


def test_a_good_bundle_says_nothing_on_stderr(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """LiteRT greets there, and says what it does."""
    for _ in range(2):  # the second time with packed weights from the cache
        model = paceline.load(copy, backend=LITERT)
        assert len(list(model.generate("the little train", max_new_tokens=6))) == 6
        assert "XNNPACK ran" in model.backend.describe()
    assert capfd.readouterr() == ("", "")


def test_stderr_and_every_descriptor_survive_a_load_that_fails(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    replaced(copy, TARGET, b"no graph")

    def state() -> tuple[tuple[int, int], int]:
        status = os.fstat(2)
        return (status.st_dev, status.st_ino), len(list(Path("/proc/self/fd").iterdir()))

    before = state()
    for _ in range(3):
        with pytest.raises(InputError, match="LiteRT cannot load it"):
            paceline.load(copy, backend=LITERT)
    assert state() == before
    os.write(2, b"still here\n")
    assert capfd.readouterr().err == "still here\n"
