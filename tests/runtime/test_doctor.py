"""`paceline doctor`: a good pair passes, and each way of wiring one wrongly, built on purpose, is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file, save_file
from small_pair import DRAFTER, TARGET

import paceline
from paceline import probes
from paceline.backends import BACKENDS
from paceline.backends.litert.calls import DrafterCall
from paceline.backends.masks import Masks
from paceline.checks import FailedError, SkippedError
from paceline.cli.main import main
from paceline.kv_cache import KVCache
from paceline.signatures import INPUT_POS, CacheKind
from paceline_export.bundle import export
from paceline_export.recipes import F32


@pytest.fixture(params=BACKENDS)
def model(request: pytest.FixtureRequest, small_bundle: Path) -> paceline.Model:
    """Loaded anew, because faults stay in what a model has bound."""
    return paceline.load(small_bundle, backend=request.param, threads=1, capacity=256)


def exported(out: Path, target: Path = TARGET, drafter: Path = DRAFTER) -> paceline.Model:
    export(target, drafter, out, lambda *_: None, recipe=F32)
    return paceline.load(out, threads=1, capacity=256)


def report(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> dict[str, tuple[str, str]]:
    capsys.readouterr()
    assert main(["doctor", *arguments, "--threads", "1", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert {"CPU", "features", "cores", "memory", "litert", "onnxruntime"} <= set(found["machine"])
    return {check["name"]: (check["outcome"], check["detail"]) for check in found["checks"]}


def test_a_good_pair_passes_on_both_backends(small_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, 0, str(small_bundle))
    assert len(found) == 16
    assert {name for name, (outcome, _) in found.items() if outcome == "skipped"} == {"hidden state and embedding, onnxruntime"}
    assert "logits are the table times the hidden state" in found["hidden state and embedding, litert"][1]


def test_a_rounded_pair_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(TARGET, DRAFTER, tmp_path / "bundle", lambda *_: None)
    assert {outcome for outcome, _ in report(capsys, 0, str(tmp_path / "bundle")).values()} == {"ok"}


def test_without_a_bundle_the_machine_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, 0) == {}
    assert main(["doctor"]) == 0
    assert "LiteRT 2." in capsys.readouterr().out


def test_swapped_kv_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of one size, as otherwise the graphs refuse it; the drafter's views of the two caches are exchanged."""
    pair = tiny.write_pair(tmp_path, 3, global_head_dim=16)
    export(*pair, tmp_path / "bundle", lambda *_: None, ("onnx",), F32)
    model = paceline.load(tmp_path / "bundle", threads=1, capacity=256)
    assert "sees 16 of its local layer" in probes.visible_rows(model)
    kinds = {spec.kind: spec for spec in model.manifest.drafter_caches}
    others = {CacheKind.LOCAL: CacheKind.FULL, CacheKind.FULL: CacheKind.LOCAL}

    def swapped(cache: KVCache, spec: Any, name: str, head: int) -> Any:
        other = kinds[others[spec.kind]]
        buffer = cache.buffers[other.key if name == spec.key else other.value]
        return buffer[:, head, cache.length - cache.window if spec.kind is CacheKind.LOCAL else 0 : cache.length]

    model = paceline.load(tmp_path / "bundle", threads=1, capacity=256)
    monkeypatch.setattr(KVCache, "view", swapped)
    with pytest.raises(FailedError, match="local and full KV swapped"):
        probes.visible_rows(model)


def test_another_layers_kv_is_named(model: paceline.Model) -> None:
    wrong = (model.manifest.caches[0].layer, model.manifest.drafter_layers[1])
    changed = replace(model.bundle, manifest=replace(model.manifest, drafter_layers=wrong))
    assert "the last of each kind" in probes.layers(model)
    with pytest.raises(FailedError, match=r"wrong KV binding: the drafter reads layers \[0, "):
        probes.layers(paceline.Model(changed, model.tokenizer, model.backend, 64))


def test_a_hidden_state_before_the_norm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline_export.lower import tflite

    finish_rows = tflite.finish_rows

    def before_the_norm(op: Any, config: Any, weights: Any, filled: Any) -> Any:
        seen = []
        rms_norm = op.rms_norm

        def watched(x: Any, weight: Any, epsilon: float) -> Any:
            if weight is not None and weight.name == "model.norm.weight":
                seen.append(x)
            return rms_norm(x, weight, epsilon)

        monkeypatch.setattr(op, "rms_norm", watched, raising=False)
        logits, _ = finish_rows(op, config, weights, filled)
        return logits, seen[0]

    monkeypatch.setattr(tflite, "finish_rows", before_the_norm)
    with pytest.raises(FailedError, match=r"hidden state of another place: .* must be the state after the final norm"):
        probes.hidden_state(exported(tmp_path / "bundle"))


def test_an_embedding_that_is_not_scaled_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline_export.lower import tflite
    from paceline_export.model.target import TABLE

    monkeypatch.setattr(tflite, "token_embeddings", lambda op, config, w, tokens: op.embedding(w[TABLE], tokens))
    with pytest.raises(FailedError, match=r"embedding not scaled: .* need sqrt\("):
        probes.hidden_state(exported(tmp_path / "bundle"))


