"""TFLite graphs under every recipe, against the torch lowering run on the values that their integers stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiny
from command import refused
from reference import Reference

from paceline import signatures
from paceline.backends.litert.backend import LiteRtBackend
from paceline.backends.litert.delegation import delegation
from paceline.bundle import Bundle
from paceline.kv_cache import KVCache
from paceline.signatures import VERIFY
from paceline.target import Target
from paceline_export.bundle import DEFAULT_FORMATS, export
from paceline_export.quantize import Scheme
from paceline_export.recipes import RECIPES, recipe
from paceline_export.weights import Weight

# The kernels round activations to int8, a scale for each row, before each product: some 0.7 % of noise each time. On this
# pair, of four layers, 1.2 to 4.9 % of the norm were measured; wrong integers, scales or blocks give errors near 1.
ACTIVATION_ERROR = 0.08
# Wide enough for blocks of 128 and 256 to occur.
PAIR = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 4, "num_kv_shared_layers": 2}
PAIR |= {"layer_types": [tiny.LOCAL, tiny.FULL] * 2}
INTEGER_RECIPES = [name for name in RECIPES if name != "f32"]


@dataclass
class Rounded:
    bundle: Bundle
    backend: LiteRtBackend
    reference: Reference

    def target(self) -> Target:
        cache = KVCache(self.bundle.manifest.caches, self.bundle.manifest.window, 512)
        return Target(self.backend.bind(cache), cache)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tiny.write_pair(tmp_path_factory.mktemp("pair"), 3, **PAIR)


@pytest.fixture(scope="module", params=INTEGER_RECIPES)
def rounded(request: pytest.FixtureRequest, pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Rounded:
    out = tmp_path_factory.mktemp("recipe") / "bundle"
    export(*pair, out, lambda *_: None, DEFAULT_FORMATS, recipe(request.param))
    bundle = Bundle.open(out)
    assert bundle.manifest.recipe == request.param
    return Rounded(bundle, LiteRtBackend(bundle, threads=1, weight_cache=False), Reference(*pair, recipe(request.param)))


def some_tokens(count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(0).integers(3, tiny.VOCABULARY, count)]


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    """The error's norm, of the norm of what was wanted."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_logits_and_draft_steps_are_those_of_the_rounded_weights(rounded: Rounded) -> None:
    tokens, target = some_tokens(44), rounded.target()
    target.prefill(tokens[:40])
    past = rounded.reference.run(tokens)
    verified = target.verify(tokens[40:])
    assert relative(verified.logits, past.logits[40:]) <= ACTIVATION_ERROR
    assert relative(verified.activations, past.activations[0, 40:].numpy()) <= ACTIVATION_ERROR
    hidden = past.activations[0, 39]
    step = target.graphs.draft(tokens[40], hidden.numpy())
    _, state = rounded.reference.draft(past, 40, tokens[40], hidden)
    assert relative(step.state, state.numpy()) <= ACTIVATION_ERROR


def test_tables_give_exactly_the_rounded_rows(rounded: Rounded) -> None:
    graphs = rounded.target().graphs
    call = graphs._call(8)  # type: ignore[attr-defined]
    tokens = some_tokens(8)
    call.run(np.array(tokens), 0)
    tensors, config = rounded.reference.target_tensors, rounded.reference.target.config
    scale = np.float32(config.hidden_size**0.5)
    wanted = tensors["model.embed_tokens.weight"].numpy()[tokens] * scale
    np.testing.assert_array_equal(call.arrays[signatures.EMBEDDINGS][0], wanted)
    per_layer = tensors["model.embed_tokens_per_layer.weight"].numpy()[tokens] * np.float32(config.per_layer_size**0.5)
    found = call.arrays[signatures.PER_LAYER_EMBEDDINGS][0].reshape(8, -1)
    np.testing.assert_array_equal(found, per_layer)


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_rows_of_verify_are_those_of_decode_bit_for_bit(rounded: Rounded, count: int) -> None:
    text = some_tokens(304)
    plain, several = rounded.target(), rounded.target()
    for start in range(0, 304 - count + 1, count):
        wanted = []
        for token in text[start : start + count]:
            wanted.append(plain.verify([token]).logits[0].copy())
            plain.commit(1)
        np.testing.assert_array_equal(several.verify(text[start : start + count]).logits, wanted)
        several.commit(count)


def test_no_matrix_product_falls_off_the_delegate(rounded: Rounded) -> None:
    environment, graphs = rounded.backend.environment, rounded.bundle.manifest.graphs["litert"]
    for part, name in (*(("target", name) for name in VERIFY.values()), ("target", "prefill_128"), ("drafter", "draft")):
        found = delegation(environment, rounded.bundle, part, name)
        assert found.delegated_products == found.products > 10, f"{part} {name} of {graphs.parts[part]}"


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--recipe", "int4"], "recipe is 'int4'; allowed are f32, wi8c, wi4c, "),
        (["--recipe", "wi4c", "--format", "onnx"], "the format onnx cannot hold the recipe wi4c yet; it holds f32"),
    ],
)
def test_a_recipe_that_cannot_be_had_is_refused_before_anything_is_written(
    options: list[str], words: str, tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", str(tiny_pair[0]), "--drafter", str(tiny_pair[1]), "-o", str(tmp_path / "new" / "out"), *options]
    assert words in refused(arguments, capsys)
    assert not list(tmp_path.iterdir())
