"""Graphs under every recipe, against the torch lowering run on the values that their integers stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tiny
from dequantised import of_onnx, of_tflite
from reference import Reference

from paceline import signatures
from paceline.backends import open_backend
from paceline.backends.base import Backend
from paceline.backends.litert.delegation import delegation
from paceline.backends.litert.model import Environment
from paceline.backends.names import LITERT
from paceline.bundle import Bundle
from paceline.kv_cache import KVCache
from paceline.signatures import VERIFY
from paceline.stored_weights import read_weights
from paceline.target import Target
from paceline_export.bundle import FORMATS, export
from paceline_export.quantize import Scheme
from paceline_export.recipes import RECIPES, recipe
from paceline_export.weights import Weight, read_permutation

# The kernels round activations to int8 before each product, LiteRT's a scale for each row, onnxruntime's one for each block:
# some 0.5 to 0.7 % of noise each time. On this pair, of four layers, 1.1 to 3.6 % of the norm were measured on either; wrong
# integers, scales or blocks give errors near 1.
ACTIVATION_ERROR = 0.06
# Wide enough for blocks of 128 and 256 to occur.
PAIR = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 4, "num_kv_shared_layers": 2}
PAIR |= {"layer_types": [tiny.LOCAL, tiny.FULL] * 2}
INTEGER_RECIPES = [name for name in RECIPES if name != "f32"]
TFLITE_RECIPES = [name for name in FORMATS["tflite"].recipes if name != "f32"]
CLUSTER = 8  # tokens
EMBED, PER_LAYER = "model.embed_tokens.weight", "model.embed_tokens_per_layer.weight"


@dataclass
class Rounded:
    bundle: Bundle
    backends: dict[str, Backend]
    reference: Reference

    def target(self, backend: str) -> Target:
        cache = KVCache(self.bundle.manifest.caches, self.bundle.manifest.window, 512)
        return Target(self.backends[backend].bind(cache), cache)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tiny.write_pair(tmp_path_factory.mktemp("pair"), 5, **PAIR)


@pytest.fixture(scope="module")
def rounded(request: pytest.FixtureRequest, pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Rounded:
    """The pair in every format that can hold the recipe."""
    name, out = request.param, tmp_path_factory.mktemp("recipe") / "bundle"
    export(*pair, out, lambda *_: None, [x for x in FORMATS if name in FORMATS[x].recipes], recipe(name))
    bundle = Bundle.open(out)
    assert bundle.manifest.recipe == name
    backends = {backend: open_backend(bundle, backend, 1, weight_cache=False) for backend in bundle.manifest.graphs}
    return Rounded(bundle, backends, Reference(*pair, recipe(name)))


every_recipe = pytest.mark.parametrize("rounded", INTEGER_RECIPES, indirect=True, scope="module")
every_tflite_recipe = pytest.mark.parametrize("rounded", TFLITE_RECIPES, indirect=True, scope="module")


def some_tokens(count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(0).integers(3, tiny.VOCABULARY, count)]


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    """The error's norm, of the norm of what was wanted."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@every_recipe
def test_logits_and_draft_steps_are_those_of_the_rounded_weights(rounded: Rounded) -> None:
    tokens = some_tokens(44)
    past = rounded.reference.run(tokens)
    hidden = past.activations[0, 39]
    choice, state = rounded.reference.draft(past, 40, tokens[40], hidden)
    for backend in rounded.backends:
        target = rounded.target(backend)
        target.prefill(tokens[:40])
        verified = target.verify(tokens[40:])
        assert relative(verified.logits, past.logits[40:]) <= ACTIVATION_ERROR
        assert relative(verified.activations, past.activations[0, 40:].numpy()) <= ACTIVATION_ERROR
        step = target.graphs.draft(tokens[40], hidden.numpy())
        assert relative(step.state, state.numpy()) <= ACTIVATION_ERROR
        assert step.token == int(choice.token)
        assert step.logit == pytest.approx(float(choice.logit), rel=ACTIVATION_ERROR)


@every_recipe
def test_both_files_hold_the_rounded_values(rounded: Rounded) -> None:
    """Whatever their layout: dequantised from the .tflite and the .onnx files, weights are those of the recipe, exactly."""
    folder, reference = rounded.bundle.folder, rounded.reference
    ordering = reference.drafter.weights["masked_embedding.token_ordering"]
    members = read_permutation(ordering).reshape(-1, CLUSTER)
    chosen = RECIPES[rounded.bundle.manifest.recipe]
    wanted = [
        {name: reference.target_tensors[name].numpy() for name in chosen.target(reference.target.weights)},
        {name: reference.drafter_tensors[name].numpy() for name in chosen.drafter(reference.drafter.weights)},
    ]
    wanted[1][f"{EMBED}.by_cluster"] = wanted[1].pop(EMBED)[members]
    for model, values in zip(("target", "drafter"), wanted, strict=True):
        if LITERT in rounded.backends:
            tables = (of_tflite(folder / name, CLUSTER) for name in ("embedder.tflite", "per_layer_embedder.tflite"))
            found = of_tflite(folder / f"{model}.tflite", CLUSTER)
            for table in tables if model == "target" else ():
                assert all(np.array_equal(found.get(name, rows), rows) for name, rows in table.items())
                found |= table
            assert_same(found, values)
        lookups = values.pop(PER_LAYER, None)  # never multiplied with; the test below looks its rows up
        assert_same(of_onnx(folder / f"{model}.onnx"), values)
        assert (lookups is None) == (model == "drafter")


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@every_tflite_recipe
def test_tables_give_exactly_the_rounded_rows_on_litert(rounded: Rounded) -> None:
    graphs = rounded.target(LITERT).graphs
    call = graphs._call(8)  # type: ignore[attr-defined]
    tokens = some_tokens(8)
    call.run(np.array(tokens), 0)
    tensors, config = rounded.reference.target_tensors, rounded.reference.target.config
    wanted = tensors[EMBED].numpy()[tokens] * np.float32(config.hidden_size**0.5)
    np.testing.assert_array_equal(call.arrays[signatures.EMBEDDINGS][0], wanted)
    per_layer = tensors[PER_LAYER].numpy()[tokens] * np.float32(config.per_layer_size**0.5)
    found = call.arrays[signatures.PER_LAYER_EMBEDDINGS][0].reshape(8, -1)
    np.testing.assert_array_equal(found, per_layer)


