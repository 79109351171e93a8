"""A tuned target loses the stock drafter's acceptance, and seconds of distilling bring it back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import small_pair
import tuned

from paceline.cli.main import main
from paceline_export.evaluate.checkpoints import Checkpoints
from paceline_export.evaluate.replay import first_round, free_running
from paceline_export.evaluate.traces import Texts, encoded
from paceline_export.recipes import DEFAULT_RECIPE

MODULES, HELD_OUT = 100, 16
RISE = 0.5  # accepted of 3, as int4 and in the first round


def accepted(target: Path, drafter: Path, prompts: list[str]) -> tuple[float, float]:
    """Of 3 drafts as the recipe rounds them: in the first round, in all."""
    pair = Checkpoints.open(target, drafter, DEFAULT_RECIPE, "cpu")
    traces = pair.traces(encoded(pair, {"new": prompts}), Texts(0.0, 24), lambda _: None)
    return first_round(traces, 3).mean_accepted, free_running(traces, 3).mean_accepted


def test_distilling_brings_acceptance_back(tmp_path: Path) -> None:
    modules = tuned.json_documents(MODULES)
    learned = [document for documents in modules[:-HELD_OUT] for document in documents]
    prompts = [documents[0][:160] for documents in modules[-HELD_OUT:]]
    target = tuned.tune(learned, 24, tmp_path / "target", batch_tokens=514)
    (tmp_path / "text.json").write_text(json.dumps(learned))
    before = accepted(target, small_pair.DRAFTER, prompts)
    out = tmp_path / "drafter"
    arguments = ["--drafter", str(small_pair.DRAFTER), "--text", str(tmp_path / "text.json"), "-o", str(out)]
    assert main(["distill", str(target), *arguments, "--steps", "12", "--batch-tokens", "512"]) == 0
    after = accepted(target, out, prompts)
    assert after[0] > before[0] + RISE, (before, after)
    assert after[1] > before[1] + RISE, (before, after)


@pytest.mark.slow
def test_the_whole_proof_with_two_minutes(tmp_path: Path) -> None:
    """An int4-aware drafter keeps as int4 what rounding costs a float one; both formats agree."""
    script = Path(__file__).parents[1] / "bench" / "distilling.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "--minutes", "2"], capture_output=True, text=True, check=True
    )
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in done.stdout.splitlines() if line.startswith("| ")
    ]
    found = {(row[0], row[1], row[2]): [float(cell) for cell in row[3:]] for row in rows[1:]}
    for backend in ("litert", "onnxruntime"):
        stock = found["stock", "mixed-wi4c", backend][1]
        aware, rounded = (found[f"2 minutes, {kind}", "mixed-wi4c", backend][1] for kind in ("int4-aware", "float"))
        assert aware > stock + 1
        assert aware > rounded - 0.05
