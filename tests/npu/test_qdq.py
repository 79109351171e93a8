"""The ONNX twin of the small pair's integer graphs: all of it runs on the HTP's emulator, and says what LiteRT says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from ai_edge_litert import schema_py_generated as schema
from mutations import damaged_copies
from npu_tools import qnn_or_skip
from numpy.typing import NDArray
from small_pair import DRAFTER, PROMPTS, TARGET

from paceline import prompts, signatures
from paceline.backends.litert.model import Environment
from paceline.bundle import Bundle, sha256
from paceline.drafter import Drafter as DraftLoop
from paceline.errors import InputError
from paceline.kv_cache import KVCache
from paceline.npu import qnn
from paceline.npu.backend import NpuBackend, npu_files
from paceline.npu.contexts import OnnxGraphs
from paceline.npu.qnn import PROVIDER, QnnOnnx, hexagon_session
from paceline.npu.runners import LiteRtKernels, Runner
from paceline.npu.signatures import TOKEN, TOP_CLUSTERS, of_step
from paceline.target import Target as TargetLoop
from paceline.text import encode, load_tokenizer
from paceline_export.bundle import export
from paceline_export.lower.flatbuffer import Builtin, Subgraph, TfliteFile
from paceline_export.npu.qdq import data_file, write_twin
from paceline_export.npu.write import NpuOptions
from paceline_export.recipes import F32

SOC, STEPS, ROUNDS, CALLS = "SM8750", 3, 2, 4
UNROLLED = f"draft_{STEPS}"
RAN = {"decode": "target", "verify": "target", "draft": "drafter", UNROLLED: "drafter"}
Arrays = dict[str, NDArray[Any]]


@dataclass
class Recorder:
    """Runs on LiteRT's kernels, and keeps what every call was given and has made.

    Attributes:
        pending: the token of the drafter's next call, whose number the graph is not told.
        calls: signature -> inputs and outputs of each call.
    """

    kernels: LiteRtKernels
    pending: int = 0
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
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("npu") / "bundle"
    export(TARGET, DRAFTER, out, lambda *_: None, recipe=F32, npu=NpuOptions(prompts.PROMPTS, "a16w8", (256,), STEPS))
    return Bundle.open(out)


@pytest.fixture(scope="module")
def graphs(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, OnnxGraphs]:
    return translated(bundle, tmp_path_factory.mktemp("twin"))


def translated(bundle: Bundle, folder: Path) -> dict[str, OnnxGraphs]:
    found = {}
    for part, file in npu_files(bundle).items():
        files = write_twin(folder, part, file, lambda *_: None)
        found[part] = OnnxGraphs({name: folder / each for name, each in files.items()}, sha256(file))
    return found


@pytest.fixture(scope="module")
def calls(bundle: Bundle) -> dict[str, list[Arrays]]:
    """What LiteRT's kernels were given and made in rounds of the loop, and in an unrolled round of the same inputs."""
    recorder = Recorder(LiteRtKernels(Environment(), npu_files(bundle), 1))
    backend, tokenizer = NpuBackend(bundle, recorder, ("target", "drafter"), 1, False), load_tokenizer(bundle.folder)
    firsts = []
    for prompt in PROMPTS[:CALLS]:
        cache = KVCache(backend.manifest.caches, backend.manifest.window, 256)
        bound = backend.bind(cache)
        target, drafter = TargetLoop(bound, cache), DraftLoop(bound)
        *before, pending = encode(tokenizer, prompt)
        target.prefill(before)
        verified, hidden = target.verify([pending]), 0
        target.commit(1)
        pending = int(verified.logits[0].argmax())
        for _ in range(ROUNDS):
            firsts.append((pending, len(recorder.calls.get("draft", []))))
            drafts = drafter.chain(pending, verified.activations[hidden].copy(), STEPS)
            verified = target.verify([pending, *drafts])
            best = [int(token) for token in verified.logits.argmax(axis=1)]
            hidden = next((row for row, draft in enumerate(drafts) if draft != best[row]), STEPS)
            target.commit(hidden + 1)
            pending = best[hidden]
    for token, index in firsts:
        unrolled(recorder, backend, token, recorder.calls["draft"][index])
    return recorder.calls


def unrolled(recorder: Recorder, backend: NpuBackend, token: int, first: Arrays) -> None:
    """Runs the unrolled drafter on the inputs of a round's first step."""
    listed = backend.profile.signatures(backend.manifest, "drafter")[UNROLLED]
    arrays = {port.name: np.zeros(port.sizes, port.dtype) for port in listed.outputs}
    hidden = first[signatures.ACTIVATIONS][..., backend.manifest.hidden_size :]
    given = {TOKEN: np.array([token], np.int32), signatures.ACTIVATIONS: hidden}
    for port in listed.inputs:
        values = given.get(port.name, first.get(port.name))
        assert values is not None
        arrays[port.name] = signatures_memory(values)
    recorder.bind("drafter", UNROLLED, {**{p.name: signatures_memory(arrays[p.name]) for p in listed.outputs}, **arrays})()
