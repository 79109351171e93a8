"""tokenizer.bin: a checkpoint's tokenizer as the C++ core maps it. BUNDLE.md specifies the file."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.text import load_tokenizer
from paceline_export.fields import Fields

TOKENIZER_BINARY = "tokenizer.bin"
MAGIC, VERSION = b"PLTK", 1
SPECIAL, BYTE = 1, 2  # a token's flags
MOST_TEXT, MOST_ADDED = 65_535, 255  # bytes of a token and of an added one
# What `tokenizers` decodes as a byte: its ByteFallback parses two places as Rust does, which allows a sign.
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")

SPACE, VISIBLE_SPACE = " ", "▁"
NORMALIZER = {"type": "Replace", "pattern": {"String": SPACE}, "content": VISIBLE_SPACE}
# Finds nothing, because the normalizer leaves no space.
SPLIT = {"type": "Split", "pattern": {"String": SPACE}, "behavior": "MergedWithPrevious", "invert": False}
DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": VISIBLE_SPACE}, "content": SPACE},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
BOS = {"SpecialToken": {"id": "<bos>", "type_id": 0}}  # a reader puts it there, as the manifest says

Words = NDArray[np.uint32]


def tokenizer_binary(file: Path) -> bytes:
    """The content of tokenizer.bin.

    Args:
        file: a tokenizer.json.

    Raises:
        InputError: it is of another kind than Gemma's.
    """
    tokenizer = load_tokenizer(file.parent)
    # As the library writes it: every field is there, merges are pairs by rank, and added tokens have the ids that it uses.
    fields = Fields(json.loads(tokenizer.to_str()), str(file))
    _check_pipeline(fields)
    model = fields.raw["model"]
    added = {token["content"]: token for token in fields.raw["added_tokens"]}
    vocabulary = model["vocab"] | {content: token["id"] for content, token in added.items()}
    texts = _texts(vocabulary, fields)
    # Asked of the library, which looks specials up by text.
    special = {token["id"] for token in added.values() if not tokenizer.decode([token["id"]])}
    encoded = [text.encode() for text in texts]
    raw = [(token["content"].encode(), token["id"]) for token in added.values() if not token["normalized"]]
    normalized = [
        (token["content"].replace(SPACE, VISIBLE_SPACE).encode(), token["id"])
        for token in added.values()
        if token["normalized"]
    ]
    first, merges = _merges(model["merges"], vocabulary, len(texts))
    patterns = [*sorted(raw), *sorted(normalized)]
    pool = _Pool(encoded)
    sections = [
        np.array([vocabulary[f"<0x{byte:02X}>"] for byte in range(256)]),
        _tokens(texts, encoded, special),
        np.array(sorted(range(len(encoded)), key=encoded.__getitem__)),
        first,
        merges,
        np.array([(pool.place(text), len(text), token) for text, token in patterns]),
    ]
    header = np.array([VERSION, len(texts), len(merges), len(raw), len(normalized), len(pool.content)])
    words = b"".join(section.astype("<u4").tobytes() for section in (header, *sections))
    return MAGIC + words + bytes(pool.content)


class _Pool:
    """The bytes of all texts: those of the tokens one behind the other, then patterns that are no token's text."""

    def __init__(self, texts: list[bytes]):
        self.content = bytearray(b"".join(texts))
        starts = accumulate((len(text) for text in texts), initial=0)
        self.places = dict(zip(texts, starts, strict=False))

    def place(self, text: bytes) -> int:
        """Where a text lies; it is put behind the others where it does not lie anywhere."""
        if text not in self.places:
            self.places[text] = len(self.content)
            self.content += text
        return self.places[text]


def _check_pipeline(fields: Fields) -> None:
    """Refuses what the core does otherwise. Truncation and padding are for batches, and not in the file."""
    fields.allow("normalizer", NORMALIZER)
    fields.allow("pre_tokenizer", None, SPLIT)
    fields.allow("decoder", DECODER)
    if fields.raw["post_processor"]:
        around = fields.section("post_processor")
        around.allow("type", "TemplateProcessing")
        around.allow("single", [BOS, TEXT], [TEXT])
    model = fields.section("model")
    model.allow("type", "BPE")
    model.allow("dropout", None)
    model.allow("continuing_subword_prefix", None, "")
    model.allow("end_of_word_suffix", None, "")
    model.allow("ignore_merges", False)
    # With all bytes in the vocabulary nothing is unknown: unk_token and fuse_unk do not matter.
    model.allow("byte_fallback", True)
    for byte in range(256):
        if f"<0x{byte:02X}>" not in model.raw["vocab"]:
            raise model.refusal("vocab", f"without <0x{byte:02X}>", "<0x00> to <0xFF> in it")
    for token in fields.raw["added_tokens"]:
        for flag in ("lstrip", "rstrip", "single_word"):
            Fields(token, fields.where, f"added_tokens.{token['content']!r}.").allow(flag, False)
        if len(token["content"].encode()) > MOST_ADDED:
            raise fields.refusal("added_tokens", repr(token["content"]), f"up to {MOST_ADDED} bytes in one")


def _texts(vocabulary: dict[str, int], fields: Fields) -> list[str]:
    """The text of each token."""
    texts = sorted(vocabulary, key=vocabulary.__getitem__)
    for index, text in enumerate(texts):
        if vocabulary[text] != index:
            raise fields.refusal("model.vocab", f"{text!r} with {vocabulary[text]} where {index} is next", "ids without gaps")
        if len(text.encode()) > MOST_TEXT:
            raise fields.refusal("model.vocab", f"{len(text.encode()):,} bytes of text at {index}", f"{MOST_TEXT:,} at most")
    return texts


def _tokens(texts: list[str], encoded: list[bytes], special: set[int]) -> Words:
    """[N, 2]: where each token's text lies; its length, its flags and the byte that it stands for."""
    lengths = np.array([len(text) for text in encoded], np.uint32)
    words = np.stack([np.cumsum(lengths) - lengths, lengths], axis=1).astype(np.uint32)
    for token in special:
        words[token, 1] |= SPECIAL << 16
    for token, text in enumerate(texts):
        if match := BYTE_TOKEN.fullmatch(text):
            words[token, 1] |= BYTE << 16 | int(match[1], 16) << 24
    return words


def _merges(pairs: list[Any], vocabulary: dict[str, int], size: int) -> tuple[Words, Words]:
    """[N + 1]: where the merges of each left token begin; [M, 3]: right token, rank and result, by left and right token."""
    tokens = (vocabulary[text] for left, right in pairs for text in (left, right, left + right))
    table = np.fromiter(tokens, np.uint32, 3 * len(pairs)).reshape(-1, 3)
    order = np.lexsort((table[:, 1], table[:, 0]))
    left, right, result = table[order].T
    first = np.searchsorted(left, np.arange(size + 1)).astype(np.uint32)
    return first, np.stack([right, order.astype(np.uint32), result], axis=1)
