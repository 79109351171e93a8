"""What integers cost: drafts kept and tokens changed, of the small pair's graphs for neural processors on LiteRT's kernels.

    python tests/bench/npu_recipes.py

Nothing is timed: kernels of a CPU, or an emulator, say nothing of a chip's speed.
"""

from __future__ import annotations

import sys
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from npu_models import BOTH, exported, model
from small_pair import DRAFTER, PROMPTS, TARGET

import paceline
from paceline.model import Model
from paceline.prompts import PROMPTS as MEASURED_ON

NEW_TOKENS, DRAFTS = 64, 3


def main() -> None:
    with TemporaryDirectory() as folder:
        rows, wanted = [], None
        for recipe in ("a16w8", "a16w4", "a8w8"):
            profiles = ("npu", "nnapi") if recipe == "a16w8" else ("npu",)
            bundle = exported(TARGET, DRAFTER, Path(folder) / recipe, (256,), MEASURED_ON, recipe=recipe, profiles=profiles)
            if wanted is None:
                wanted, kept = written(paceline.load(bundle, capacity=256))
                rows.append(("float32", "both", kept, wanted))
            for profile in profiles:
                name = recipe if profile == "npu" else profile
                for placed in (BOTH, ("drafter",)):
                    texts, kept = written(model(bundle, placed, profile))
                    rows.append((name, " and ".join(placed), kept, texts))
        assert wanted is not None
        for name, placed, kept, texts in rows:
            pairs = list(zip(texts, wanted, strict=True))
            same = sum(agreeing(*pair) for pair in pairs)
            equal = sum(one == other for one, other in pairs)
            told = f"kept {kept:.2f} of {DRAFTS}, {equal} of {len(wanted)} texts equal, {same} tokens before a difference"
            print(f"{name:8} {placed:20} {told}")


def agreeing(one: list[int], other: list[int]) -> int:
    """Tokens before the first that differs."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def written(each: Model) -> tuple[list[list[int]], float]:
    """Texts of all prompts, and accepted drafts a round."""
    texts, rounds, accepted = [], 0, 0
    for prompt in PROMPTS:
        pieces = list(each.generate(prompt, max_new_tokens=NEW_TOKENS, draft_length=DRAFTS))
        stats = pieces[-1].stats
        assert stats is not None
        texts.append([piece.token for piece in pieces])
        rounds, accepted = rounds + stats.rounds, accepted + stats.accepted
    return texts, accepted / rounds


if __name__ == "__main__":
    main()