@every_recipe
def test_tables_give_exactly_the_rounded_rows_on_onnxruntime(rounded: Rounded) -> None:
    """Read where the lookups end, before anything is computed with them."""
    tokens, folder = some_tokens(8), rounded.bundle.folder
    model = onnx.load(folder / "target.onnx", load_external_data=False)
    lookups = {n.input[0].removesuffix(".rows"): n for n in model.graph.node if n.op_type == "GatherBlockQuantized"}
    assert set(lookups) == {EMBED, PER_LAYER}
    for name, node in lookups.items():
        del model.graph.output[:]
        model.graph.output.append(onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None))
        file = folder / "lookup.onnx"
        onnx.save(onnx.utils.Extractor(model).extract_model([signatures.TOKENS], [node.output[0]]), file)
        session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
        rows = session.run(None, {signatures.TOKENS: np.array(tokens)})[0]
        file.unlink()
        wanted = rounded.reference.target_tensors[name].numpy()[tokens]
        np.testing.assert_array_equal(rows[:, : wanted.shape[1]], wanted)


@every_recipe
def test_the_error_of_every_tensor_is_in_the_bundle(rounded: Rounded, pair: tuple[Path, Path]) -> None:
    plain = Reference(*pair)
    listed = {(row.model, row.name): row for row in read_weights(rounded.bundle.folder)}
    for model, before, after, weights in (
        ("target", plain.target_tensors, rounded.reference.target_tensors, plain.target.weights),
        ("drafter", plain.drafter_tensors, rounded.reference.drafter_tensors, plain.drafter.weights),
    ):
        for name, weight in weights.items():
            row = listed.pop((model, name))
            error = relative(after[name].numpy(), before[name].numpy())
            assert row.relative_error == pytest.approx(error, rel=1e-3)
            assert row.shape == weight.shape
            assert (row.stored_as == "f32") == (error == 0)
    assert not listed


@every_recipe
@pytest.mark.parametrize("count", [3, 8])
def test_rows_of_verify_are_those_of_decode_bit_for_bit(rounded: Rounded, count: int) -> None:
    text = some_tokens(304)
    for backend in rounded.backends:
        plain, several = rounded.target(backend), rounded.target(backend)
        for start in range(0, 304 - count + 1, count):
            wanted = []
            for token in text[start : start + count]:
                wanted.append(plain.verify([token]).logits[0].copy())
                plain.commit(1)
            np.testing.assert_array_equal(several.verify(text[start : start + count]).logits, wanted)
            several.commit(count)


@every_tflite_recipe
def test_no_matrix_product_falls_off_the_delegate(rounded: Rounded) -> None:
    environment, graphs = Environment(), rounded.bundle.manifest.graphs[LITERT]
    for part, name in (*(("target", name) for name in VERIFY.values()), ("target", "prefill_128"), ("drafter", "draft")):
        found = delegation(environment, rounded.bundle, part, name)
        assert found.delegated_products == found.products > 10, f"{part} {name} of {graphs.parts[part]}"


@every_tflite_recipe
def test_files_are_as_small_as_the_recipe_says(rounded: Rounded) -> None:
    """Four or eight bits a weight and the scales; the rest is flatbuffer."""
    target = rounded.reference.target
    schemes = RECIPES[rounded.bundle.manifest.recipe].target(target.weights)
    table = target.weights["model.embed_tokens_per_layer.weight"]
    size = (rounded.bundle.folder / "per_layer_embedder.tflite").stat().st_size
    stored = schemes[table.name].stored_bytes((table.shape[0], table.shape[1]))
    assert stored <= size <= stored + 20_000


def test_the_rest_of_a_mixed_recipe_is_int8(pair: tuple[Path, Path]) -> None:
    reference = Reference(*pair)
    target = RECIPES["mixed-wi4c"].target(reference.target.weights)
    drafter = RECIPES["mixed-wi4c"].drafter(reference.drafter.weights)
    bits = {name.removeprefix("model.layers.1."): scheme.bits for name, scheme in (target | drafter).items()}
    assert bits["per_layer_input_gate.weight"] == bits["per_layer_projection.weight"] == 8
    assert bits["pre_projection.weight"] == bits["self_attn.o_proj.weight"] == 8
    assert bits["mlp.up_proj.weight"] == bits["model.embed_tokens.weight"] == bits["model.embed_tokens_per_layer.weight"] == 4
    assert not any("norm" in name or "scalar" in name or "ordering" in name for name in bits)


def test_a_row_that_a_scheme_does_not_fit_has_one_scale_or_is_int8() -> None:
    weights = {f"m{columns}": Weight(f"m{columns}", (3, columns), lambda: np.zeros(0)) for columns in (64, 48, 33)}
    chosen = RECIPES["wi4b32"].target(weights)
    assert chosen == {"m64": Scheme(4, 32), "m48": Scheme(4), "m33": Scheme(8)}
