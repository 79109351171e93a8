"""The core on an NPU's graphs: what it writes on the CPU's kernels for integers is what the Python runtime writes on them.

No NPU is here, and no dispatch library for one: of running on a chip, only what refuses it is tested.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from android_core import CPU, LIBRARY, NPU_ON_CPU, Core, Request
from npu_models import exported, model, tokens
from small_pair import PROMPTS

from paceline.model import Model
from paceline.sampling import GREEDY, Sampling

NEW_TOKENS = 16
LENGTHS = (0, 1, 3, 7)
NAMES = {CPU: "cpu", NPU_ON_CPU: "npu-on-cpu"}
PLACES = [(NPU_ON_CPU, NPU_ON_CPU), (NPU_ON_CPU, CPU), (CPU, NPU_ON_CPU)]
SOC = "SM8750"

everywhere = pytest.mark.parametrize("places", PLACES, ids=lambda places: "-".join(NAMES[place] for place in places))


@pytest.fixture(scope="module")
def wide_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pair with two kv heads, whose untrained weights make a last bit a token."""
    import tiny

    folder = tmp_path_factory.mktemp("wide")
    return exported(*tiny.write_pair(folder / "pair", num_key_value_heads=2), folder / "bundle", (192, 512), ("a",))


def python_model(folder: Path, places: tuple[int, int]) -> Model:
    """The Python runtime on the same graphs."""
    return model(folder, [part for part, place in zip(("target", "drafter"), places, strict=True) if place == NPU_ON_CPU])


def growing(model: Model) -> list[int]:
    """A prompt of several windows, behind which larger caches begin in the midst of calls."""
    return model.encode("\n".join(PROMPTS[6:] + PROMPTS[:6]))[:240]


def require_same_tokens(
    core: Core, folder: Path, places: tuple[int, int], prompts: Sequence[list[int]], samplings: Sequence[Sampling] = (GREEDY,)
) -> None:
    """Of core and Python at every draft length, each in one process, with all prompts at a length before the next one."""
    each = python_model(folder, places)
    texts = list(product(samplings, prompts))
    plain, *drafted = (
        [tokens(each, prompt, NEW_TOKENS, draft_length=length, sampling=sampling) for sampling, prompt in texts]
        for length in LENGTHS
    )
    assert drafted == [plain] * len(drafted)
    requests = [Request(prompt, length, NEW_TOKENS, sampling) for length in LENGTHS for sampling, prompt in texts]
    assert core.continue_many(folder, "-", requests, places) == plain * len(LENGTHS)


@everywhere
def test_tokens_are_those_of_the_python_runtime(core: Core, npu_bundle: Path, places: tuple[int, int]) -> None:
    """A text that grows into larger caches, and behind it short ones, which begin in small ones again."""
    each = python_model(npu_bundle, places)
    require_same_tokens(core, npu_bundle, places, [growing(each), *map(each.encode, PROMPTS[:2])])


@everywhere
def test_no_bit_depends_on_drafts(core: Core, wide_bundle: Path, places: tuple[int, int]) -> None:
    """Drawn tokens of untrained weights show bits: of a text that grows, the same rolled back to small caches, and one whose
    prompt grows.
    """
    random = np.random.default_rng(0)
    grows, grown = ([2, *random.integers(300, 500, count).tolist()] for count in (175, 300))
    require_same_tokens(core, wide_bundle, places, [grows, grows, grown], [Sampling(temperature=1.0, seed=0)])


@everywhere
def test_drafts_are_those_of_the_python_runtime(core: Core, npu_bundle: Path, places: tuple[int, int]) -> None:
    """What a target writes says nothing of the drafts; how many it accepts does."""
    each = python_model(npu_bundle, places)
    prompt = growing(each)[:215]  # some drafts are rejected behind it
    *_, last = each.generate(prompt, max_new_tokens=48, draft_length=7)
    ids = ",".join(map(str, prompt))
    done = run(core, npu_bundle, places, "--prompt-ids", ids, "-n", 48, "--draft", "7", "--stats")
    assert done.returncode == 0, done.stderr
    assert last.stats
    assert 0 < last.stats.accepted < last.stats.drafted
    counted = re.search(r"(\d+) rounds, (\d+) of (\d+) drafts accepted", done.stderr)
    assert counted
    assert list(map(int, counted.groups())) == [last.stats.rounds, last.stats.accepted, last.stats.drafted]


