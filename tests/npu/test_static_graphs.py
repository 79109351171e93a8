"""The static graphs themselves: the definition in another form, of integers only, one scale for a cache and its readers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from npu_models import MEASURED_ON, exported, model, tokens
from small_pair import PROMPTS

import paceline
from paceline.bundle import Bundle
from paceline.errors import InputError
from paceline.npu.backend import read_profile
from paceline.npu.profile import NpuProfile
from paceline.npu.scales import Scale
from paceline_export.npu.measure import BURIED, settled
from paceline_export.npu.nnapi import lint
from paceline_export.npu.write import NpuOptions

OPERATORS = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
FORBIDDEN = {"DYNAMIC_UPDATE_SLICE", "EMBEDDING_LOOKUP", "SCATTER_ND", "GATHER_ND", "CAST", "COS", "SIN"}
COMPARED = {"DEQUANTIZE", "TOPK_V2", "ARG_MAX"}  # may have float32, see `NpuOps`


def graphs(file: Path) -> list[tuple[schema.SubGraphT, list[str]]]:
    """Every subgraph and its operators' names."""
    made = schema.ModelT.InitFromObj(schema.Model.GetRootAs(file.read_bytes()))
    return [(g, [OPERATORS[made.operatorCodes[o.opcodeIndex].builtinCode] for o in g.operators]) for g in made.subgraphs]


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_all_is_integers_and_nothing_is_written_looked_up_or_turned(npu_bundle: Path, part: str) -> None:
    for graph, names in graphs(npu_bundle / f"{part}.npu.tflite"):
        assert not set(names) & FORBIDDEN
        for operator, name in zip(graph.operators, names, strict=True):
            types = {graph.tensors[index].type for index in operator.outputs}
            allowed = {schema.TensorType.INT16, schema.TensorType.INT32}
            assert types <= allowed | ({schema.TensorType.FLOAT32} if name in COMPARED else set()), name
        assert "QUANTIZE" not in names or b"draft_" in graph.name  # the token table of several steps has a scale of its own


def test_a_cache_its_slice_and_every_reader_have_one_scale(npu_bundle: Path) -> None:
    scales: dict[str, set[tuple[float, int]]] = {}
    for part in ("target", "drafter"):
        for graph, _ in graphs(npu_bundle / f"{part}.npu.tflite"):
            for tensor in graph.tensors:
                name = tensor.name.decode()
                if name.startswith("kv_cache"):
                    described = tensor.quantization
                    scales.setdefault(name, set()).add((float(described.scale[0]), int(described.zeroPoint[0])))
    bundle = Bundle.open(npu_bundle)
    profile = read_profile(bundle)
    assert set(scales) == {name for spec in bundle.manifest.caches for name in (spec.key, spec.value)}
    for name, found in scales.items():
        ((scale, zero_point),) = found
        assert profile.scale("target", name) == Scale(scale, zero_point)
    raw = schema.ModelT.InitFromObj(schema.Model.GetRootAs((npu_bundle / "target.npu.tflite").read_bytes()))
    for definition in raw.signatureDefs:
        graph = raw.subgraphs[definition.subgraphIndex]
        for output in definition.outputs:
            name = output.name.decode()
            if name.startswith("kv_slice"):
                described = graph.tensors[output.tensorIndex].quantization
                assert (float(described.scale[0]), int(described.zeroPoint[0])) in scales[name.replace("slice", "cache")]


def test_within_nnapi_the_graphs_are_clean_and_near(npu_bundle: Path) -> None:
    """Cosine of logits with the CPU's own graphs at least 0.99, on rows that attend to others."""
    for part in ("target", "drafter"):
        report = lint(npu_bundle / f"{part}.nnapi.tflite", 6)
        assert (report.findings, report.needed_level) == ((), 6)
    within, on_cpu = model(npu_bundle, profile="nnapi"), paceline.load(npu_bundle, threads=1, capacity=256)
    for prompt in PROMPTS[:4]:
        found = []
        for each in (within, on_cpu):
            text = each.encode(prompt)
            with each.sequence() as (target, drafter):
                target.prefill(text[:-4])
                verified = target.verify(text[-4:])
                logits, hidden = verified.logits.copy(), verified.activations[-1].copy()
                target.commit(4)
                step = drafter.graphs.draft(text[-1], hidden)
                found.append((logits.ravel(), dict(zip(step.scored.tolist(), step.logits.tolist(), strict=True))))
        (one, drafted), (other, wanted) = found
        assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) >= 0.99
        both = sorted(set(drafted) & set(wanted))
        assert len(both) > len(drafted) / 2
        one, other = (np.array([each[token] for token in both]) for each in (drafted, wanted))
        assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) >= 0.99


