"""Writes a random pair of a published size: `python tests/bench/random_checkpoint.py e2b|e4b FOLDER`.

E2B takes 9.4 GB (the published file's remaining 1 GB are its vision and audio towers, which no export reads), E4B 15.1.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from full_size import write_pair

if __name__ == "__main__":
    for folder in write_pair(Path(sys.argv[2]), sys.argv[1]):
        print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e9:.2f} GB")
