"""Everything that reads files of strangers, each with a valid file and what can be wrong with it."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import mutations
import numpy as np
import torch
from mutations import Mutation
from rich.console import Console

from paceline import calibration
from paceline.backends.litert.expected import expected_signatures
from paceline.backends.litert.weight_cache import WeightCache
from paceline.bundle import CHAT_TEMPLATE, DRAFTER_CONFIG, GENERATION_CONFIG, MANIFEST, TARGET_CONFIG, Bundle, file_state
from paceline.chat_template import ChatTemplate
from paceline.cli import inspect
from paceline.manifest import Manifest
from paceline.npu.profile import PARTS, NpuProfile, Rotation
from paceline.npu.scales import Scale
from paceline.npu.signatures import ROWS, kinds_of
from paceline.prompts import read_prompts
from paceline.sampling import checkpoint_sampling
from paceline.sealed import seal_of
from paceline.signatures import VERIFY
from paceline.stored_weights import WEIGHTS_FILE, read_weights, summary
from paceline.text import TOKENIZER_FILE, TextStream, encode, load_tokenizer
from paceline_export.checkpoint import CONFIG, open_pair, open_target, stop_ids, stored_tensors
from paceline_export.distill.loss import Agreement
from paceline_export.distill.state import Point, State
from paceline_export.distill.text import read_documents
from paceline_export.lower import litertlm, tflite_read
from paceline_export.lower.litertlm_signatures import LiteRtLmProfile
from paceline_export.lower.tflite import DRAFTER, TARGET, ModelFile, token_tables
from paceline_export.npu.compiled import placements, programs
from paceline_export.npu.nnapi import lint, lint_table
from paceline_export.stored import open_stored

NPU_PROFILE = "npu.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
KEY = {"format": calibration.FORMAT, "threads": None}
COSTS = {"key": KEY, "costs": {"decode_ms": 1.5, "verify_ms": {"2": 2.0, "4": 3.0, "8": 4.0}, "draft_ms": 0.5}}
POINT = Point(3, 1.5, 2.5, Agreement(100, [0.5, 0.4, 0.3, 0.2], [0.6, 0.5, 0.4, 0.3]))
STATE = State("a run", 3, 1.5, [POINT], {"w": torch.ones(2)}, {"w": torch.zeros(2)}, {"muon.w": torch.zeros(2)})
MESSAGES = [{"role": "user", "content": "a <b>"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]


@dataclass(frozen=True)
class Places:
    """Valid files, to be changed: a pair's checkpoints, the target once more in shards, and their bundle."""

    target: Path
    sharded: Path
    drafter: Path
    bundle: Path
    cache: Path


@dataclass(frozen=True)
class Reader:
    """Reads one file.

    Attributes:
        file: the place of the file.
        mutate: what can be wrong with it.
        read: reads it, and uses what it read as the product does.
    """

    file: Callable[[Places], Path]
    mutate: Mutation
    read: Callable[[Places], object]


def _manifest(places: Places) -> None:
    bundle = Bundle.read(places.bundle)
    assert Manifest.from_json(bundle.manifest.to_json(), "again") == bundle.manifest
    bundle.check_sizes()
    console = Console(file=io.StringIO())
    for table in inspect.manifest_tables(bundle.manifest):
        console.print(table)
    for part in ("target", "drafter", "embedder", "per_layer_embedder"):
        expected_signatures(bundle.manifest, part)
    checkpoint_sampling(bundle)


def _weights(places: Places) -> None:
    weights = read_weights(places.bundle)
    summary(weights)
    Console(file=io.StringIO()).print(inspect.weights_table(weights))


def _tensors(places: Places) -> None:
    for stored in stored_tensors(places.drafter).values():
        stored.read()
    open_pair(places.target, places.drafter)


def _stored(places: Places) -> None:
    """As `litertlm.write_graphs`, which then packs what was made here, and writes it; that takes long."""
    pair, profile = open_stored(Bundle.read(places.bundle)), LiteRtLmProfile(64, 1)
    token_tables(pair.target, pair.target_rounding, {1: VERIFY[1]}, pair.tensors)
    litertlm._drafter(pair, ModelFile(pair.drafter_rounding, pair.tensors[DRAFTER]), profile, 0)
    litertlm._target(pair.target, ModelFile(pair.target_rounding, pair.tensors[TARGET]), profile)


def _tokenizer(places: Places) -> None:
    tokenizer = load_tokenizer(places.bundle)
    tokens = encode(tokenizer, "def f(x):\n\treturn 'é' <eos>")
    stream = TextStream(tokenizer)
    for token in [*tokens, 0, 1, 300, 1 << 31]:
        stream.push(token)
    stream.finish()


def _template(places: Places) -> None:
    bundle = Bundle.read(places.bundle)
    template = ChatTemplate.load(places.bundle, bundle.manifest, load_tokenizer(places.bundle))
    template.render(MESSAGES)


