"""What a bundle of real size costs, on every backend that it has graphs for: `python tests/bench/full_size.py BUNDLE`.

Every line is a process of its own, with 2 threads. The first load packs the weights for LiteRT and hashes the files, which
later loads need not. Memory is what is resident after decode, verify and draft calls, mapped files included, and after prompts
of random tokens, which touch most of what they can of the mapped tables; such pages can be dropped at any time. Calls take
turns, and their times are the fastest of the repeats, those of verify as multiples of decode. They are the same for random
weights as for trained ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import psutil

import paceline
from paceline.bundle import Bundle
from paceline.costs import measure_costs

CONTEXTS, PREFILL, THREADS, REPEATS = (512, 4096), (128, 1024), 2, 10
ROOM = 64  # rows beyond the context
COLUMNS = (
    "load s, first / later",
    "resident GB, then with prompts",
    "decode ms",
    "verify 2 / 4 / 8, decode = 1",
    "draft step ms",
    "prefill s",
)


def main(bundle: Path) -> None:
    print(f"| backend | context | {' | '.join(COLUMNS)} |\n|---|---|{'---|' * len(COLUMNS)}")
    for backend in Bundle.read(bundle).manifest.graphs:
        with tempfile.TemporaryDirectory() as cache:
            first = child(bundle, backend, 1, cache)["load_s"]
            for context in CONTEXTS:
                found = child(bundle, backend, context, cache)
                ratios = " / ".join(f"{ratio:.2f}" for ratio in found["verify_ratios"])
                prefill = ", ".join(f"{count}: {ms / 1000:.2f}" for count, ms in found["prefill_ms"].items())
                cells = (
                    f"{first:.1f} / {found['load_s']:.1f}",
                    " / ".join(f"{size / 1e9:.2f}" for size in found["resident_bytes"]),
                    f"{found['decode_ms']:.1f}",
                    ratios,
                    f"{found['draft_ms']:.2f}",
                    prefill,
                )
                print(f"| {backend} | {context} | {' | '.join(cells)} |", flush=True)


def child(bundle: Path, backend: str, context: int, cache: str) -> dict:
    """Measures in a process of its own; packed weights are in the directory `cache`."""
    command = [sys.executable, __file__, str(bundle), backend, str(context)]
    environment = os.environ | {"XDG_CACHE_HOME": cache}
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def measure(bundle: Path, backend: str, context: int) -> dict:
    """Loads the bundle and times its calls; a context of 1 only loads."""
    started = perf_counter()
    model = paceline.load(bundle, backend=backend, threads=THREADS, capacity=max(context, *PREFILL) + ROOM)
    found: dict = {"load_s": perf_counter() - started}
    if context > 1:
        costs = measure_costs(model, context, repeats=REPEATS)
        resident = [psutil.Process().memory_info().rss]
        prefill = measure_costs(model, 1, rows=(1,), prefill=PREFILL, repeats=3).prefill
        found |= {
            "decode_ms": costs.decode.minimum_ms,
            "verify_ratios": [costs.verify_ratio(length) for length in (1, 3, 7)],
            "draft_ms": costs.draft[3].minimum_ms / 3,
            "prefill_ms": {count: cost.minimum_ms for count, cost in prefill.items()},
            "resident_bytes": [*resident, psutil.Process().memory_info().rss],
        }
    return found


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(Path(sys.argv[1]))
    else:
        print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
