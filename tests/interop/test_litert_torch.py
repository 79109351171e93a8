"""litert-torch as an independent witness: its conversion of the torch lowering agrees with our own TFLite graphs.

Theirs goes through torch.export and MLIR and runs on TFLite's reference kernels, so it shares neither our choice of
operators nor our way to run them. The pair has every feature and four layers, because conversion takes its time per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from numpy.typing import NDArray
from reference import TARGET_TABLE, Reference
from torch import Tensor, nn

from paceline import signatures
from paceline.backends.litert.backend import LiteRtBackend, LiteRtGraphs
from paceline.bundle import Bundle
from paceline.kv_cache import KVCache
from paceline.signatures import ACTIVATIONS, DRAFT, LOGITS, VERIFY, CacheSpec, present
from paceline.target import Target
from paceline_export.bundle import export
from paceline_export.lower.caches import cache_specs, drafter_caches
from paceline_export.lower.torch import KV, TorchOps
from paceline_export.model.drafter import draft_choice, draft_state
from paceline_export.model.target import fill, finish_rows
from paceline_export.recipes import F32

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # litert-torch's own use of torch

TOLERANCE = 1e-4
LAYERS = [tiny.LOCAL, tiny.FULL] * 2  # one of each kind that owns KV, and one of each that shares it
PAST = 40  # committed rows, more than twice the window
ROWS = 4
STEPS = 3
TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, tiny.VOCABULARY, PAST + ROWS)]
Arrays = dict[str, NDArray[Any]]


class ConvertibleOps(TorchOps):
    """The torch lowering in a form that litert-torch 0.10 converts rightly.

    Its converter (litert-converter 0.5) takes the transposition of a repeated single head, `k.repeat_interleave(4, 1).mT`,
    for a reshape, and says nothing. Here the head's copies are joined instead, which makes the same tensor.
    """

    def attention(self, q: Tensor, kv: KV, window: int | None) -> Tensor:
        assert kv[0].shape[1] == 1
        keys, values = (torch.cat([x] * q.shape[2], 1) for x in kv)
        return super().attention(q, (keys, values), window)


class TargetRows(nn.Module):
    """Tokens [1, ROWS] after PAST committed rows, which are inputs; the positions are constants."""

    def __init__(self, reference: Reference, specs: Sequence[CacheSpec]):
        super().__init__()
        self.reference, self.specs = reference, specs

    def forward(self, tokens: Tensor, **past: Tensor) -> dict[str, Tensor]:
        """Logits, activations and the new KV rows, under the names that our graphs have for them."""
        config, weights = self.reference.target.config, self.reference.target.weights
        positions = torch.arange(PAST, PAST + ROWS)
        op = ConvertibleOps(self.reference.target_tensors, positions, positions + 1, _kv(self.specs, past))
        logits, activations = finish_rows(op, config, weights, fill(op, config, weights, tokens))
        outputs = {LOGITS: logits, ACTIVATIONS: activations}
        for spec in self.specs:
            for name, rows in zip((spec.key, spec.value), op.kv[spec.layer], strict=True):
                outputs[present(name)] = rows[:, :, PAST:]
        return outputs


class DraftStep(nn.Module):
    """One draft step for a token [1, 1] and a hidden state [1, 1, D] over PAST committed rows."""

    def __init__(self, reference: Reference, specs: Sequence[CacheSpec]):
        super().__init__()
        self.reference, self.specs = reference, specs

    def forward(self, token: Tensor, activations: Tensor, **past: Tensor) -> dict[str, Tensor]:
        """The choice and the projected state, under the names that our graph has for them."""
        config, weights = self.reference.drafter.config, self.reference.drafter.weights
        position = torch.tensor([PAST])
        op = ConvertibleOps(self.reference.drafter_tensors, position, position, _kv(self.specs, past))
        state, projected = draft_state(op, config, weights, TARGET_TABLE, token, activations)
        choice = draft_choice(op, config, weights, state)
        return {
            signatures.DRAFT_TOKEN: choice.token,
            signatures.DRAFT_LOGIT: choice.logit,
            signatures.DRAFT_LOGSUMEXP: choice.logsumexp,
            signatures.PROJECTED_ACTIVATIONS: projected,
        }


def _kv(specs: Sequence[CacheSpec], past: dict[str, Tensor]) -> dict[int, KV]:
    return {spec.layer: (past[spec.key], past[spec.value]) for spec in specs}


@dataclass
class Exported:
    """The pair as our bundle and as litert-torch converts it."""

    backend: LiteRtBackend
    theirs: Interpreter

    def committed(self) -> tuple[Target, LiteRtGraphs, NDArray[np.float32]]:
        """Ours, with PAST rows committed, and the activations [D] of the newest row."""
        manifest = self.backend.manifest
        cache = KVCache(manifest.caches, manifest.window, capacity=512)
        graphs = self.backend.bind(cache)
        target = Target(graphs, cache)
        target.prefill(TOKENS[: PAST - 1])
        hidden = target.verify(TOKENS[PAST - 1 : PAST]).activations[0].copy()
        target.commit(1)
        return target, graphs, hidden

    def witness(self, signature: str, cache: KVCache, **inputs: Any) -> Arrays:
        """A call of theirs on the rows that our cache holds."""
        runner = self.theirs.get_signature_runner(signature)
        details = runner.get_input_details()
        past = {name: buffer[:, :, :PAST] for name, buffer in cache.buffers.items() if name in details}
        given = {name: np.asarray(value, details[name]["dtype"]) for name, value in (inputs | past).items()}
        outputs: Arrays = runner(**given)
        return outputs


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    import litert_torch  # here, because it takes ten seconds

    folder = tmp_path_factory.mktemp("short")
    pair = tiny.write_pair(folder, layer_types=LAYERS, num_hidden_layers=len(LAYERS), num_kv_shared_layers=len(LAYERS) // 2)
    export(*pair, folder / "bundle", lambda *_: None, recipe=F32)
    reference = Reference(*pair)
    own = cache_specs(reference.target.config)
    read = drafter_caches(reference.target.config, reference.drafter.config)

    def past(specs: Sequence[CacheSpec]) -> dict[str, Tensor]:
        return {name: torch.zeros(1, spec.kv_heads, PAST, spec.head_dim) for spec in specs for name in (spec.key, spec.value)}

    token, hidden = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, tiny.WIDTH)
    converter = litert_torch.Converter()
    rows = {signatures.TOKENS: token.expand(1, ROWS)} | past(own)
    converter.add_signature(VERIFY[ROWS], TargetRows(reference, own).eval(), sample_kwargs=rows)
    step = {signatures.TOKEN: token, ACTIVATIONS: hidden} | past(read)
    converter.add_signature(DRAFT, DraftStep(reference, read).eval(), sample_kwargs=step)
    content = converter.convert().model_content()
    backend = LiteRtBackend(Bundle.open(folder / "bundle"), threads=1, weight_cache=False)
    theirs = Interpreter(model_content=content, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    return Exported(backend, theirs)


@pytest.mark.parametrize("rows", [1, 2, ROWS])
def test_decode_and_verify_equal_the_converted_torch_lowering(exported: Exported, rows: int) -> None:
    """One call of theirs over four tokens is four decode calls of ours, two of two rows, or one of four."""
    target, _, _ = exported.committed()
    expected = exported.witness(VERIFY[ROWS], target.cache, tokens=[TOKENS[PAST:]])
    for first in range(0, ROWS, rows):
        verified = target.verify(TOKENS[PAST + first : PAST + first + rows])
        assert _distance(verified.logits, expected[LOGITS][0, first : first + rows]) <= TOLERANCE
        assert _distance(verified.activations, expected[ACTIVATIONS][0, first : first + rows]) <= TOLERANCE
        target.commit(rows)
    for name, buffer in target.cache.buffers.items():
        assert _distance(buffer[:, :, PAST : PAST + ROWS], expected[present(name)]) <= TOLERANCE


def test_draft_steps_equal_the_converted_torch_lowering(exported: Exported) -> None:
    """A round of steps; both are given the token and state of our previous step, so that only one step's error is measured."""
    target, graphs, hidden = exported.committed()
    token = TOKENS[PAST]
    for _ in range(STEPS):
        expected = exported.witness(DRAFT, target.cache, token=[[token]], activations=hidden[None, None])
        step = graphs.draft(token, hidden)
        assert step.token == expected[signatures.DRAFT_TOKEN].item()
        assert abs(step.logit - expected[signatures.DRAFT_LOGIT].item()) <= TOLERANCE
        assert abs(step.logsumexp - expected[signatures.DRAFT_LOGSUMEXP].item()) <= TOLERANCE
        assert _distance(step.state, expected[signatures.PROJECTED_ACTIVATIONS][0, 0]) <= TOLERANCE
        token, hidden = step.token, step.state.copy()


def _distance(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max())
