"""TFLite bundles that are whole by size and hash, and still not what they should be: each is refused in one line."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
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
FLIPS = {TARGET: 10, DRAFTER: 12, EMBEDDER: 4}
TIMEOUT_S = 20
MORE = (Port("more", "int32", (1,)),)
Change = Callable[[Signature], Signature]
Runs = dict[str, subprocess.CompletedProcess[str]]


def replaced(bundle: Path, name: str, content: bytes) -> Path:
    """Puts another file in a bundle, whose manifest then states its size and hash."""
    raw = json.loads((bundle / MANIFEST).read_text())
    for changed in (name, MANIFEST):
        (bundle / changed).unlink()  # it may be a link to another bundle's
    (bundle / name).write_bytes(content)
    raw["files"][name] = {"bytes": len(content), "sha256": sha256(bundle / name)}
    (bundle / MANIFEST).write_text(json.dumps(raw))
    return bundle


def head_bytes(raw: bytes) -> int:
    """Where the weights start."""
    model = schema.Model.GetRootAs(raw)
    return min(offset for i in range(model.BuffersLength()) if (offset := model.Buffers(i).Offset()) > 1)


def run_apart(bundle: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which may die."""
    arguments = [sys.executable, "-c", SCRIPT, "run", str(bundle), "--no-weight-cache", *RUN]
    try:
        return subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(arguments, -signal.SIGALRM, "", "")


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
        pytest.param(lambda raw: raw[:8], id="no more than its identifier"),
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


