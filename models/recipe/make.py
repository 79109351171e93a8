"""Makes the small pair from nothing: corpus, tokenizer, target, drafter, measurements, and the published folders.

    python models/recipe/make.py --work /tmp/pair --target-minutes 68 --drafter-minutes 28

The work folder keeps the token arrays and snapshots; a stage whose result is there already is not run again.
Set MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456: otherwise glibc
returns every big temporary to the system, and on some machines getting it back makes steps several times slower.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import data
import measure
import publish
import torch
import train_drafter
import train_target

MODELS = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for token arrays and snapshots")
    parser.add_argument("--target-minutes", type=float, default=68)
    parser.add_argument("--drafter-minutes", type=float, default=28)
    parser.add_argument("--output", type=Path, default=MODELS, help="where target/ and drafter/ go (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(2)
    work: Path = options.work
    if not (work / "held_out.bin").exists():
        data.prepare(work)
    if not (work / "target.pt").exists():
        train_target.train(work, options.target_minutes)
    if not (work / "drafter.pt").exists():
        train_drafter.train(work, options.drafter_minutes)
    if not (work / "measurements.json").exists():
        (work / "measurements.json").write_text(json.dumps(measure.measure(work), indent=2) + "\n")
    publish.publish(work, options.output)


if __name__ == "__main__":
    main()
