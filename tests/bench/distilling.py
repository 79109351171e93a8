"""What distilling brings a tuned target: acceptance of the stock drafter and of distilled ones, as float32 and as int4.

    python tests/bench/distilling.py WORK --minutes 2 10

WORK keeps the tuned target, the drafters, the bundles and the reports; what is there already is not made again. The new kind
of text is JSON records of the standard library (modules that no training saw), the old one Python, as the small pair writes it.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import small_pair
import torch
import tuned

from paceline.cli.main import main as paceline
from paceline.prompts import prompts_by_class

HELD_OUT_MODULES, BEGINNING = 48, 160  # modules that only prompts come from; characters of a prompt
RECIPE, TOKENS, MOST = "mixed-wi4c", "64", "32"  # tokens of a text, prompts of each kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--target-steps", type=int, default=105, help="(%(default)s)")
    parser.add_argument("--minutes", type=float, nargs="*", default=[2.0, 10.0], help="of distilling (%(default)s)")
    parser.add_argument("--steps", type=int, nargs="*", default=[], help="of distilling, for a machine whose speed varies")
    options = parser.parse_args()
    torch.set_num_threads(2)
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    modules = tuned.json_documents()
    learned = [document for documents in modules[:-HELD_OUT_MODULES] for document in documents]
    new = [documents[0][:BEGINNING] for documents in modules[-HELD_OUT_MODULES:]]
    text, prompts, target = work / "text.json", work / "prompts.json", work / "target"
    text.write_text(json.dumps(learned))
    prompts.write_text(json.dumps({"new": new, "old": small_pair.PROMPTS + prompts_by_class()["code"][:28]}))
    if not target.exists():
        tuned.tune(learned, options.target_steps, target)
    drafters = {"stock": small_pair.DRAFTER}
    budgets = [("minutes", value) for value in options.minutes] + [("steps", value) for value in options.steps]
    for unit, value in budgets:
        for recipe in ("f32", RECIPE):
            out = work / f"drafter-{value:g}-{unit}-{recipe}"
            if not out.exists():
                data = ("--drafter", small_pair.DRAFTER, "--text", text)
                run("distill", target, *data, "-o", out, f"--{unit}", value, "--recipe", recipe)
            drafters[f"{value:g} {unit}, {'float' if recipe == 'f32' else 'int4-aware'}"] = out
    print("| drafter | exported as | backend | new: first round | all rounds | sampled | old: first round | all rounds |")
    for name, drafter in drafters.items():
        for recipe in ("f32", RECIPE):
            bundle = work / f"bundle-{drafter.name}-{recipe}"
            if not bundle.exists():
                run("export", target, "--drafter", drafter, "-o", bundle, "--format", "tflite,onnx", "--recipe", recipe)
            for backend in ("litert", "onnxruntime"):
                file = work / f"{bundle.name}-{backend}.json"
                if not file.exists():
                    options = ("--prompts", prompts, "-n", TOKENS, "--most", MOST, "--backend", backend, "--json")
                    file.write_text(run("evaluate", bundle, *options))
                print(f"| {name} | {recipe} | {backend} | {' | '.join(accepted(json.loads(file.read_text())))} |", flush=True)


def accepted(report: dict[str, Any]) -> list[str]:
    """Means of 3 drafts."""
    found = {(each["class"], each["texts"]): each["drafter"] for each in report["results"]}
    sampled = next(texts for _, texts in found if texts != "greedy")
    new, drawn, old = found["new", "greedy"], found["new", sampled], found["old", "greedy"]
    means = [
        sum(new["first_round"]["by_position"][:3]),
        mean(new),
        mean(drawn),
        sum(old["first_round"]["by_position"][:3]),
        mean(old),
    ]
    return [f"{value:.2f}" for value in means]


def mean(drafter: dict[str, Any]) -> float:
    return float(drafter["free_running"]["3"]["mean_accepted"])


def run(*words: object) -> str:
    """What a command prints; it must succeed."""
    said = io.StringIO()
    with redirect_stdout(said):
        code = paceline(list(map(str, words)))
    assert code == 0, said.getvalue()
    return said.getvalue()


if __name__ == "__main__":
    main()