@pytest.mark.parametrize("share", [0.25, 0.5])
@pytest.mark.parametrize("part", [TARGET, DRAFTER])
def test_a_graph_cut_before_its_weights_does_not_end_the_process(part: str, share: float, copy: Path) -> None:
    raw = (copy / part).read_bytes()
    done = run_apart(replaced(copy, part, raw[: int(head_bytes(raw) * share)]))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{part}: LiteRT cannot load it (" in done.stderr


@pytest.fixture(scope="module")
def flipped(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What came of one bit turned over somewhere in front of the weights, by file, byte and bit."""
    draw = random.Random(0)
    ends = {part: head_bytes((tiny_bundle / part).read_bytes()) for part in FLIPS}
    places = [(part, draw.randrange(ends[part]), draw.randrange(8)) for part, count in FLIPS.items() for _ in range(count)]

    def run(place: tuple[str, int, int]) -> subprocess.CompletedProcess[str]:
        part, byte, bit = place
        bundle = shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("flipped") / "bundle", copy_function=os.link)
        raw = bytearray((bundle / part).read_bytes())
        raw[byte] ^= 1 << bit
        return run_apart(replaced(bundle, part, bytes(raw)))

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(map(str, places), pool.map(run, places), strict=True))


def test_a_flipped_bit_in_a_graph_does_not_end_the_process(flipped: Runs) -> None:
    """It does no harm, or is refused, or fails in the way of the command."""
    codes = {place: done.returncode for place, done in flipped.items()}
    assert not {place: code for place, code in codes.items() if code not in (0, 2, 3)}
    assert 2 in codes.values()


def test_what_is_said_of_a_flipped_bit_is_one_line(flipped: Runs) -> None:
    said = {place: done.stderr for place, done in flipped.items() if done.stderr}
    assert not {place: text for place, text in said.items() if not text.startswith("paceline: ") or text.count("\n") != 1}
    assert not {place: text for place, text in said.items() if "this is a bug" in text}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 32}, "activations of signature draft is float32 [1, 1, 64], and this bundle's"),
        ({"head_dim": 32}, "kv_cache_k_3 of signature draft is float32 [1, 1, 256, 32], and this bundle's"),
        ({"num_key_value_heads": 2}, "signature draft lacks kv_cache_k_3; export the bundle again"),
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
    replaced(replaced(copy, TARGET, drafter), DRAFTER, target)
    sentence = refused(["run", str(copy), *RUN], capfd)
    assert f"{DRAFTER} has no signature draft (it has decode, prefill_128, prefill_16, verify, verify_2, verify_8)" in sentence


def embedder(bundle: Path, change: Change = lambda made: made, table_rows: int = tiny.VOCABULARY) -> None:
    """Gives a bundle an embedder that is right but for what is asked."""
    made = TfliteFile()
    for rows, name in (VERIFY | PREFILL).items():
        signature = change(signatures.tflite_embedder(signatures.EMBEDDINGS, rows, (tiny.WIDTH,)))
        op, width = TfliteOps(Subgraph(made, name), {}, {}), signature.outputs[0].shape[-1]
        tokens, *_ = (op.graph.input(port) for port in signature.inputs)
        ids, table = op.reshape(tokens, rows, dtype="int32"), op.constant(np.ones((table_rows, width)))
        found = op.node(Builtin.EMBEDDING_LOOKUP, [ids, table], (rows, width))
        op.graph.output(signature.outputs[0], op.reshape(found, 1, rows, width))
        op.graph.finish()
    file = bundle.with_suffix(".tflite")
    file.unlink(missing_ok=True)
    made.save(file, lambda *_: None)
    replaced(bundle, EMBEDDER, file.read_bytes())


def with_output(**changes: object) -> Change:
    return lambda made: replace(made, outputs=(replace(made.outputs[0], **changes),))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_output(name="vectors"), "signature decode lacks embeddings"),
        (with_output(name="a"), "signature decode lacks embeddings"),
        (lambda made: replace(made, inputs=made.inputs + MORE), "signature decode has the unknown tensor more"),
        (with_output(shape=(1, 1, 32)), "embeddings of signature decode is float32 [1, 1, 32]"),
    ],
)
def test_a_signature_with_another_tensor_is_refused_with_its_name(
    change: Change, words: str, copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    embedder(copy)
    assert main(["run", str(copy), *RUN]) == 0  # but for the change it is right
    capfd.readouterr()
    embedder(copy, lambda made: change(made) if made.inputs[0].shape == (1, 1) else made)
    assert f"{copy / EMBEDDER}: {words}" in refused(["run", str(copy), *RUN], capfd)


def test_a_name_that_is_no_text_is_refused(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    raw = (copy / EMBEDDER).read_bytes()
    replaced(copy, EMBEDDER, raw.replace(b"token_ids", b"\xfe\xffken_ids"))
    assert f"{EMBEDDER}: signature decode lacks token_ids" in refused(["run", str(copy), *RUN], capfd)


@pytest.mark.parametrize("part", ["embedder", "per_layer_embedder"])
def test_a_bundle_without_a_token_table_is_refused_with_what_it_needs(
    part: str, copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without the second one the text would be another, and nothing would say so."""
    raw = json.loads((copy / MANIFEST).read_text())
    del raw["graphs"][LITERT]["parts"][part]
    (copy / MANIFEST).write_text(json.dumps(raw))
    assert "this model needs drafter, embedder, per_layer_embedder, target" in refused(["run", str(copy), *RUN], capfd)


def test_a_graph_that_fails_while_it_runs_is_told_in_one_line(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The table of a smaller vocabulary has the same signatures, and no row for the prompt."""
    embedder(copy, table_rows=4)
    assert main(["run", str(copy), *RUN]) == 3
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("paceline: failed: LiteRT")
    assert captured.err.count("\n") == 1


def test_inspect_refuses_a_graph_that_cannot_be_loaded_before_it_prints(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    replaced(copy, DRAFTER, b"no graph")
    assert f"{DRAFTER}: LiteRT cannot load it" in refused(["inspect", str(copy)], capfd)


@pytest.mark.parametrize(("backend", "name", "flag"), [(LITERT, "TFLite", "tflite"), (ONNXRUNTIME, "ONNX", "onnx")])
def test_a_backend_without_graphs_is_refused_with_the_format_to_export(
    backend: str, name: str, flag: str, copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads((copy / MANIFEST).read_text())
    del raw["graphs"][backend]
    (copy / MANIFEST).write_text(json.dumps(raw))
    sentence = refused(["run", str(copy), *RUN, "--backend", backend], capfd)
    assert f"{copy} has no {name} graphs; export it with --format {flag}" in sentence
    assert main(["run", str(copy), *RUN]) == 0  # on the other one


def test_a_backend_of_another_name_is_refused_with_those_there_are(tiny_bundle: Path) -> None:
    with pytest.raises(InputError, match="backend is 'tflite'; allowed are litert and onnxruntime"):
        paceline.load(tiny_bundle, backend="tflite")


def test_a_prompt_longer_than_the_capacity_is_refused_before_a_graph_runs(tiny_bundle: Path) -> None:
    model = paceline.load(tiny_bundle, backend=LITERT, capacity=200)
    with pytest.raises(CapacityError, match="201 tokens do not fit in a KV cache of capacity 200"):
        next(model.generate([2] * 201))
    assert len(list(model.generate([2] * 200, max_new_tokens=1))) == 1
