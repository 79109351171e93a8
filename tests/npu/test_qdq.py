"""The ONNX twin of the small pair's integer graphs: all of it runs on the HTP's emulator, and says what LiteRT says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import mutations
import numpy as np
import onnxruntime as ort
import pytest
from ai_edge_litert import schema_py_generated as schema
from npu_tools import qnn_or_skip
from numpy.typing import NDArray
from small_pair import PROMPTS

from paceline import signatures
from paceline.backends.litert.model import Environment
from paceline.bundle import Bundle, sha256
from paceline.drafter import Drafter as DraftLoop
from paceline.errors import InputError
from paceline.kv_cache import KVCache, aligned_zeros
from paceline.npu import contexts
from paceline.npu.backend import NpuBackend, npu_files
from paceline.npu.contexts import OnnxGraphs
from paceline.npu.qnn import INSTALL, PROVIDER, QnnOnnx, hexagon_session, usable
from paceline.npu.runners import LiteRtKernels
from paceline.npu.scales import Scale
from paceline.npu.signatures import of_step
from paceline.signatures import Port
from paceline.target import Target as TargetLoop
from paceline.text import encode, load_tokenizer
from paceline_export.lower.flatbuffer import Builtin, Subgraph, Tensor, TfliteFile
from paceline_export.npu import tflite_graphs
from paceline_export.npu.numbers import quantization
from paceline_export.npu.qdq import write_twin
from paceline_export.quantize import pack_int4

SOC, STEPS, ROUNDS, SEQUENCES = "SM8750", 3, 2, 2
UNROLLED = f"draft_{STEPS}"
PARTS = {"decode": "target", "verify": "target", "draft": "drafter", UNROLLED: "drafter"}
LOGITS = {"decode": 1, "verify": 1, "draft": 1, UNROLLED: STEPS}  # how many outputs have them
ALIKE = 0.999
Arrays = dict[str, NDArray[Any]]


@dataclass
class Recorder:
    """Runs on LiteRT's kernels, and keeps what every call was given and has made: signature -> its calls."""

    kernels: LiteRtKernels
    calls: dict[str, list[Arrays]] = field(default_factory=dict)

    def bind(self, part: str, signature: str, arrays: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        call = self.kernels.bind(part, signature, arrays)

        def run() -> None:
            call()
            self.calls.setdefault(signature, []).append({name: array.copy() for name, array in arrays.items()})

        return run

    def describe(self) -> str:
        return "a recorder"


@pytest.fixture(scope="module")
def bundle(npu_bundle: Path) -> Bundle:
    return Bundle.open(npu_bundle)


@pytest.fixture(scope="module")
def graphs(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, OnnxGraphs]:
    folder, found = tmp_path_factory.mktemp("twin"), {}
    for part, file in npu_files(bundle).items():
        files = write_twin(folder, part, file, lambda *_: None)
        found[part] = OnnxGraphs({name: folder / each for name, each in files.items()}, sha256(file), file.stat().st_size)
    return found


@pytest.fixture(scope="module")
def calls(bundle: Bundle) -> dict[str, list[Arrays]]:
    """What LiteRT's kernels were given and made in rounds of the loop, and in unrolled rounds on the same inputs."""
    recorder = Recorder(LiteRtKernels(Environment(), npu_files(bundle), 1))
    backend, tokenizer = NpuBackend(bundle, recorder, ("target", "drafter"), 1, False), load_tokenizer(bundle.folder)
    for prompt in PROMPTS[:SEQUENCES]:
        cache = KVCache(backend.manifest.caches, backend.manifest.window, 256)
        bound = backend.bind(cache)
        target, drafter = TargetLoop(bound, cache), DraftLoop(bound)
        *before, pending = encode(tokenizer, prompt)
        target.prefill(before)
        verified, kept = target.verify([pending]), 0
        target.commit(1)
        pending = int(verified.logits[0].argmax())
        for _ in range(ROUNDS):
            token, hidden = pending, verified.activations[kept].copy()
            drafts = drafter.chain(pending, hidden, STEPS)  # one call
            for draft in drafts:  # a state that is none of that call's own makes these calls of one step
                step = bound.draft(token, hidden.copy())
                token, hidden = step.token, step.state
                assert token == draft
            verified = target.verify([pending, *drafts])
            best = [int(token) for token in verified.logits.argmax(axis=1)]
            kept = next((row for row, draft in enumerate(drafts) if draft != best[row]), STEPS)
            target.commit(kept + 1)
            pending = best[kept]
    return recorder.calls


def cpu_session(model: Path) -> ort.InferenceSession:
    """onnxruntime's own kernels, which would round activations to 8 bits in front of weights of 8 bits if we let them."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def ran(session: ort.InferenceSession, call: Arrays) -> Arrays:
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, {each.name: call[each.name] for each in session.get_inputs()}), strict=True))


def cosine(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    a, b = (each.astype(np.float64).ravel() for each in (found, wanted))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def by_token(arrays: Arrays, step: int) -> NDArray[np.float64]:
    """Logits [T, V] of a step; -inf for tokens of clusters that the drafter did not choose."""
    logits = arrays[of_step(signatures.LOGITS, step)][0].astype(np.float64)
    scored = arrays.get(of_step(signatures.DRAFT_SCORED, step))
    if scored is None:
        return logits
    spread = np.full((1, int(scored.max()) + 1), -np.inf)
    spread[0, scored] = logits[0]
    return spread


def require_alike(signature: str, found: Arrays, wanted: Arrays) -> None:
    for step in range(LOGITS[signature]):
        both = [by_token(arrays, step) for arrays in (found, wanted)]
        width = min(each.shape[1] for each in both)
        a, b = (each[:, :width] for each in both)
        seen = np.isfinite(a) & np.isfinite(b)
        assert seen.sum() >= 0.8 * np.isfinite(b).sum()
        assert cosine(a[seen], b[seen]) >= ALIKE
        error = np.abs(a[seen] - b[seen]).max()
        for row, (mine, theirs) in enumerate(zip(a, b, strict=True)):
            second, first = np.partition(theirs, -2)[-2:]
            if first - second > error:
                assert mine.argmax() == theirs.argmax(), f"row {row} of step {step}"
            elif mine.argmax() != theirs.argmax():
                return  # the steps that follow continue another token
    for name in found:
        if name.startswith("kv_slice"):
            assert cosine(found[name], wanted[name]) >= ALIKE, name


@pytest.mark.parametrize("signature", PARTS)
def test_all_of_it_runs_on_the_emulator_and_says_what_litert_says(
    signature: str, graphs: dict[str, OnnxGraphs], calls: dict[str, list[Arrays]]
) -> None:
    qnn_or_skip()
    file = graphs[PARTS[signature]].files[signature]
    session = hexagon_session(file, SOC, **{"session.record_ep_graph_assignment_info": "1"})
    placed = {each.ep_name: len(each.get_nodes()) for each in session.get_provider_graph_assignment_info()}
    assert set(placed) == {PROVIDER}
    assert placed[PROVIDER] > 500
    for call in calls[signature][:4]:
        require_alike(signature, ran(session, call), call)


@pytest.mark.parametrize("signature", PARTS)
def test_onnxruntime_says_the_same_on_the_cpu(
    signature: str, graphs: dict[str, OnnxGraphs], calls: dict[str, list[Arrays]]
) -> None:
    session = cpu_session(graphs[PARTS[signature]].files[signature])
    for call in calls[signature][:3]:
        require_alike(signature, ran(session, call), call)


def test_the_loop_writes_the_same_tokens(bundle: Bundle, graphs: dict[str, OnnxGraphs]) -> None:
    """Whole rounds, whose KV rows the CPU writes between calls on the chip."""
    qnn_or_skip()
    written = []
    for runner in (LiteRtKernels(Environment(), npu_files(bundle), 1), QnnOnnx(graphs, SOC, keep=False)):
        backend = NpuBackend(bundle, runner, ("target", "drafter"), 1, False)
        cache = KVCache(backend.manifest.caches, backend.manifest.window, 256)
        bound = backend.bind(cache)
        target, drafter = TargetLoop(bound, cache), DraftLoop(bound)
        *before, pending = encode(load_tokenizer(bundle.folder), PROMPTS[2])
        target.prefill(before)
        verified = target.verify([pending])
        target.commit(1)
        tokens, row = [int(verified.logits[0].argmax())], 0
        for _ in range(ROUNDS):
            drafts = drafter.chain(tokens[-1], verified.activations[row].copy(), STEPS)
            verified = target.verify([tokens[-1], *drafts])
            best = [int(token) for token in verified.logits.argmax(axis=1)]
            row = next((row for row, draft in enumerate(drafts) if draft != best[row]), STEPS)
            target.commit(row + 1)
            tokens += best[: row + 1]
        written.append(tokens)
    assert written[0] == written[1]
    assert len(written[0]) > ROUNDS


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs are kept."""
    qnn_or_skip()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "paceline" / "qnn"


def run_once(graphs: dict[str, OnnxGraphs], call: Arrays, made: list[bool] | None = None, **options: bool) -> Arrays:
    """The drafter's outputs of a runner of its own; `made` gets whether the graph was compiled for it."""
    arrays = {name: aligned_zeros(array.shape, array.dtype) for name, array in call.items()}
    runner = QnnOnnx(graphs, SOC, **options)
    opened, opening = list[Path](), runner.open
    runner.open = lambda file, **entries: (opened.append(file), opening(file, **entries))[1]  # type: ignore[method-assign]
    run = runner.bind("drafter", "draft", arrays)
    if made is not None:
        made.append(graphs["drafter"].files["draft"].resolve() in opened)
    for array, values in zip(arrays.values(), call.values(), strict=True):
        array[:] = values
    for name in outputs(call):
        arrays[name][:] = 0
    run()
    return {name: arrays[name] for name in outputs(call)}


def outputs(call: Arrays) -> list[str]:
    return [name for name in call if name.startswith(("logits", "projected", "draft_scored", "top_cluster"))]


def require_same(found: Arrays, wanted: Arrays) -> None:
    assert list(found) == list(wanted)
    for name, values in found.items():
        np.testing.assert_array_equal(values, wanted[name], name)
    assert any(values.any() for values in found.values())


def test_a_kept_program_gives_the_same_bits(graphs: dict[str, OnnxGraphs], calls: dict[str, list[Arrays]], kept: Path) -> None:
    call, made = calls["draft"][0], list[bool]()
    plain = run_once(graphs, call, keep=False)
    assert not kept.exists()
    require_same(run_once(graphs, call, made), plain)
    (program,) = kept.glob("*.onnx")
    assert f"-{SOC}" in program.name
    written = program.stat().st_mtime_ns
    require_same(run_once(graphs, call, made), plain)
    assert (made, program.stat().st_mtime_ns) == ([True, False], written)
    other = {**graphs, "drafter": OnnxGraphs(graphs["drafter"].files, "of another export", 1)}
    require_same(run_once(other, call, made), plain)
    assert made[-1]
    assert len(list(kept.glob("*.onnx"))) == 1  # the old one is gone
    assert not list(kept.glob(".*"))


def turned_bit(program: Path) -> None:
    content = bytearray(program.read_bytes())
    content[len(content) // 2] ^= 1
    program.write_bytes(content)


DAMAGE: list[Callable[[Path], object]] = [
    turned_bit,
    lambda program: program.write_bytes(program.read_bytes()[:-100]),
    lambda program: program.with_suffix(".json").unlink(),
    lambda program: program.with_suffix(".json").write_text("[]"),
]


def test_a_damaged_program_is_made_again(graphs: dict[str, OnnxGraphs], calls: dict[str, list[Arrays]], kept: Path) -> None:
    call, made = calls["draft"][0], list[bool]()
    plain = run_once(graphs, call, made)
    for damage in DAMAGE:
        (program,) = kept.glob("*.onnx")
        damage(program)
        require_same(run_once(graphs, call, made), plain)
        require_same(run_once(graphs, call, made), plain)
    assert made == [True, *([True, False] * len(DAMAGE))]


def test_a_program_that_the_chip_refuses_is_made_again(
    graphs: dict[str, OnnxGraphs], calls: dict[str, list[Arrays]], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, made = calls["draft"][0], list[bool]()
    plain = run_once(graphs, call, made)
    (program,) = kept.glob("*.onnx")
    program.write_bytes(b"\x08\x0a")
    monkeypatch.setattr(contexts, "is_sealed", lambda _file: True)
    require_same(run_once(graphs, call, made), plain)
    assert made == [True, True]


def test_without_a_place_to_keep_programs(
    graphs: dict[str, OnnxGraphs],
    calls: dict[str, list[Arrays]],
    kept: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept.parent.parent.mkdir(exist_ok=True)
    kept.parent.write_text("a file")
    require_same(run_once(graphs, calls["draft"][0]), run_once(graphs, calls["draft"][0], keep=False))
    assert "cannot be written" in caplog.text


def test_what_a_runner_refuses(graphs: dict[str, OnnxGraphs], calls: dict[str, list[Arrays]]) -> None:
    with pytest.raises(InputError, match=r"^the chip is '\.\./SM1'; allowed are SM8450, "):
        QnnOnnx(graphs, "../SM1")
    qnn_or_skip()
    runner, call = QnnOnnx(graphs, SOC, keep=False), calls["draft"][0]
    with pytest.raises(InputError, match=r"have no signature draft_9; export the bundle again\.$"):
        runner.bind("drafter", "draft_9", call)
    with pytest.raises(InputError, match=r"signature draft lacks another"):
        runner.bind("drafter", "draft", {**call, "another": call["logits"]})
    with pytest.raises(InputError, match=r"logits of signature draft is int16 \[1, 1, 512\]"):
        runner.bind("drafter", "draft", {**call, "logits": call["logits"].astype(np.float32)})
    assert "emulator" in runner.describe() or "a Qualcomm HTP" in runner.describe()


def test_a_node_for_the_cpu_is_an_error(tmp_path: Path) -> None:
    """The oldest of the chips multiplies no two tensors of 16 bits."""
    qnn_or_skip()
    file = tmp_path / "graph.tflite"
    with_file(file, lambda graph, x, y: product(graph, x, y))
    model = tmp_path / write_twin(tmp_path, "target", file, lambda *_: None)["graph"]
    hexagon_session(model, SOC)
    with pytest.raises(InputError, match=r"target\.npu\.graph\.onnx: onnxruntime-qnn \S+ cannot run it on SM8450 \("):
        hexagon_session(model, "SM8450")


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch, graphs: dict[str, OnnxGraphs]) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    assert usable() == f"not usable: onnxruntime-qnn is not installed, which runs graphs on Qualcomm's HTP; {INSTALL}."
    with pytest.raises(InputError, match="pip install"):
        QnnOnnx(graphs, SOC).bind("drafter", "draft", {})


def test_a_promised_package_that_is_missing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    monkeypatch.delenv("PACELINE_REQUIRE_NPU", raising=False)
    with pytest.raises(pytest.skip.Exception, match="not installed"):
        qnn_or_skip()
    monkeypatch.setenv("PACELINE_REQUIRE_NPU", "1")
    with pytest.raises(pytest.fail.Exception, match="not installed"):
        qnn_or_skip()


Fill = Callable[[Subgraph, Tensor, Tensor], Tensor]
WIDE = Scale(0.001, 0)


def with_file(file: Path, fill: Fill, name: str = "graph", change: Callable[[Any], object] = lambda _model: None) -> None:
    """A .tflite of one signature on two int16 tensors [1, 4, 4]."""
    tflite = TfliteFile()
    graph = Subgraph(tflite, name)
    x, y = (graph.input(Port(each, "int16", (1, 4, 4))) for each in "xy")
    for each in (x, y):
        graph.graph.tensors[each.index].quantization = quantization(WIDE)
    made = fill(graph, x, y)
    graph.output(Port("z", "int16", made.shape), made)
    graph.finish()
    change(tflite.model)
    file.unlink(missing_ok=True)
    tflite.save(file, lambda *_: None)


def product(graph: Subgraph, x: Tensor, y: Tensor, options: Any = None, code: int = Builtin.BATCH_MATMUL) -> Tensor:
    made = graph.tensor((1, 4, 4), "int16", quantization=quantization(WIDE))
    if options is None:
        options = schema.BatchMatMulOptionsT()
        options.adjY = True
    graph.operator(code, [x, y], [made], options)
    return made


def activated(graph: Subgraph, x: Tensor, y: Tensor) -> Tensor:
    options = schema.AddOptionsT()
    options.fusedActivationFunction = schema.ActivationFunctionType.RELU
    return product(graph, x, y, options, Builtin.ADD)


def unscaled(graph: Subgraph, x: Tensor, y: Tensor) -> Tensor:
    made = product(graph, x, y)
    graph.graph.tensors[made.index].quantization.scale[0] = np.nan
    return made


REFUSED: list[tuple[Fill, str]] = [
    (lambda g, x, y: product(g, x, y, schema.SubOptionsT(), Builtin.SUB), "signature graph has SUB, which the ONNX twin lacks"),
    (activated, "signature graph has ADD with an activation function, which the ONNX twin lacks"),
    (unscaled, "has not one scale above 0"),
    (lambda g, x, y: x, "x is an output that nothing makes"),
    (lambda g, x, y: product(g, x, g.tensor((1, 4, 4), "int16")), "is read before it is made"),
    (lambda g, x, y: product(g, x, y, schema.MulOptionsT(), Builtin.TRANSPOSE), "y is no plain constant"),
]


@pytest.mark.parametrize(("fill", "words"), REFUSED)
def test_what_has_no_twin(fill: Fill, words: str, tmp_path: Path) -> None:
    file = tmp_path / "graph.tflite"
    with_file(file, fill)
    with pytest.raises(InputError, match=words):
        write_twin(tmp_path, "target", file, lambda *_: None)


CHANGES: list[tuple[Callable[[Any], object], str]] = [
    (lambda model: setattr(model.signatureDefs[0], "signatureKey", b"../decode"), "whose name no file can have"),
    (lambda model: setattr(model.signatureDefs[0], "subgraphIndex", 3), "a graph that is not there"),
    (lambda model: setattr(model.signatureDefs[0].inputs[0], "tensorIndex", 99), "a tensor that is not there"),
    (lambda model: setattr(model.subgraphs[0].tensors[0], "buffer", 9), "a buffer that is not there"),
    (lambda model: setattr(model.subgraphs[0].tensors[0], "type", schema.TensorType.STRING), "has the type string"),
    (lambda model: setattr(model.subgraphs[0].tensors[0], "shape", [1, 4, -4]), r"has the shape \[1, 4, -4\]"),
    (lambda model: model.signatureDefs.clear(), "it has no signature"),
    (lambda model: model.signatureDefs.extend(model.signatureDefs * 2), "whose name no file can have"),
    (lambda model: setattr(model.subgraphs[0].tensors[0], "name", b"a" * tflite_graphs.MOST_PARTS), "more than the 4,194,304"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_a_damaged_file_has_no_twin(change: Callable[[Any], object], words: str, tmp_path: Path) -> None:
    file = tmp_path / "graph.tflite"
    with_file(file, product, change=change)
    with pytest.raises(InputError, match=words):
        write_twin(tmp_path, "target", file, lambda *_: None)


@pytest.mark.parametrize("mutate", [mutations.raw, mutations.head])
def test_changed_bytes_are_translated_or_refused(mutate: mutations.Mutation, tmp_path: Path) -> None:
    file, refused = tmp_path / "graph.tflite", 0
    with_file(file, product)
    content = file.read_bytes()
    for seed in range(100):
        file.write_bytes(mutate(content, Random(seed)))
        out = tmp_path / str(seed)
        out.mkdir()
        try:
            write_twin(out, "target", file, lambda *_: None)
        except InputError:
            refused += 1
    assert 0 < refused <= 100


@pytest.mark.parametrize("scales", [(0.02,), (0.01, 0.02, 0.03, 0.04)])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_the_same_numbers(bits: int, scales: tuple[float, ...], tmp_path: Path) -> None:
    integers = np.arange(-8, 8, dtype=np.int8).reshape(4, 4)

    def connected(graph: Subgraph, x: Tensor, y: Tensor) -> Tensor:
        stored = pack_int4(integers) if bits == 4 else integers
        buffer = graph.file.stored("w", (stored.size,), "int8", lambda: [stored])
        described = schema.QuantizationParametersT()
        described.scale, described.zeroPoint = np.array(scales, np.float32), np.zeros(len(scales), np.int64)
        weight, options = graph.tensor((4, 4), f"int{bits}", buffer, "w", described), schema.FullyConnectedOptionsT()
        options.keepNumDims = True
        return product(graph, product(graph, x, y, schema.AddOptionsT(), Builtin.ADD), weight, options, Builtin.FULLY_CONNECTED)

    file = tmp_path / "graph.tflite"
    with_file(file, connected)
    model = tmp_path / write_twin(tmp_path, "target", file, lambda *_: None)["graph"]
    x = (np.arange(16, dtype=np.int16) * 700 - 5000).reshape(1, 4, 4)
    given = {"x": x, "y": np.zeros_like(x)}
    wanted = x.astype(np.float64) @ (integers * np.array(scales)[:, None]).T
    assert np.abs(ran(cpu_session(model), given)["z"] - wanted).max() <= 1
    qnn_or_skip()
    # The chip's products are good to some thousandths of the largest number.
    assert cosine(ran(hexagon_session(model, SOC), given)["z"], wanted) >= 0.9999
