"""Google's own runtime as a judge: LiteRT-LM runs our .litertlm, and writes what paceline writes, with and without drafting."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import refused
from litert_lm_builder import litertlm_peek
from small_pair import DRAFTER, PROMPTS, TARGET

import paceline
from paceline.bundle import Bundle
from paceline.cli.main import main
from paceline_export.bundle import export
from paceline_export.card import PACKED
from paceline_export.litertlm import pack
from paceline_export.lower.litertlm_signatures import LiteRtLmProfile
from paceline_export.recipes import DEFAULT_RECIPE, F32

CONTEXT, DRAFTS = 512, 3
LONG = "\n".join(PROMPTS)  # more tokens than a prefill call has rows, and than three windows
ASKED = [*PROMPTS[:4], LONG]
TURNS = ["Close the file.", "Print the name.", "Return the value of the key."]  # which it answers in a few lines
# In a process of its own: the runtime says on stderr how often the drafter was right.
SCRIPT = """
import json, sys, litert_lm
file, cache, speculative, prompts, turns = json.loads(sys.argv[1])
engine = litert_lm.Engine(file, litert_lm.Backend.CPU(thread_count=1), cache_dir=cache, enable_speculative_decoding=speculative)
texts = []
for prompt in prompts:
    with engine.create_session() as session:
        session.run_prefill([prompt])
        texts.append(session.run_decode().texts[0])
answers = []
if turns:
    with engine.create_conversation() as conversation:
        for turn in turns:
            answers.append("".join(part["text"] for part in conversation.send_message(turn, max_output_tokens=48)["content"]))
print(json.dumps([texts, answers]))
"""


@dataclass
class Ran:
    texts: list[str]
    answers: list[str]
    success: float | None  # share of drafts that were accepted


def google(file: Path, cache: Path, speculative: bool, prompts: list[str], turns: list[str]) -> Ran:
    arguments = json.dumps([str(file), str(cache), speculative, prompts, turns])
    done = subprocess.run([sys.executable, "-c", SCRIPT, arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    texts, answers = json.loads(done.stdout.splitlines()[-1])
    found = re.findall(r"MTP Drafter - Success rate: ([\d.]+)", done.stderr)
    return Ran(texts, answers, float(found[-1]) if found else None)


@pytest.fixture(scope="module", params=[F32, DEFAULT_RECIPE], ids=lambda recipe: recipe.name)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("litertlm") / "bundle"
    export(TARGET, DRAFTER, out, lambda *_: None, recipe=request.param)
    return out


def packed(bundle: Path, out: Path) -> Path:
    pack(Bundle.open(bundle), out, LiteRtLmProfile(CONTEXT, DRAFTS), lambda *_: None)
    return out


def assert_same(one: str, other: str) -> None:
    """But for some tokens where the context is full: speculative decoding writes a whole round, and we the last row, too."""
    shorter, longer = sorted((one, other), key=len)
    assert longer.startswith(shorter)
    assert len(longer) - len(shorter) < 40


def test_google_writes_what_we_write(bundle: Path, tmp_path: Path) -> None:
    """Greedy texts up to the end of the context, several turns, with speculative decoding and without."""
    file = packed(bundle, tmp_path / "pair.litertlm")
    plain, drafted = (google(file, tmp_path, speculative, ASKED, TURNS) for speculative in (False, True))
    for one, other in zip(plain.texts, drafted.texts, strict=True):
        assert_same(one, other)
    assert plain.answers == drafted.answers
    assert plain.success is None
    model = paceline.load(bundle, threads=1, capacity=CONTEXT)
    accepted = proposed = 0
    for prompt, theirs in zip(ASKED, plain.texts, strict=True):
        pieces = list(model.generate(prompt, draft_length=DRAFTS))
        ours = "".join(piece.text for piece in pieces)
        assert_same(ours, theirs)
        stats = pieces[-1].stats
        assert stats is not None
        accepted, proposed = accepted + stats.accepted, proposed + stats.drafted
    assert drafted.success is not None
    assert abs(drafted.success - accepted / proposed) < 0.05
    with paceline.Chat(model) as chat:
        for turn, theirs in zip(TURNS, plain.answers, strict=True):
            ours = "".join(piece.text for piece in chat.send(turn, draft_length=DRAFTS, max_new_tokens=48))
            assert ours == theirs


def test_the_same_bundle_gives_the_same_bytes_and_pack_is_export(small_bundle: Path, tmp_path: Path) -> None:
    one, two = (packed(small_bundle, tmp_path / name) for name in ("one.litertlm", "two.litertlm"))
    assert one.read_bytes() == two.read_bytes()
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["one.litertlm", "two.litertlm"]
    export(TARGET, DRAFTER, tmp_path / "bundle", lambda *_: None, ("litertlm",), F32)
    pack(Bundle.open(small_bundle), tmp_path / "three.litertlm", LiteRtLmProfile(), lambda *_: None)
    assert (tmp_path / "bundle" / PACKED).read_bytes() == (tmp_path / "three.litertlm").read_bytes()
    assert PACKED in Bundle.open(tmp_path / "bundle").manifest.files


def test_the_file_says_what_the_runtime_asks_for(small_bundle: Path, tmp_path: Path) -> None:
    file, shown = packed(small_bundle, tmp_path / "pair.litertlm"), tmp_path / "shown"
    with open(shown, "w") as stream:
        litertlm_peek.peek_litertlm_file(str(file), None, stream)
    text = shown.read_text()
    for part in (
        "tf_lite_prefill_decode",
        "tf_lite_embedder",
        "tf_lite_per_layer_embedder",
        "tf_lite_mtp_drafter",
        "1970-01-01",
    ):
        assert part in text


def test_the_command_packs_and_refuses(small_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pair.litertlm"
    assert main(["pack", str(small_bundle), "-o", str(out), "--context", "256", "--draft-length", "2"]) == 0
    assert f"{out}: " in capsys.readouterr().out
    assert "exists already; choose another name with -o" in refused(["pack", str(small_bundle), "-o", str(out)], capsys)
    other = str(tmp_path / "other.litertlm")
    for option, said in (("--context", "this model allows 1 to"), ("--draft-length", "allowed are 1 to 7")):
        assert said in refused(["pack", str(small_bundle), "-o", other, option, "0"], capsys)
    onnx = tmp_path / "onnx"
    export(TARGET, DRAFTER, onnx, lambda *_: None, ("onnx",), F32)
    assert "has no TFLite graphs to take the weights from" in refused(["pack", str(onnx), "-o", other], capsys)
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["onnx", "pair.litertlm"]
