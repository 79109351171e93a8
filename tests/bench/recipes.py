"""What each recipe costs and keeps on the small pair, on litert: `python tests/bench/recipes.py`.

Bytes of all .tflite files; share of positions where the rounded target, given the float32 target's greedy text, would
write the same next token; and how many of 3 drafts the rounded target accepts of the rounded drafter in its own greedy
text of the twenty prompts of `tests/small_pair.py`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from small_pair import DRAFTER, PROMPTS, TARGET

import paceline
from paceline.kv_cache import KVCache
from paceline.signatures import VERIFY
from paceline.target import Target
from paceline_export.bundle import DEFAULT_FORMATS, export
from paceline_export.recipes import RECIPES

NEW_TOKENS = 128
WIDEST = max(VERIFY)


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    texts: list[tuple[list[int], list[int]]] = []
    print("| recipe | bytes | same next token | accepted of 3 |\n|---|---|---|---|")
    for name, recipe in RECIPES.items():
        export(TARGET, DRAFTER, folder / name, lambda *_: None, DEFAULT_FORMATS, recipe)
        model = paceline.load(folder / name, weight_cache=False)
        accepted = rounds = 0
        for prompt in PROMPTS:
            pieces = list(model.generate(prompt, max_new_tokens=NEW_TOKENS, draft_length=3))
            assert pieces[-1].stats is not None
            accepted, rounds = accepted + pieces[-1].stats.accepted, rounds + pieces[-1].stats.rounds
            if name == "f32":
                texts.append((model.encode(prompt), [piece.token for piece in pieces]))
        same = sum(agreement(model, prompt, text) for prompt, text in texts)
        count = sum(len(text) for _, text in texts)
        size = sum(file.stat().st_size for file in (folder / name).glob("*.tflite"))
        print(f"| {name} | {size:,} | {same / count:.1%} of {count:,} | {accepted / rounds:.2f} |")


def agreement(model: paceline.Model, prompt: list[int], text: list[int]) -> int:
    """Positions of `text` where the model would write its token, given all before it."""
    cache = KVCache(model.manifest.caches, model.manifest.window, model.capacity)
    target, given, same = Target(model.backend.bind(cache), cache), [prompt[-1], *text[:-1]], 0
    target.prefill(prompt[:-1])
    for start in range(0, len(given), WIDEST):
        block = given[start : start + WIDEST]
        choices = np.argmax(target.verify(block).logits, axis=1)
        same += int((choices == text[start : start + len(block)]).sum())
        target.commit(len(block))
    return same


if __name__ == "__main__":
    main()