def test_float_graphs_of_this_form_compute_what_the_cpus_graphs_do(tmp_path: Path) -> None:
    """Two kv heads, four rows at once, and a window that old rows have left: logits within 1e-4, and the same drafts."""
    import tiny

    from paceline.backends.litert.model import Environment
    from paceline.kv_cache import KVCache
    from paceline.npu.calls import NpuDrafter, NpuTarget
    from paceline.npu.graphs import NpuGraphs
    from paceline.npu.rows import NpuRows
    from paceline.npu.runners import LiteRtKernels
    from paceline.target import Target
    from paceline_export.bundle import export
    from paceline_export.checkpoint import open_pair
    from paceline_export.lower.caches import cache_specs
    from paceline_export.npu.graphs import NpuModel, drafter_graphs, target_graphs
    from paceline_export.npu.measure import CheckpointTables, rotations
    from paceline_export.npu.numbers import Floats
    from paceline_export.recipes import F32
    from paceline_export.rounding import Rounding

    folders = tiny.write_pair(tmp_path / "pair", num_key_value_heads=2)
    target, drafter = open_pair(*folders)
    models = {
        "target": target_graphs(NpuModel.of(Floats(), Rounding({})), target, (256,), (1, 4, 128)),
        "drafter": drafter_graphs(NpuModel.of(Floats(), Rounding({})), target, drafter, (256,), (1,)),
    }
    for part, each in models.items():
        each.tflite.save(tmp_path / part, lambda *_: None)
    profile = NpuProfile("f32", "float32", (256,), (1, 4, 128), (1,), 4, rotations(target), {})
    specs, tables = cache_specs(target.config), CheckpointTables(target)
    cache = KVCache(specs, target.config.window, 256)
    rows = NpuRows(cache, profile, "target", specs)
    runner = LiteRtKernels(Environment(), {part: tmp_path / part for part in models}, 1)
    graphs = NpuGraphs(
        rows,
        NpuTarget(runner, profile, models["target"].signatures, rows, tables),
        NpuDrafter(runner, profile, models["drafter"].signatures, rows, tables, 0),
        None,
    )
    export(*folders, tmp_path / "bundle", lambda *_: None, recipe=F32)
    text = [2, *np.random.default_rng(0).integers(6, 500, 60).tolist()]
    static = Target(graphs, cache)
    with paceline.load(tmp_path / "bundle", threads=1).sequence() as (wanted, drafts):
        for each in (static, wanted):
            each.prefill(text[:-4])
        found, expected = static.verify(text[-4:]), wanted.verify(text[-4:])
        assert np.abs(found.logits - expected.logits).max() < 1e-4
        hidden = expected.activations[-1].copy()
        for each in (static, wanted):
            each.commit(4)
        steps = graphs.draft(9, hidden), drafts.graphs.draft(9, hidden)
        assert steps[0].token == steps[1].token
        assert np.abs(steps[0].state - steps[1].state).max() < 1e-4


def test_ranges_are_the_extremes_of_all_that_was_read(npu_bundle: Path) -> None:
    """The largest embedding of the texts is the end of the input's range: not an average of texts, and nothing is cut off."""
    placed = model(npu_bundle)
    scale = read_profile(Bundle.open(npu_bundle)).scale("target", "embeddings")
    assert scale is not None
    largest = 0.0
    for prompt in MEASURED_ON:
        read = placed.encode(prompt)[:48]
        written = read + tokens(placed, read, 47, draft_length=0)[:-1]
        largest = max(largest, float(np.abs(placed.backend.embeddings(written)).max()))
    assert scale.scale * 32767 == pytest.approx(largest, rel=0.02)  # float32 may have written another word than integers do


def test_a_mask_buries_what_it_hides() -> None:
    ranges = {"a1": (-30.0, 20.0), "a2": (-1e38, 20.0), "mask_global": (-1e38, 0.0), "kv_cache_k_0": (-1.0, 1.0)}
    found = settled(ranges | {"kv_slice_k_0": (-2.0, 0.5)}, {"a2": "a1"})
    assert found["mask_global"] == (-(60 + BURIED), 0.0)
    assert found["a2"] == (-30.0 - 60 - BURIED, 20.0)
    assert found["kv_cache_k_0"] == (-2.0, 1.0)
    lowest_seen, highest_hidden = -30.0, 20.0 - 60 - BURIED
    assert highest_hidden <= lowest_seen - BURIED + 10  # e^-6 at the very worst, e^-16 where scores are like those measured


