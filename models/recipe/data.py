"""Token arrays on disk and random batches from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import corpus
import numpy as np
import tokenizer as small_tokenizer
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

BOS, EOS = 2, 1
# How often a training sequence comes from each part. Test code is plentiful but unlike what is held out.
MIXTURE = {"library": 0.55, "chat": 0.15, "tests": 0.30}
BATCH_TOKENS = 2048


def prepare(folder: Path) -> None:
    """Writes tokenizer.json and one uint16 array for each part of the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = corpus.collect()
    tokenizer = small_tokenizer.train(texts.library)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("library", "chat", "tests", "held_out"):
        documents = getattr(texts, name)
        tokens = _encode(tokenizer, documents)
        tokens.tofile(folder / f"{name}.bin")
        size = sum(len(text.encode()) for text in documents)
        ratio = size / max(len(tokens), 1)
        print(f"{name}: {len(documents)} texts, {size:,} bytes, {len(tokens):,} tokens, {ratio:.3f} bytes/token")
    print("held out:", ", ".join(texts.held_out_names))


def _encode(tokenizer: Tokenizer, documents: list[str]) -> NDArray[np.uint16]:
    tokens: list[int] = []
    for encoding in tokenizer.encode_batch(documents):  # each begins with <bos>
        tokens += [*encoding.ids, EOS]
    return np.array(tokens, np.uint16)


def read(folder: Path, name: str) -> NDArray[np.uint16]:
    """One part of the corpus as tokens."""
    return np.fromfile(folder / f"{name}.bin", np.uint16)


def batches(folder: Path, seed: int) -> Batches:
    """Random training batches."""
    parts = {name: read(folder, name) for name in MIXTURE}
    long_enough = {name: part for name, part in parts.items() if len(part) > BATCH_TOKENS}
    return Batches(long_enough, seed)


class Batches:
    """Draws sequences from the parts of the corpus in the proportions of MIXTURE."""

    def __init__(self, parts: dict[str, NDArray[np.uint16]], seed: int):
        self.parts, self.seed = parts, seed
        weights = np.array([MIXTURE[name] for name in parts])
        self.weights = weights / weights.sum()

    def at(self, step: int, length: int) -> Tensor:
        """Those of a step, the same each time it is asked for: int64 [about BATCH_TOKENS / length, length]."""
        rng, rows = np.random.default_rng([self.seed, step]), []
        for _ in range(round(BATCH_TOKENS / length)):
            part = self.parts[rng.choice(list(self.parts), p=self.weights)]
            start = rng.integers(0, len(part) - length)
            rows.append(part[start : start + length])
        return torch.from_numpy(np.stack(rows).astype(np.int64))


def windows(tokens: NDArray[np.uint16], length: int, count: int | None = None) -> Iterator[Tensor]:
    """Consecutive windows, or `count` spread evenly: int64 [up to 8, length + 1] each."""
    available = (len(tokens) - 1) // length
    starts = np.linspace(0, len(tokens) - length - 1, min(count or available, available)).astype(int)
    if count is None:
        starts = np.arange(available) * length
    for i in range(0, len(starts), 8):
        rows = [tokens[s : s + length + 1] for s in starts[i : i + 8]]
        yield torch.from_numpy(np.stack(rows).astype(np.int64))