def test_a_position_that_moves_is_named(small_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = DrafterCall.run

    def moving(call: DrafterCall, token: int, hidden: Any) -> Any:
        step = run(call, token, hidden)
        call.arrays[INPUT_POS][0] += 1
        return step

    model = paceline.load(small_bundle, backend="litert", threads=1, capacity=256)
    assert "position +0" in probes.position(model)
    monkeypatch.setattr(DrafterCall, "run", moving)
    with pytest.raises(FailedError, match="position moving during a round"):
        probes.position(model)


def test_stale_rows_that_are_seen_are_named(model: paceline.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "changes nothing" in probes.stale_rows(model)
    show, view = Masks.show, KVCache.view

    def one_more(cache: KVCache, spec: Any, name: str, head: int) -> Any:
        cache.length += 1
        try:
            return view(cache, spec, name, head)
        finally:
            cache.length -= 1

    monkeypatch.setattr(KVCache, "view", one_more)
    monkeypatch.setattr(Masks, "show", lambda masks, row, start, path=(): show(masks, row, start + (not path), path))
    fresh = paceline.load(model.bundle, backend=model.backend.name, threads=1, capacity=256)
    with pytest.raises(FailedError, match=r"stale KV rows visible: .* what the drafter says"):
        probes.stale_rows(fresh)


def test_stale_rows_that_the_target_sees_are_named(model: paceline.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    show = Masks.show
    monkeypatch.setattr(
        Masks, "show", lambda masks, row, start, path=(): show(masks, row, start, path and range(len(path) + 3))
    )
    with pytest.raises(FailedError, match=r"stale KV rows visible: .* what the target says"):
        probes.stale_rows(paceline.load(model.bundle, backend=model.backend.name, threads=1, capacity=256))


def eight_bits(rows: Any) -> Any:
    scale = np.abs(rows).max(axis=-1, keepdims=True) / 127 + 1e-20
    return np.rint(rows / scale) * scale


@pytest.mark.parametrize(
    ("kind", "rounded"),
    [
        ("8-bit", eight_bits),
        ("float16", lambda rows: rows.astype(np.float16).astype(np.float32)),
        ("bfloat16", lambda rows: (rows.view(np.uint32) & 0xFFFF0000).view(np.float32)),
    ],
    ids=["int8", "float16", "bfloat16"],
)
def test_quantised_kv_is_named(
    model: paceline.Model, kind: str, rounded: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = KVCache.commit

    def rounding(cache: KVCache, rows: int) -> None:
        for buffer in cache.buffers.values():
            buffer[:] = rounded(buffer.copy())
        commit(cache, rows)

    assert probes.precision(model) == "KV rows are float32"
    monkeypatch.setattr(KVCache, "commit", rounding)
    with pytest.raises(FailedError, match=f"quantised KV: the rows of layer .* hold {kind} numbers"):
        probes.precision(model)


def test_a_drafter_of_another_target_is_named(tmp_path: Path) -> None:
    """Its projections are another's; nothing else is wrong."""
    other = shutil.copytree(DRAFTER, tmp_path / "drafter")
    weights = load_file(other / "model.safetensors")
    rng = np.random.default_rng(0)
    for name in ("pre_projection.weight", "post_projection.weight"):
        weights[name] = np.ascontiguousarray(rng.permutation(weights[name].reshape(-1)).reshape(weights[name].shape))
    save_file(weights, other / "model.safetensors")
    model = exported(tmp_path / "bundle", drafter=other)
    outcomes = {}
    for name, trial in probes.trials(model):
        try:
            outcomes[name] = trial()
        except (FailedError, SkippedError) as error:
            outcomes[name] = f"!{error}"
    assert {name for name, said in outcomes.items() if said.startswith("!")} == {"acceptance"}
    assert outcomes["acceptance"].startswith("!drafter of another target: ")


def test_another_vocabulary_or_bos_is_named(model: paceline.Model) -> None:
    def changed(**fields: Any) -> paceline.Model:
        bundle = replace(model.bundle, manifest=replace(model.manifest, **fields))
        return paceline.Model(bundle, model.tokenizer, model.backend, 64)

    assert "<bos> is 2" in probes.vocabulary(model)
    for fields, said in (
        ({"vocab_size": 100}, "vocabulary mismatch: the tokenizer has"),
        ({"bos_id": 7}, "bos mismatch: <bos> is 2 to the tokenizer and 7"),
        ({"stop_ids": (10**6,)}, "vocabulary mismatch: the stop token 1000000"),
    ):
        with pytest.raises(FailedError, match=said):
            probes.vocabulary(changed(**fields))


def test_a_run_with_a_hopeless_drafter_hints_at_the_doctor(
    tiny_bundle: Path, small_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tiny pair is random."""
    for bundle, hinted in ((tiny_bundle, True), (small_bundle, False)):
        assert main(["run", str(bundle), "-p", "a b", "--threads", "1", "--max-new-tokens", "120", "--draft", "2"]) == 0
        assert (f"paceline doctor {bundle} says why" in capsys.readouterr().err) is hinted
