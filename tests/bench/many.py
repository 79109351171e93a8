"""Throughput of several prompts served in turns: `python tests/bench/many.py [BUNDLE [TOKENS]]`.

`Model.generate_many` on the twenty prompts of `tests/small_pair.py`, with 1, 2, 4 and 8 begun at a time, adaptive drafting;
on a bundle of one's own, or on the small pair. Tokens per second are of all prompts together, prefill included, the best of
the repeats, whose order takes turns; memory is what the process holds afterwards, the caches of all sequences included.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from time import perf_counter

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from small_pair import DRAFTER, PROMPTS, TARGET

import paceline
from paceline_export.bundle import FORMATS, export

AT_ONCE, REPEATS = (1, 2, 4, 8), 3


def main() -> None:
    bundle = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "bundle"
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    if not bundle.exists():
        export(TARGET, DRAFTER, bundle, lambda *_: None, tuple(FORMATS))
    print("| backend | at once | tokens/s, all prompts | resident MB |\n|---|---|---|---|")
    for backend in paceline.backends.BACKENDS:
        with paceline.load(bundle, backend=backend) as model:
            best, memory, texts = dict.fromkeys(AT_ONCE, 0.0), {}, set()
            for _ in range(REPEATS):
                for at_once in AT_ONCE:
                    started, written = perf_counter(), {index: [] for index in range(len(PROMPTS))}
                    for index, piece in model.generate_many(PROMPTS, at_once=at_once, max_new_tokens=tokens):
                        written[index].append(piece.token)
                    count = sum(map(len, written.values()))
                    best[at_once] = max(best[at_once], count / (perf_counter() - started))
                    memory.setdefault(at_once, psutil.Process().memory_info().rss / 1e6)
                    texts.add(tuple(map(tuple, written.values())))
            assert len(texts) == 1, "serving prompts in turns changed a text"
        for at_once in AT_ONCE:
            print(f"| {backend} | {at_once} | {best[at_once]:.0f} | {memory[at_once]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
