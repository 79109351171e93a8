"""E2B's own sizes, with random weights and an eighth of the vocabulary, so that a float32 pair fits in 24 GiB.

By hand: `pytest -m slow tests/parity/test_full_size.py`. It needs 40 GB of disk, 20 GiB of memory and some minutes.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from full_size import fields, write
from numpy.typing import NDArray
from reference import Reference

import paceline
from paceline.kv_cache import KVCache
from paceline.target import Target
from paceline_export.config import drafter_config, target_config
from paceline_export.model.drafter import drafter_shapes
from paceline_export.model.target import target_shapes

VOCABULARY, CENTROIDS = 32_768, 256
TOLERANCE = 1e-4
EXPORT = """
import sys
from pathlib import Path
from paceline.cli.main import main

code = main(["export", *sys.argv[1:]])
status = Path("/proc/self/status").read_text()
print(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""


@dataclass
class Expected:
    """What the torch lowering says of the last tokens of a text, and of one draft step before them."""

    tokens: list[int]
    logits: NDArray[np.float32]  # [4, V]
    hidden: NDArray[np.float32]  # [D], of the row before
    draft_token: int
    state: NDArray[np.float32]  # [D], projected


@pytest.fixture(scope="module")
def pair(tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    published, drafter_fields = fields("e2b")
    target_fields = published["text_config"] | {"architectures": ["Gemma4ForCausalLM"], "vocab_size": VOCABULARY}
    drafter_fields |= {"num_centroids": CENTROIDS}
    drafter_fields["text_config"] |= {"vocab_size": VOCABULARY}
    config, folder = target_config(target_fields, "target"), tmp_path_factory.mktemp("e2b")
    write(folder / "target", target_fields, target_shapes(config))
    write(folder / "drafter", drafter_fields, drafter_shapes(drafter_config(drafter_fields, "drafter", config)))
    (folder / "target" / "tokenizer.json").write_bytes((tiny_pair[0] / "tokenizer.json").read_bytes())
    return folder / "target", folder / "drafter"


@pytest.fixture(scope="module")
def expected(pair: tuple[Path, Path]) -> Expected:
    tokens = [int(t) for t in np.random.default_rng(1).integers(3, VOCABULARY, 660)]  # past the window of 512 and its slack
    reference = Reference(*pair)
    past = reference.run(tokens)
    hidden = past.activations[0, -5].clone()
    choice, state = reference.draft(past, 656, tokens[656], hidden)
    return Expected(tokens, past.logits[-4:].copy(), hidden.numpy(), int(choice.token), state.numpy().copy())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "weights_file"), [("onnx", "target.onnx.data"), ("tflite", "target.tflite")])
def test_e2b_sizes_export_streamed_and_match_the_torch_lowering(
    name: str, weights_file: str, pair: tuple[Path, Path], expected: Expected, tmp_path: Path
) -> None:
    gc.collect()  # the reference's weights
    bundle = tmp_path / "bundle"
    arguments = [str(pair[0]), "--drafter", str(pair[1]), "-o", str(bundle), "--format", name, "--recipe", "f32"]
    done = subprocess.run([sys.executable, "-c", EXPORT, *arguments], check=True, capture_output=True, text=True)
    peak = 1024 * int(done.stdout.splitlines()[-1])
    weights = (bundle / weights_file).stat().st_size
    print(f"{weights_file} {weights / 1e9:.2f} GB, peak of the export {peak / 1e9:.2f} GB")
    assert weights > 1 << 32
    assert peak < 1 << 29, "a whole tensor was in memory: the largest has 1.2 GB"

    model = paceline.load(bundle, capacity=1024)
    print(model.backend.describe())
    cache = KVCache(model.manifest.caches, model.manifest.window, 1024)
    graphs = model.backend.bind(cache)
    target = Target(graphs, cache)
    target.prefill(expected.tokens[:656])
    step = graphs.draft(expected.tokens[656], expected.hidden)
    verified = target.verify(expected.tokens[656:]).logits.copy()
    difference, drafted = np.abs(verified - expected.logits).max(), np.abs(step.state - expected.state).max()
    print(f"largest difference: logits {difference:.1e} of {np.abs(verified).max():.1f}, projected state {drafted:.1e}")
    assert difference <= TOLERANCE
    assert drafted <= TOLERANCE
    assert step.token == expected.draft_token
    if model.backend.name == "litert":
        for row, token in enumerate(expected.tokens[656:]):
            assert np.array_equal(target.verify([token]).logits[0], verified[row])
            target.commit(1)
