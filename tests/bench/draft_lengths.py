"""Times every draft length on the small pair, on both backends in turns: `python tests/bench/draft_lengths.py`.

Prints, for the greedy text of twenty prompts, tokens per second and the ratio to plain decoding (both from the fastest of
the repeats, since noise only adds time), and what single calls of the graphs cost.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from small_pair import DRAFTER, PROMPTS, TARGET

import paceline
from paceline.backends import BACKENDS, LITERT
from paceline.costs import measure_costs
from paceline_export.bundle import FORMATS, export
from paceline_export.recipes import F32

REPEATS, NEW_TOKENS = 5, 96
DRAFT_LENGTHS = range(8)


def main() -> None:
    out = Path(tempfile.mkdtemp()) / "bundle"
    export(TARGET, DRAFTER, out, lambda *_: None, tuple(FORMATS), F32)
    models = {name: paceline.load(out, backend=name, weight_cache=False) for name in BACKENDS}
    ways = [(name, k) for name in BACKENDS for k in DRAFT_LENGTHS]
    best_ms = dict.fromkeys(ways, float("inf"))
    for _ in range(REPEATS):
        for name, k in ways:
            stats = [generate(models[name], prompt, k)[1] for prompt in PROMPTS]
            best_ms[name, k] = min(best_ms[name, k], sum(s.decode_ms for s in stats))
    texts = [generate(models[LITERT], prompt, 0)[0] for prompt in PROMPTS]
    tokens = sum(len(text) - 1 for text in texts)
    distinct = np.mean([paceline.distinct_4grams(text) for text in texts])
    print(f"{len(PROMPTS)} prompts, {tokens} tokens, distinct 4-grams {distinct:.0%}")
    for name, k in ways:
        stats = [generate(models[name], prompt, k)[1] for prompt in PROMPTS]
        a_pass = 1 + sum(s.accepted for s in stats) / sum(s.rounds for s in stats)
        speed, ratio = 1000 * tokens / best_ms[name, k], best_ms[name, 0] / best_ms[name, k]
        print(f"{name}, draft length {k}: {speed:5.0f} tokens/s, {ratio:.2f} x plain, {a_pass:.2f} tokens a target pass")
    for model in models.values():
        print_call_costs(model)


def generate(model: paceline.Model, prompt: str, k: int) -> tuple[list[int], paceline.Stats]:
    pieces = list(model.generate(prompt, max_new_tokens=NEW_TOKENS, draft_length=k))
    assert pieces[-1].stats is not None
    return [piece.token for piece in pieces], pieces[-1].stats


def print_call_costs(model: paceline.Model) -> None:
    """Medians of single calls at 100 rows of context; the calls take turns, so that all see the same machine."""
    costs = measure_costs(model, 100, prefill=(64,), repeats=200)
    calls = {f"verify {rows}": cost.median_ms for rows, cost in costs.verify.items()}
    calls |= {"draft step": costs.draft[1].median_ms, "prefill 64": costs.prefill[64].median_ms}
    print(f"{model.backend.name}: " + ", ".join(f"{name} {ms:.2f} ms" for name, ms in calls.items()))


if __name__ == "__main__":
    main()
