"""Drafts kept where the target samples, by how they are drawn: `python tests/bench/drafting.py`.

Mean accepted of 3 and of 7 drafts on the small pair, float32, on litert: the twenty prompts of `tests/small_pair.py`, 96 tokens
each, with several seeds. The texts differ from way to way, their distribution does not.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from small_pair import DRAFTER, PROMPTS, TARGET

import paceline
from paceline_export.bundle import export
from paceline_export.recipes import F32

NEW_TOKENS, SEEDS, DRAFT_LENGTHS = 96, 4, (3, 7)
SETTINGS = {
    "0.7": paceline.Sampling(temperature=0.7),
    "1.0": paceline.Sampling(temperature=1.0),
    "1.0, top-k 64, top-p 0.95": paceline.Sampling(temperature=1.0, top_k=64, top_p=0.95),
}


def main() -> None:
    out = Path(tempfile.mkdtemp()) / "bundle"
    export(TARGET, DRAFTER, out, lambda *_: None, recipe=F32)
    model = paceline.load(out, weight_cache=False)
    ways = list(paceline.Drafting)
    print(f"| temperature | drafts | {' | '.join(way.value for way in ways)} | distinct 4-grams |")
    print(f"|---|---|{'---|' * (len(ways) + 1)}")
    for (name, sampling), length in product(SETTINGS.items(), DRAFT_LENGTHS):
        cases = list(product(PROMPTS, range(SEEDS)))
        runs = {way: [text(model, prompt, sampling, way, length, seed) for prompt, seed in cases] for way in ways}
        means = [sum(s.accepted for _, s in own) / sum(s.rounds for _, s in own) for own in runs.values()]
        texts = [tokens for own in runs.values() for tokens, _ in own]
        distinct = sum(paceline.distinct_4grams(tokens) for tokens in texts) / len(texts)
        print(f"| {name} | {length} | {' | '.join(f'{mean:.2f}' for mean in means)} | {distinct:.0%} |", flush=True)


def text(
    model: paceline.Model, prompt: str, sampling: paceline.Sampling, drafting: paceline.Drafting, length: int, seed: int
) -> tuple[list[int], paceline.Stats]:
    """A sampled text and its statistics."""
    settings = paceline.Sampling(sampling.temperature, sampling.top_k, sampling.top_p, seed=seed)
    options = {"sampling": settings, "drafting": drafting, "max_new_tokens": NEW_TOKENS, "draft_length": length}
    pieces = list(model.generate(prompt, **options))
    assert pieces[-1].stats is not None
    return [piece.token for piece in pieces], pieces[-1].stats


if __name__ == "__main__":
    main()