def _seal(places: Places) -> None:
    cache = WeightCache(places.bundle / "target.tflite", "00" * 32, "0.0")
    cache.folder.mkdir(parents=True, exist_ok=True)
    cache.file.write_bytes(b"weights")
    shutil.copyfile(places.cache / "seal.json", seal_of(cache.file))
    with cache.opened() as found:
        if found == cache.file:
            assert json.loads(seal_of(cache.file).read_text())["state"] == file_state(cache.file)


def npu_profile(manifest: Manifest) -> NpuProfile:
    """One that fits a pair, with made-up scales."""
    rotations = {kind: Rotation(size, 10000.0, 1.0) for kind, size in kinds_of(manifest.caches).items()}
    bare = NpuProfile("a16w8", "int16", (256,), ROWS, (1,), 4, rotations, {})
    scales = {
        part: {
            port.name: Scale(0.01, 0)
            for each in bare.signatures(manifest, part).values()
            for port in (*each.inputs, *each.outputs)
        }
        for part in PARTS
    }
    return replace(bare, scales=scales)


def _npu_profile(places: Places) -> None:
    profile = NpuProfile.read(places.bundle / NPU_PROFILE, Bundle.read(places.bundle).manifest)
    for rotation in profile.rotations.values():
        rotation.tables(np.arange(4))


def _compiled(places: Places) -> None:
    file = places.bundle / DRAFTER
    if all(placed.whole for placed in placements(file)):
        programs(file)


def _state(places: Places) -> None:
    state = State.read(places.cache / "out.training", "a run")
    state.require_fit(STATE.now, places.cache)
    [point.agreement.mean for point in state.points]


def _in_bundle(name: str) -> Callable[[Places], Path]:
    return lambda places: places.bundle / name


READERS = {
    "manifest": Reader(_in_bundle(MANIFEST), mutations.document, _manifest),
    "weights.json": Reader(_in_bundle(WEIGHTS_FILE), mutations.document, _weights),
    "generation config": Reader(
        _in_bundle(GENERATION_CONFIG), mutations.document, lambda places: checkpoint_sampling(Bundle.read(places.bundle))
    ),
    "stop ids": Reader(
        lambda places: places.target / GENERATION_CONFIG,
        mutations.document,
        lambda places: stop_ids(open_target(places.target)),
    ),
    "tokenizer": Reader(_in_bundle(TOKENIZER_FILE), mutations.document, _tokenizer),
    "template": Reader(_in_bundle(CHAT_TEMPLATE), mutations.template, _template),
    "safetensors": Reader(lambda places: places.drafter / WEIGHTS, mutations.tensors, _tensors),
    "index": Reader(lambda places: places.sharded / INDEX, mutations.document, lambda places: open_target(places.sharded)),
    "target config": Reader(
        lambda places: places.target / CONFIG, mutations.document, lambda places: open_pair(places.target, places.drafter)
    ),
    "drafter config": Reader(
        lambda places: places.drafter / CONFIG, mutations.document, lambda places: open_pair(places.target, places.drafter)
    ),
    "tflite": Reader(
        _in_bundle("drafter.tflite"),
        mutations.head,
        lambda places: tflite_read.stored_tensors(places.bundle / "drafter.tflite"),
    ),
    "tflite operators": Reader(
        _in_bundle("target.tflite"),
        mutations.head,
        lambda places: lint_table(lint(places.bundle / "target.tflite")),
    ),
    "compiled tflite": Reader(_in_bundle(DRAFTER), mutations.head, _compiled),
    "npu.json": Reader(_in_bundle(NPU_PROFILE), mutations.document, _npu_profile),
    "stored tflite": Reader(_in_bundle("target.tflite"), mutations.head, _stored),
    "stored weights.json": Reader(_in_bundle(WEIGHTS_FILE), mutations.document, _stored),
    "stored target config": Reader(_in_bundle(TARGET_CONFIG), mutations.document, _stored),
    "stored drafter config": Reader(_in_bundle(DRAFTER_CONFIG), mutations.document, _stored),
    "costs": Reader(
        lambda places: places.cache / "costs.json",
        mutations.document,
        lambda places: calibration._read(places.cache / "costs.json", KEY),
    ),
    "prompts": Reader(
        lambda places: places.cache / "prompts.json",
        mutations.document,
        lambda places: read_prompts(places.cache / "prompts.json"),
    ),
    "documents": Reader(
        lambda places: places.cache / "documents.json",
        mutations.document,
        lambda places: read_documents([places.cache / "documents.json"]),
    ),
    "training state": Reader(lambda places: places.cache / "out.training", mutations.tensors, _state),
    "seal": Reader(lambda places: places.cache / "seal.json", mutations.document, _seal),
}