def run(core: Core, bundle: Path, places: tuple[int, int], *options: object) -> Any:
    words = ["--target-on", NAMES[places[0]], "--drafter-on", NAMES[places[1]]]
    return core.run("paceline-run", bundle, "--library", LIBRARY, "--threads", "2", *words, *map(str, options))


def test_what_runs_where_is_said(core: Core, npu_bundle: Path) -> None:
    done = run(core, npu_bundle, (NPU_ON_CPU, CPU), "-p", "x", "-n", "1")
    assert "LiteRT, target on the CPU with the NPU's graphs (a16w8), drafter on the CPU (XNNPACK), 2 threads" in done.stderr


def test_adaptive_drafting_measures_both_places(core: Core, npu_bundle: Path, tmp_path: Path) -> None:
    """And keeps the costs for these places alone."""
    for places in PLACES[:2]:
        done = run(core, npu_bundle, places, "-p", PROMPTS[0], "-n", NEW_TOKENS, "--cache", tmp_path, "--context", "512")
        assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("costs-*"))) == 2


def test_a_context_beyond_the_graphs(core: Core, npu_bundle: Path) -> None:
    done = run(core, npu_bundle, PLACES[0], "-p", "x", "--context", "513")
    assert done.returncode == 2
    assert "the context is 513; this model allows 1 to 512" in done.stderr


@pytest.fixture
def compiled(npu_bundle: Path, tmp_path: Path) -> Path:
    """A bundle that says that its graphs are compiled for a chip. They are not, which is for LiteRT to find out."""
    folder = shutil.copytree(npu_bundle, tmp_path / "bundle")
    raw = json.loads((folder / "manifest.json").read_text())
    raw["graphs"][f"npu.{SOC}"] = raw["graphs"]["npu"]
    (folder / "manifest.json").write_text(json.dumps(raw))
    return folder


