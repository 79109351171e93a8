"""Graphs compiled ahead of time: each signature one program with nothing left to the CPU, or told and not taken."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from command import ran, refused
from npu_models import e2b_slice, exported, model, tokens
from npu_tools import qnn_or_skip
from small_pair import PROMPTS

from paceline.bundle import Bundle
from paceline.errors import InputError, PacelineError
from paceline.signatures import Port
from paceline_export.lower.flatbuffer import Builtin, Subgraph, TfliteFile
from paceline_export.npu import chips, compile
from paceline_export.npu.chips import QUALCOMM
from paceline_export.npu.compile import compile_bundle, compile_file
from paceline_export.npu.compiled import placements, programs


def test_every_signature_is_one_program(compiled_bundle: Path) -> None:
    bundle = Bundle.open(compiled_bundle)
    graphs = bundle.manifest.graphs["npu.SM8750"]
    for part, plain in bundle.manifest.graphs["npu"].parts.items():
        found = placements(compiled_bundle / graphs.parts[part])
        assert {placed.signature for placed in found} == set(bundle.manifest.graphs["npu"].signatures[plain])
        assert all(placed.whole and placed.program_bytes > 100_000 for placed in found)
        for name, program in programs(compiled_bundle / graphs.parts[part]).items():
            described = graphs.signatures[graphs.parts[part]][name]
            for ports, direction in ((program.inputs, "inputs"), (program.outputs, "outputs")):
                assert {port: [p.dtype, list(p.shape)] for port, p in ports.items()} == described[direction]
    bundle.check_hashes()
    assert tokens(model(compiled_bundle), PROMPTS[0], 8)  # the other graphs are as they were


def test_a_write_inside_a_graph_makes_it_several_programs(tmp_path: Path) -> None:
    qnn_or_skip()
    file = TfliteFile()
    graph = Subgraph(file, "writes")
    cache, new, start = (
        graph.input(Port(*port))
        for port in (("cache", "float32", (1, 8, 16)), ("new", "float32", (1, 1, 16)), ("at", "int32", (3,)))
    )
    doubled, written, out = (graph.tensor((1, 8, 16)) for _ in range(3))
    graph.operator(Builtin.MUL, [cache, graph.constant(np.float32([2.0]))], [doubled], schema.MulOptionsT())
    graph.operator(Builtin.DYNAMIC_UPDATE_SLICE, [doubled, new, start], [written], schema.DynamicUpdateSliceOptionsT())
    graph.operator(Builtin.MUL, [written, graph.constant(np.float32([3.0]))], [out], schema.MulOptionsT())
    graph.output(Port("out", "float32", (1, 8, 16)), out)
    graph.finish()
    file.save(tmp_path / "writes.tflite", lambda *_: None)
    compile_file(tmp_path / "writes.tflite", tmp_path / "compiled.tflite", "SM8750", QUALCOMM, False)
    (placed,) = placements(tmp_path / "compiled.tflite")
    assert (placed.partitions, placed.on_cpu, placed.whole) == (2, {"DYNAMIC_UPDATE_SLICE": 1}, False)
    with pytest.raises(InputError, match="writes is 2 programs, and 1 DYNAMIC_UPDATE_SLICE on the CPU"):
        programs(tmp_path / "compiled.tflite")


def test_a_chip_that_would_need_the_cpu_leaves_the_bundle_as_it_was(
    npu_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The HTP of an SM8450 multiplies no two tensors of 16 bits."""
    qnn_or_skip()
    copy = shutil.copytree(npu_bundle, tmp_path / "bundle")
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    code, said = ran(["npu", "compile", str(copy), "--soc", "SM8450"], capsys)
    assert code == 1
    assert "BATCH_MATMUL" in said
    assert "stays as it was" in said
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == before


def test_shared_weights_are_there_once(npu_bundle: Path, compiled_bundle: Path, tmp_path: Path) -> None:
    qnn_or_skip()
    shared = tmp_path / "shared.tflite"
    compile_file(npu_bundle / "target.npu.tflite", shared, "SM8750", QUALCOMM, True)
    assert all(placed.whole for placed in placements(shared))
    assert shared.stat().st_size < (compiled_bundle / "target.npu.SM8750.tflite").stat().st_size / 3


@pytest.mark.parametrize(
    ("soc", "package", "said"),
    [
        ("SM1", "", "the chip is 'SM1'; LiteRT's compilers know Qualcomm: SA8255"),
        ("MT6991", "ai_edge_litert_sdk_mediatek", "needs its libraries (ai_edge_litert_sdk_mediatek, licence: MediaTek's)"),
        ("Tensor_G5", "ai_edge_litert_sdk_google_tensor", "pip install ai-edge-litert-sdk-google-tensor"),
        ("E9965", "ai_edge_litert_sdk_samsung", "compiling for Samsung's chips needs its libraries"),
        ("LNL", "openvino", "compiling for Intel's chips needs its libraries (openvino"),
        ("SM8750", "onnxruntime_qnn", "pip install 'paceline[npu]'"),
    ],
)
def test_chips_and_libraries_that_are_not_there_are_a_sentence(
    npu_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, soc: str, package: str, said: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(chips, "find_spec", lambda name: None if name == package else find(name))
    assert said in refused(["npu", "compile", str(npu_bundle), "--soc", soc], capsys)


def test_a_package_without_its_libraries_is_a_sentence(
    npu_bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What pip installs of MediaTek's package where the vendor's server cannot be reached."""
    (tmp_path / "ai_edge_litert_sdk_mediatek.py").write_text("def path_to_sdk_libs():\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="is there without MediaTek's libraries"):
        compile_bundle(Bundle.open(npu_bundle), "MT6991", False, lambda _: None)


def test_what_was_compiled_is_not_compiled_again(compiled_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has graphs for SM8750 already" in refused(["npu", "compile", str(compiled_bundle), "--soc", "SM8750"], capsys)


def test_a_bundle_without_such_graphs_is_a_sentence(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("compile", str(tiny_bundle), "--soc", "SM8750"), ("emulate", str(tiny_bundle))):
        assert "export it with --profile npu" in refused(["npu", *command], capsys)


def test_a_compiler_that_fails_or_is_interrupted_leaves_nothing(
    npu_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qnn_or_skip()
    copy = shutil.copytree(npu_bundle, tmp_path / "bundle")
    before = sorted(file.name for file in copy.iterdir())

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compile, "placements", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_bundle(Bundle.open(copy), "SM8750", False, lambda _: None)
    (copy / "drafter.npu.tflite").write_bytes(b"\0" * (copy / "drafter.npu.tflite").stat().st_size)
    with pytest.raises(PacelineError, match="Qualcomm's compiler cannot compile drafter"):
        compile_bundle(Bundle.read(copy), "SM8750", False, lambda _: None)
    assert sorted(file.name for file in copy.iterdir()) == before


@pytest.mark.slow
def test_slices_of_e2b_are_one_program_for_every_signature(tmp_path: Path) -> None:
    """Four layers of E2B's width, heads and MLPs, its drafter, 4,096 tokens: some minutes, 3 GB of disk."""
    qnn_or_skip()
    bundle = exported(*e2b_slice(tmp_path / "pair"), tmp_path / "bundle", (512,), ("def read_lines(path):",), recipe="a16w4")
    found = compile_bundle(Bundle.open(bundle), "SM8750", False, lambda _: None)
    assert {placed.whole for part in found.values() for placed in part} == {True}
