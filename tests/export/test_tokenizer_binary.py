"""tokenizer.bin is written for tokenizers of Gemma's kind; any other leaves the bundle without it, and a sentence says why."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from gemma_tokenizers import fixture_tokenizer
from tokenizers import Tokenizer, processors

from paceline.bundle import Bundle
from paceline.cli.main import main
from paceline.errors import InputError
from paceline_export.tokenizer import TOKENIZER_BINARY, tokenizer_binary

FIXTURE = Path(__file__).parents[1] / "data" / "tokenizer_v1.bin"
RAW: dict[str, Any] = json.loads(fixture_tokenizer().to_str())


def template(single: str) -> Any:
    """What is put around a text."""
    made = fixture_tokenizer()
    made.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<bos>", 1)])
    return json.loads(made.to_str())["post_processor"]


def binary(raw: dict[str, Any], folder: Path) -> bytes:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(raw), encoding="utf-8")
    return tokenizer_binary(file)


def changed(path: str, value: object) -> dict[str, Any]:
    """The fixture's tokenizer.json with one field changed, or removed where the value is None and the field optional."""
    raw = copy.deepcopy(RAW)
    *parents, name = path.split(".")
    section = raw
    for parent in parents:
        section = section[int(parent)] if isinstance(section, list) else section[parent]
    section[name] = value
    return raw


def test_the_literal_file_is_written_as_ever(tmp_path: Path) -> None:
    """Changing this fixture means a new version of the file."""
    assert binary(RAW, tmp_path) == FIXTURE.read_bytes()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("pre_tokenizer", None),
        ("post_processor", template("<bos> $A")),
        ("post_processor", template("$A")),
        ("truncation", {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}),
        ("model.merges", ["▁ a", "b a", "a b"]),
        ("model.fuse_unk", False),
        ("model.continuing_subword_prefix", ""),
    ],
)
def test_what_does_not_change_a_texts_tokens_does_not_change_the_file(path: str, value: object, tmp_path: Path) -> None:
    assert binary(changed(path, value), tmp_path) == FIXTURE.read_bytes()


REFUSALS = [
    ("normalizer", None, "normalizer is null", "'Replace'"),
    ("normalizer", {"type": "NFKC"}, "normalizer is {'type': 'NFKC'}", "'Replace'"),
    ("pre_tokenizer", {"type": "Whitespace"}, "pre_tokenizer is {'type': 'Whitespace'}", "null or {'type': 'Split'"),
    ("pre_tokenizer.pattern", {"String": "a"}, "'String': 'a'", "null or {'type': 'Split'"),
    ("decoder", {"type": "Fuse"}, "decoder is {'type': 'Fuse'}", "'ByteFallback'"),
    ("post_processor", {"type": "Sequence", "processors": []}, "post_processor.type is Sequence", "TemplateProcessing"),
    ("post_processor", template("$A <bos>"), "post_processor.single is [{'Sequence'", "[{'SpecialToken'"),
    ("model", {"type": "WordLevel", "vocab": {"<pad>": 0}, "unk_token": "<pad>"}, "model.type is WordLevel", "BPE"),
    ("model.dropout", 0.5, "model.dropout is 0.5", "null"),
    ("model.ignore_merges", True, "model.ignore_merges is true", "false"),
    ("model.byte_fallback", False, "model.byte_fallback is false", "true"),
    ("model.end_of_word_suffix", "</w>", "model.end_of_word_suffix is </w>", "null"),
    (
        "model.vocab",
        RAW["model"]["vocab"] | {"<0x7F>": 300},
        "model.vocab is '<0x80>' with 130 where 129 is next",
        "without gaps",
    ),
    (
        "model.vocab",
        {k.replace("<0x7F>", "x"): v for k, v in RAW["model"]["vocab"].items()},
        "without <0x7F>",
        "<0x00> to <0xFF>",
    ),
    ("model.vocab", RAW["model"]["vocab"] | {"long" * 20_000: 265}, "80,000 bytes of text at 265", "65,535 at most"),
    ("added_tokens.2.lstrip", True, "added_tokens.'<b>'.lstrip is true", "false"),
    ("added_tokens.3.rstrip", True, "added_tokens.'b b'.rstrip is true", "false"),
    ("added_tokens.4.single_word", True, "added_tokens.'<bo'.single_word is true", "false"),
    ("added_tokens.4.content", "<" * 256, f"added_tokens is '{'<' * 256}'", "up to 255 bytes"),
]


@pytest.mark.parametrize(("path", "value", "found", "allowed"), REFUSALS)
def test_another_kind_of_tokenizer_is_refused(path: str, value: object, found: str, allowed: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        binary(changed(path, value), tmp_path)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path / 'tokenizer.json'}: ")
    assert "\n" not in message
    assert found in message.partition("; paceline supports ")[0]
    assert allowed in message.partition("; paceline supports ")[2]


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read"):
        binary({"model": 7}, tmp_path)


def test_a_bundle_has_the_file(tiny_bundle: Path) -> None:
    assert TOKENIZER_BINARY in Bundle.read(tiny_bundle).manifest.files
    assert (tiny_bundle / TOKENIZER_BINARY).read_bytes() == tokenizer_binary(tiny_bundle / "tokenizer.json")


def test_an_export_without_the_file_says_so_and_is_a_bundle(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = shutil.copytree(tiny_pair[0], tmp_path / "target")
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    tokenizer.normalizer = None
    tokenizer.save(str(target / "tokenizer.json"))
    assert main(["export", str(target), "--drafter", str(tiny_pair[1]), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "note: the bundle has no tokenizer.bin, which apps need, while the command line does not: " in said
    assert f"{target / 'tokenizer.json'}: normalizer is null; paceline supports {{'type': 'Replace'" in said
    bundle = Bundle.read(tmp_path / "out")
    bundle.check_hashes()
    assert TOKENIZER_BINARY not in bundle.manifest.files
