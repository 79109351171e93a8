"""Tokenizers of Gemma's kind, and texts that are hard for them."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

FIXTURE = Path(__file__).parent / "data" / "tokenizer_v1.bin"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Code points: each range as likely as any other.
RANGES = [
    (0x00, 0x20), (0x20, 0x7F), (0x20, 0x7F), (0x20, 0x7F), (0x61, 0x7B), (0x7F, 0x100), (0x100, 0x250), (0x300, 0x370),
    (0x370, 0x400), (0x400, 0x500), (0x590, 0x600), (0x600, 0x700), (0x900, 0x980), (0xE00, 0xE80), (0x1100, 0x1200),
    (0x2000, 0x2070), (0x2500, 0x25A0), (0x3040, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xE000, 0xE100),
    (0xFB00, 0xFE10), (0xFE00, 0xFE10), (0xFFF0, 0x10000), (0x10000, 0x10100), (0x1F300, 0x1F700), (0x1F3FB, 0x1F400),
    (0x20000, 0x2A6E0), (0xE0000, 0xE0080), (0x10FF00, 0x110000),
]  # fmt: skip
PIECES = [
    "", " ", "  ", " " * 40, "\n", "\n\n\n", "\t\t", "\r\n", "\0", "▁", "▁▁ ▁", " ▁", "<0x0A>", "<0x0a>", "<0xE2><0x96>",
    "<|tur", "<|turn", "<|turn>", "<turn|>", "<|turn><|turn>", "<<|turn>>", "<bos>", "<b", "<bo", "<bos", "<eos><pad>",
    "<unk>", "<unused1>", "<unused12", "[multimodal]", "<h1", "<h1>", "</strong>", "<start_of_turn>user\n", "the", " the",
    "ing", "def f(x):\n    return x\n", "if (a<b>c) {", "0123456789", "3.14159", "naïve café", "cafe\u0301", "Ångström",
    "I\u0307", "ﬁ", "Здравствуй, мир", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดี", "你好，世界。", "こんにちは",
    "안녕하세요", "👩\u200d🚀", "👨\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "🇩🇪🇫🇷", "👍🏽", "\u202eabc\u202c", "\ufeff",
    "\ufffd", "\ufffe", "\U0001d54f", "\U000e0041", "a" * 30, "ab" * 15, "-" * 70, "=" * 33, "é" * 9,
]  # fmt: skip
BROKEN = [
    b"\x80", b"\xff", b"\xc0\x80", b"\xc3", b"\xe2\x96", b"\xe2\x28\xa1", b"\xed\xa0\x80", b"\xf0\x9f\x91",
    b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xe0\x80\xaf", b"\xf1\x80\x80\xe1\x80\xc2",
]  # fmt: skip


def fixture_tokenizer() -> Tokenizer:
    """That of tests/data/tokenizer_v1.bin: a few letters, and added tokens of every kind that is supported."""
    entries = ["<pad>", "<bos>", *BYTES, "▁", "a", "b", "é", "ab", "▁a", "ba"]
    merges = [("▁", "a"), ("b", "a"), ("a", "b")]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<pad>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([AddedToken(token, normalized=False) for token in ("<pad>", "<bos>")])
    made.add_tokens(
        [AddedToken("<b>", normalized=False), AddedToken("b b", normalized=True), AddedToken("<bo", normalized=False)]
    )
    return made


def hard_texts(tokenizer: Tokenizer, count: int, seed: int) -> list[bytes]:
    """The same texts every time; some are not valid UTF-8."""
    source = random.Random(seed)
    vocabulary = sorted(tokenizer.get_vocab())
    added = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values())
    code = Path(__file__).read_bytes()

    def piece() -> bytes:
        kind = source.randrange(9)
        if kind < 2:
            low, high = source.choice(RANGES)
            return "".join(chr(source.randrange(low, high)) for _ in range(source.randrange(1, 12))).encode()
        if kind == 2:
            return source.choice(added).encode()
        if kind == 3:
            token = source.choice(added).encode()
            return token[: source.randrange(len(token))]
        if kind < 6:
            return source.choice(PIECES).encode()
        if kind == 6:
            start = source.randrange(len(code))
            return code[start : start + source.randrange(60)]
        if kind == 7:
            return b" ".join(source.choice(vocabulary).encode() for _ in range(source.randrange(1, 5)))
        return source.choice([*BROKEN, source.randbytes(source.randrange(1, 9))])

    texts = [text.encode() for text in PIECES] + BROKEN + [bytes(range(256)), bytes(range(255, -1, -1))]
    texts += [bytes([byte]) for byte in range(256)]
    while len(texts) < count:
        texts.append(b"".join(piece() for _ in range(source.randrange(1, 12))))
    return texts


def long_texts() -> dict[str, str]:
    """A megabyte each."""
    source = random.Random(5)
    letters = "abcdefghijklmnopqrstuvwxyz"
    code = Path(__file__).read_text(encoding="utf-8")
    return {
        "code": code * (1_000_000 // len(code.encode())),
        "one letter": "a" * 1_000_000,
        "no spaces": "".join(source.choices(letters, k=1_000_000)),
        "spaces": " " * 1_000_000,
        "added tokens": "<bos><bo" * 125_000,
        "ideographs": "".join(chr(source.randrange(0x4E00, 0x9FFF)) for _ in range(333_000)),
    }