def test_an_npu_that_cannot_run_it_is_refused_or_replaced(
    core: Core, compiled: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """One sentence says why and what to do. With a fallback, the CPU's tokens come, and the sentence on standard error."""
    empty, dispatch = tmp_path / "empty", tmp_path / "dispatch"
    for folder in (empty, dispatch):
        folder.mkdir()
    (dispatch / "libLiteRtDispatch_Any.so").write_text("no library")
    request = ["--library", LIBRARY, "--prompt-ids", "5,6,7", "--tokens", "-n", "8"]
    plain = {bundle: core.run("paceline-run", bundle, *request).stdout for bundle in (tiny_bundle, compiled)}
    for bundle, options, why in (
        (tiny_bundle, ["--soc", SOC], "has no graphs for an NPU; export it"),
        (compiled, [], "does not say what chip it has"),
        (compiled, ["--soc", "SM8650"], f"no graphs of the target for the NPU of SM8650 (it has those for {SOC})"),
        (compiled, ["--soc", SOC], "no directory for it was named"),
        (compiled, ["--soc", SOC, "--npu-libraries", empty], f"library of LiteRT (libLiteRtDispatch_*.so) in {empty};"),
        (
            compiled,
            ["--soc", SOC, "--npu-libraries", dispatch],
            "drafter.npu.tflite: LiteRT refused (status 504) to prepare it for the NPU",
        ),
    ):
        words = [bundle, *request, "--target-on", "npu", "--drafter-on", "npu"]
        done = core.run("paceline-run", *words, *map(str, options))
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr
        done = core.run("paceline-run", *words, *map(str, options), "--allow-fallback")
        assert (done.returncode, done.stdout) == (0, plain[bundle])
        assert re.search(
            "^(Target and drafter run|The drafter runs .* The target runs) on the CPU: ", done.stderr, re.MULTILINE
        )
        assert why in done.stderr
        assert "LiteRT on the CPU (XNNPACK)" in done.stderr


def test_graphs_that_were_left_behind(core: Core, compiled: Path) -> None:
    (compiled / "drafter.npu.tflite").unlink()
    words = ["--library", LIBRARY, "--drafter-on", "npu-on-cpu", "-p", "x", "-n", "2"]
    done = core.run("paceline-run", compiled, *words)
    assert done.returncode == 2
    assert "drafter.npu.tflite cannot be opened" in done.stderr
    assert core.run("paceline-run", compiled, *words, "--allow-fallback").returncode == 0


def test_places_that_there_are_not(core: Core, npu_bundle: Path) -> None:
    for options, word in (
        (["--target-on", "tpu"], "allowed are cpu, npu and npu-on-cpu"),
        (["--backend", "npu"], "allowed are cpu and gpu"),
        (["--backend", "gpu", "--drafter-on", "npu-on-cpu"], "the GPU runs target and drafter, or none"),
    ):
        done = core.run("paceline-run", npu_bundle, "--library", LIBRARY, "-p", "x", *options)
        assert done.returncode == 2
        assert word in done.stderr


def changed(folder: Path, *path: str | int, to: Any) -> None:
    """Changes a value of npu.json, whose size and hash the manifest then says."""
    file, manifest = folder / "npu.json", folder / "manifest.json"
    raw = json.loads(file.read_text())
    place = raw
    for each in path[:-1]:
        place = place[each]
    place[path[-1]] = to
    file.write_text(json.dumps(raw))
    listed = json.loads(manifest.read_text())
    content = file.read_bytes()
    listed["files"]["npu.json"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.write_text(json.dumps(listed))


@pytest.mark.parametrize(
    ("path", "to", "word"),
    [
        (("format_version",), 2, "format_version 2"),
        (("dtype",), "float32", "dtype"),
        (("rows",), [2, 4, 8, 128], "lacks 1"),
        (("rows",), [1, 2, 4, 16], "has 16"),
        (("rows",), [1, 2, 4, 128], "rows lacks 8"),
        (("draft_steps",), [3], "lacks 1"),
        (("draft_steps",), [1, 17], "draft_steps[1]"),
        (("contexts",), [], "contexts is empty"),
        (("contexts",), [512, 256], "contexts[1] is not larger"),
        (("contexts",), [256, 1 << 21], "contexts[1]"),
        (("contexts",), [128, 512], "no signature decode_cache_128"),
        (("contexts",), [256], "no signature decode;"),
        (("top_clusters",), -1, "top_clusters"),
        (("rotations", "half"), {}, "half is unknown"),
        (("rotations", "local", "theta"), 0.5, "theta"),
        (("rotations", "full", "rotated"), 0, "rotate"),
        (("rotations", "full", "head_dim"), 32, "rotations are those of another pair"),
        (("rotations",), {}, "rotations are those of another pair"),
        (("scales", "target", "logits"), [1, 0], "logits[0]"),
        (("scales", "target", "logits"), [0.0, 0], "logits[0]"),
        (("scales", "target", "logits"), [1e-60, 0], "logits[0]"),
        (("scales", "target", "logits"), [0.5, 128], "logits[1]"),
        (("scales", "target", "logits"), [0.5], "a scale and a zero point"),
        (("scales", "target"), {}, "scales.target lacks"),
        (("scales", "drafter"), {}, "scales.drafter lacks"),
        (("scales", "target", "kv_slice_v_2"), [0.5, 0], "kv_slice_v_2 is not that of"),
        (("scales", "drafter", "kv_cache_k_2"), [0.5, 0], "kv_cache_k_2 is not that of"),
        (("recipe",), 8, "recipe"),
    ],
)
def test_broken_profiles(core: Core, npu_bundle: Path, tmp_path: Path, path: tuple[str, ...], to: Any, word: str) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(npu_bundle, folder, copy_function=lambda source, target: Path(target).symlink_to(source))
    for name in ("npu.json", "manifest.json"):
        (folder / name).unlink()
        shutil.copy(npu_bundle / name, folder)
    changed(folder, *path, to=to)
    done = run(core, folder, PLACES[0], "-p", "x", "-n", "1", "--allow-fallback")
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr


def test_nobody_reads_a_profile_for_the_cpu(core: Core, compiled: Path) -> None:
    changed(compiled, "dtype", to="float32")
    for name in ("npu.json", "target.npu.tflite", "drafter.npu.tflite"):
        assert core.run("paceline-run", compiled, "--library", LIBRARY, "-p", "x", "-n", "1").returncode == 0
        (compiled / name).unlink()


def test_a_manifest_whose_npu_graphs_are_wrong(core: Core, compiled: Path) -> None:
    file = compiled / "manifest.json"
    whole = json.loads(file.read_text())
    for parts, word in (
        ({"target": "../target"}, "without a directory"),
        ({"target": "none"}, "files lacks none"),
        ({"embedder": "embedder.tflite"}, "an NPU runs the parts target and drafter"),
    ):
        file.write_text(json.dumps({**whole, "graphs": {**whole["graphs"], f"npu.{SOC}": {"parts": parts}}}))
        done = core.run("paceline-run", compiled, "--library", LIBRARY, "-p", "x")
        assert done.returncode == 2
        assert word in done.stderr
