"""The user's text: what is a document, which are held out, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from tokenizers import Tokenizer, models

from paceline.errors import InputError
from paceline_export.config import target_config
from paceline_export.distill.text import RandomWindows, read_documents, split, spread_windows, tokenise

TARGET = target_config(tiny.text_fields(), "target")


@pytest.mark.parametrize(
    ("name", "content", "documents"),
    [
        ("a.txt", "one\n\ntwo", ["one\n\ntwo"]),
        ("a.json", '["one", "two", " "]', ["one", "two"]),
        ("a.jsonl", '"one"\n\n{"text": "two", "id": 3}\n', ["one", "two"]),
    ],
)
def test_files_are_read_as_documents(name: str, content: str, documents: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert read_documents([tmp_path / name]) == documents


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"\xff\xfe", "a.txt cannot be read as text (.*); give UTF-8 text, .json or .jsonl files."),
        ("a.json", b'{"one": 1}', "a.json holds something else than texts; write a list of texts"),
        ("a.json", b"[", "a.json cannot be read as text"),
        ("a.jsonl", b'{"body": "x"}', "a.jsonl holds something else than texts; write a text or"),
        ("none.txt", None, "none.txt cannot be read as text"),
    ],
)
def test_other_files_are_refused(name: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words.replace("(.*)", r"\(.*\)")):
        read_documents([tmp_path / name])


def test_whole_documents_are_held_out() -> None:
    documents = [[index] * 500 for index in range(100)]
    texts = split(documents, 2, "the text")
    assert texts.whole
    assert not set(texts.training.tolist()) & set(texts.held_out.tolist())
    assert 2500 <= len(texts.held_out) <= 3000
    assert len(texts.training) + len(texts.held_out) == 50_000


def test_a_single_document_is_cut() -> None:
    texts = split([list(range(20_000))], None, "the text")
    assert not texts.whole
    assert sorted([*texts.training.tolist(), *texts.held_out.tolist()]) == list(range(20_000))


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([], "the text has 0 tokens; at least 8,192 are needed"),
        ([[5] * 100] * 20, "the text has 2,000 tokens; at least 8,192 are needed"),
        ([[5] * 10] * 10 + [[5] * 9000], r"the text has 9,100 tokens in 11 documents so long that \d+ are left to learn from"),
    ],
)
def test_too_little_text_is_refused(documents: list[list[int]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        split(documents, 2, "the text")


def test_documents_begin_and_end_as_the_target_knows_it() -> None:
    (ids,) = tokenise(tiny.tokenizer(), ["the train"], TARGET)
    assert (ids[0], ids[1] == 2, ids[-1]) == (2, False, 1)


def test_text_that_becomes_unknown_tokens_is_refused() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "train": 1, "Zug": 2}, unk_token="<unk>"))
    with pytest.raises(InputError, match=r"1 of 3 tokens of the text are <unk>, which the target cannot tell apart; allowed"):
        tokenise(words, ["étrange"], TARGET)


def test_a_tokenizer_with_more_tokens_than_the_target_is_refused() -> None:
    words = Tokenizer(models.WordLevel({"train": 600, "<unk>": 3}, unk_token="<unk>"))
    with pytest.raises(InputError, match=r"the tokenizer has a token 600 and the target 512 embeddings; give the tokenizer"):
        tokenise(words, ["train"], TARGET)


def test_a_step_has_the_same_windows_whenever_it_is_asked_for() -> None:
    texts = split([list(range(1000)) for _ in range(20)], 2, "the text")
    batches = RandomWindows(texts, 2048, seed=3)
    first = batches.at(5, 256)
    assert first.shape == (8, 256)
    assert first.equal(batches.at(5, 256))
    assert not first.equal(batches.at(6, 256))
    assert first[:, 0].tolist() == [2] * 8


def test_windows_are_spread_over_all_of_a_text() -> None:
    found = spread_windows(np.arange(1000, dtype=np.int32), 100, 4, None)
    assert found[:, 0].tolist() == [0, 300, 600, 900]
    assert spread_windows(np.arange(50, dtype=np.int32), 100, 4, None).shape == (1, 50)