@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.5, 2.0), (0.0, 0.0), (-5.0, -1.0)])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_integers_and_back_are_within_half_a_step(low: float, high: float, dtype: str) -> None:
    scale = Scale.of_range(low, high, dtype)
    numbers = np.linspace(low, high, 101, dtype=np.float32)
    assert np.abs(scale.numbers(scale.integers(numbers, dtype)) - numbers).max() <= 0.5001 * scale.scale
    assert scale.numbers(np.array([scale.zero_point])) == 0
    assert scale.integers(np.float32([1e9, -1e9]), dtype).tolist() == {"int8": [127, -128], "int16": [32767, -32767]}[dtype]


def test_the_same_export_gives_the_same_bytes(tiny_pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = (
        exported(*tiny_pair, tmp_path / name, prompts=("a",), profiles=("npu", "nnapi"), unrolled=2)
        for name in ("one", "other")
    )
    for file in sorted(one.iterdir()):
        assert file.read_bytes() == (other / file.name).read_bytes(), file.name


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"recipe": "a4w4"}, "the NPU recipe is 'a4w4'; allowed are a16w8, a16w4, a8w8"),
        ({"contexts": (64,)}, "the NPU contexts are [64]; give rising numbers of at least 128"),
        ({"contexts": ()}, "the NPU contexts are []"),
        ({"unrolled": 9}, "the NPU drafter has 9 steps; allowed are 1 to 8"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as refused:
        NpuOptions(("a",), **wrong)  # type: ignore[arg-type]
    assert said in str(refused.value)


def test_static_graphs_without_tflite_are_refused(tiny_pair: tuple[Path, Path], tmp_path: Path) -> None:
    from paceline_export.bundle import export

    with pytest.raises(InputError, match="graphs for an NPU stand beside TFLite ones"):
        export(*tiny_pair, tmp_path / "out", lambda *_: None, ("onnx",), npu=NpuOptions(("a",)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"format_version": 1', '"format_version": 2'),
        ('"dtype": "int16"', '"dtype": "int4"'),
        ('"dtype": "int16"', '"dtype": []'),
        ('"contexts": [\n    256\n  ]', '"contexts": [\n    0\n  ]'),
        ('"rows": [\n    1,', '"rows": [\n    3,'),
        ('"rows": [\n    1,\n    2,', '"rows": [\n    1,'),
        ('"draft_steps": [\n    1,', '"draft_steps": [\n    2,'),
        ('"theta": 10000.0', '"theta": 0.0'),
        ('"rotated": 1.0', '"rotated": 2.0'),
        ('"head_dim": 32', '"head_dim": -32'),
        ('"head_dim": 32', '"head_dim": 34'),
        ('"kv_slice_v_2"', '"kv_slice_w_2"'),
        ('"logits"', '"logit"'),
        ('"mask_local": [\n        ', '"mask_local": [\n        1e-60, 0], "other": ['),
    ],
)
def test_a_profile_that_cannot_be_is_refused(npu_bundle: Path, before: str, after: str) -> None:
    text = (npu_bundle / "npu.json").read_text()
    assert before in text
    with pytest.raises(InputError, match="does not describe this pair's graphs"):
        NpuProfile.from_json(text.replace(before, after, 1), "npu.json", Bundle.open(npu_bundle).manifest)


def test_a_cache_with_two_scales_is_refused(npu_bundle: Path) -> None:
    """Its rows are copied as they are, so they would be other numbers to who reads them."""
    raw = json.loads((npu_bundle / "npu.json").read_text())
    raw["scales"]["drafter"]["kv_cache_k_3"][0] *= 2
    with pytest.raises(InputError, match="kv_cache_k_3 has several scales"):
        NpuProfile.from_json(json.dumps(raw), "npu.json", Bundle.open(npu_bundle).manifest)


def test_the_profile_survives_its_file(npu_bundle: Path) -> None:
    text = (npu_bundle / "npu.json").read_text()
    assert NpuProfile.from_json(text, "npu.json", Bundle.open(npu_bundle).manifest).to_json() == text


def test_prefill_leaves_out_the_layers_that_own_no_rows(npu_bundle: Path) -> None:
    counts = {graph.name.decode(): Counter(names) for graph, names in graphs(npu_bundle / "target.npu.tflite")}
    manifest = Bundle.open(npu_bundle).manifest
    assert counts["decode"]["SOFTMAX"] == manifest.layers
    # The last layer that owns rows needs no attention of its own.
    assert counts["prefill_128"]["SOFTMAX"] == len(manifest.caches) - 1 < manifest.layers
