"""The user's text as tokens: documents, some of them held out whole, and windows of both for training and measuring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel, WordPiece
from torch import Tensor

from paceline import reading
from paceline.errors import InputError
from paceline_export.config import TargetConfig

MOST_BYTES = 1 << 30  # of one file
FEW_DOCUMENTS, BLOCK = 10, 1024  # fewer documents are cut into blocks of so many tokens, which then count as documents
HELD_OUT_SHARE, LEAST_HELD_OUT = 0.05, 1024
LEAST_TOKENS = 8192
MOST_UNKNOWN = 0.01  # share of tokens
Ids = NDArray[np.int32]


class Batches(Protocol):
    """Training sequences."""

    def at(self, step: int, length: int) -> Tensor:
        """Those of a step, the same each time it is asked for: int64 [B, length]."""


@dataclass(frozen=True)
class Texts:
    """Tokens of all documents in a row, each with <bos> in front and <eos> behind where the target has them.

    Attributes:
        training, held_out: no document has tokens in both.
        whole: whether the held-out ones are whole documents, and not blocks of some that are learned from.
        bos_id: the first token of every window.
    """

    training: Ids
    held_out: Ids
    whole: bool
    bos_id: int | None


def read_documents(files: Sequence[Path]) -> list[str]:
    """The documents of text files: a .json file has a list of texts, a .jsonl file in each line a text or an object with
    the field `text`; any other file is one document.

    Raises:
        InputError: a file cannot be read, or has something else in it.
    """
    return [document for file in files for document in _documents(file) if document.strip()]


def _documents(file: Path) -> list[str]:
    try:
        text = reading.read_bytes(file, MOST_BYTES).decode()
        if file.suffix == ".json":
            found = reading.parse_json(text)
        elif file.suffix == ".jsonl":
            found = [_field(reading.parse_json(line)) for line in text.splitlines() if line.strip()]
        else:
            found = [text]
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as text ({error}); give UTF-8 text, .json or .jsonl files.") from None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        wanted = 'a list of texts as in ["one", "two"]' if file.suffix == ".json" else 'a text or {"text": ".."} in each line'
        raise InputError(f"{file} holds something else than texts; write {wanted}.")
    return found


def _field(value: Any) -> Any:
    return value.get("text") if isinstance(value, dict) else value


def tokenise(tokenizer: Tokenizer, documents: Sequence[str], config: TargetConfig) -> list[list[int]]:
    """The tokens of documents, <bos> in front and <eos> behind.

    Raises:
        InputError: the tokenizer knows too little of the text, or has tokens that the target has not.
    """
    ends = list(config.eos_ids[:1])
    starts = [] if config.bos_id is None else [config.bos_id]
    found = []
    for encoding in tokenizer.encode_batch(list(documents)):
        ids = encoding.ids[1:] if encoding.ids[:1] == starts else encoding.ids
        found.append([*starts, *ids, *ends])
    highest = max((max(ids) for ids in found if ids), default=0)
    if highest >= config.vocab_size:
        raise InputError(
            f"the tokenizer has a token {highest} and the target {config.vocab_size} embeddings; "
            "give the tokenizer.json that came with the target."
        )
    count = sum(map(len, found))
    unknown_id = tokenizer.token_to_id(unknown) if (unknown := _unknown(tokenizer)) else None
    unknown_count = sum(ids.count(unknown_id) for ids in found) if unknown_id is not None else 0
    if unknown_count > MOST_UNKNOWN * count:
        raise InputError(
            f"{unknown_count:,} of {count:,} tokens of the text are {unknown}, which the target cannot tell apart; allowed is "
            f"one in {1 / MOST_UNKNOWN:.0f}: give text in the languages and characters of its tokenizer."
        )
    return found


def _unknown(tokenizer: Tokenizer) -> str | None:
    model = tokenizer.model
    return model.unk_token if isinstance(model, BPE | WordLevel | WordPiece) else None


def split(documents: Sequence[Sequence[int]], bos_id: int | None, what: str) -> Texts:
    """Holds some documents out.

    Args:
        what: names the text in messages.

    Raises:
        InputError: there is too little text.
    """
    count = sum(map(len, documents))
    if count < LEAST_TOKENS:
        raise InputError(
            f"{what} has {count:,} tokens; at least {LEAST_TOKENS:,} are needed, and some hundred thousand are good: "
            "give more of it."
        )
    whole = len(documents) >= FEW_DOCUMENTS
    pieces = documents if whole else [block for document in documents for block in _blocks(document)]
    wanted, held, kept = max(LEAST_HELD_OUT, HELD_OUT_SHARE * count), list[int](), list[int]()
    for index in np.random.default_rng(0).permutation(len(pieces)).tolist():
        (held if len(held) < wanted else kept).extend(pieces[index])
    if len(kept) < LEAST_TOKENS // 2:
        raise InputError(
            f"{what} has {count:,} tokens in {len(documents):,} documents so long that {len(kept):,} are left to learn from; "
            f"at least {LEAST_TOKENS // 2:,} are needed: give more documents."
        )
    return Texts(np.array(kept, np.int32), np.array(held, np.int32), whole, bos_id)


def _blocks(document: Sequence[int]) -> Iterable[Sequence[int]]:
    return (document[start : start + BLOCK] for start in range(0, len(document), BLOCK))


@dataclass(frozen=True)
class RandomWindows:
    """`Batches` of windows that begin anywhere in the training text.

    Attributes:
        tokens: of a batch, whatever the windows' length.
    """

    texts: Texts
    tokens: int
    seed: int

    def at(self, step: int, length: int) -> Tensor:
        """See `Batches`."""
        rng = np.random.default_rng([self.seed, step])
        length = min(length, len(self.texts.training))
        starts = rng.integers(0, len(self.texts.training) - length + 1, size=max(1, self.tokens // length))
        return windows(self.texts.training, starts, length, self.texts.bos_id)


def spread_windows(tokens: Ids, length: int, most: int, bos_id: int | None) -> Tensor:
    """Up to `most` windows spread evenly over a text: int64 [B, length]."""
    length = min(length, len(tokens))
    count = min(most, len(tokens) // length)
    return windows(tokens, np.linspace(0, len(tokens) - length, count).astype(np.int64), length, bos_id)


def windows(tokens: NDArray[Any], starts: NDArray[np.int64], length: int, bos_id: int | None) -> Tensor:
    """Windows from some starts, int64 [B, length]; their first token becomes <bos>, without which Gemma writes nonsense."""
    rows = torch.from_numpy(np.stack([tokens[start : start + length] for start in starts]).astype(np.int64))
    if bos_id is not None:
        rows[:, 0] = bos_id
    return rows
