"""`paceline chat`: what it prints where, its commands, and Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import refused, script

import paceline
from paceline.chat import Chat
from paceline.cli.main import main
from paceline.sampling import Sampling
from paceline.target import Target

QUESTIONS = [
    "Return the number of items in the queue.",
    "Open the file and return its first line.",
    "Sort the list of names and print each one.",
]


def turn(chat: Chat, text: str) -> None:
    list(chat.send(text, max_new_tokens=12, draft_length=3))


def talk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bundle: Path, lines: Sequence[str], *options: str
) -> tuple[list[str], str]:
    """What `paceline chat` writes to stdout, by line, and to stderr, when `lines` are piped in."""
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
    assert main(["chat", str(bundle), "--threads", "1", "--max-new-tokens", "12", "--draft", "3", *options]) == 0
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err


def test_a_piped_conversation(
    small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, other = tmp_path / "chat.json", tmp_path / "other.json"
    lines = [QUESTIONS[0], "", QUESTIONS[1], "/stats", f"/save {saved}", "/help", f"/save {saved}", "/save", "/nonsense"]
    lines += ["/reset", " /etc", f"/save {other}", "/quit", QUESTIONS[2]]
    _, err = talk(monkeypatch, capsys, small_bundle, lines, "--system", "Be brief.")
    messages = json.loads(saved.read_text())
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert [m["content"] for m in messages[1::2]] == QUESTIONS[:2]
    model = paceline.load(small_bundle, threads=1)
    with Chat(model, "Be brief.") as chat:
        for question in QUESTIONS[:2]:
            turn(chat, question)
        assert chat.messages == messages
    assert [m["content"] for m in json.loads(other.read_text())[:2]] == ["Be brief.", " /etc"]
    for said in ("all 2 answers: ", "5 messages are in", "/reset      start", f"{saved} exists and is kept as it is"):
        assert said in err
    for said in (
        "/save needs the name",
        "'/nonsense' is no command; /help",
        "A new conversation.",
        "--max-new-tokens, or because",
    ):
        assert said in err


def test_answers_are_all_of_stdout(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = talk(monkeypatch, capsys, small_bundle, [QUESTIONS[0], "/stats", "/help"])
    model = paceline.load(small_bundle, threads=1)
    with Chat(model) as chat:
        turn(chat, QUESTIONS[0])
        assert "\n".join(out) == chat.messages[-1]["content"]


def test_thoughts_go_to_stderr(small_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[bool] = []
    send = Chat.send

    def thinking(chat: Chat, text: str, **given: Any) -> Iterator[paceline.Piece]:
        sent.append(chat.variables["enable_thinking"])
        for index, piece in enumerate(send(chat, text, **given)):
            yield replace(piece, thought=index < 4)

    out, _ = talk(monkeypatch, capsys, small_bundle, [QUESTIONS[0]])
    monkeypatch.setattr(Chat, "send", thinking)
    answer, thought = talk(monkeypatch, capsys, small_bundle, [QUESTIONS[0]], "--think")
    assert 0 < len(answer[0]) < len(out[0])
    assert thought.partition("(the answer ends")[0] + answer[0] == out[0]
    assert sent == [True]


def test_a_full_cache_is_said_and_the_session_goes_on(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [QUESTIONS[0], "word " * 90, "/reset", QUESTIONS[0]]
    out, err = talk(monkeypatch, capsys, small_bundle, lines, "--capacity", "90")
    assert "the KV cache 90 rows; start a new one with /reset" in err
    assert out[: len(out) // 2] == out[len(out) // 2 :]


@pytest.mark.parametrize("options", [["--top-k", "5"], ["--temperature", "0.9", "--seed", "3"], []])
def test_sampling_options_and_the_checkpoints_own(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """An option changes what it names, and leaves the rest of the checkpoint's own."""
    own, used = Sampling(temperature=0.7, seed=1), []
    send = Chat.send

    def watched(chat: Chat, text: str, **given: Any) -> Iterator[paceline.Piece]:
        used.append(given["sampling"])
        return send(chat, text, **given)

    monkeypatch.setattr("paceline.model.checkpoint_sampling", lambda _: own)
    monkeypatch.setattr(Chat, "send", watched)
    talk(monkeypatch, capsys, small_bundle, [QUESTIONS[0]], *options)
    changed = {
        name.removeprefix("--").replace("-", "_"): json.loads(value)
        for name, value in zip(options[::2], options[1::2], strict=True)
    }
    assert used == [replace(own, **changed)]


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_stops_the_answer_and_keeps_the_session(
    small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], presses: int
) -> None:
    """The signal really comes, while the third token is on its way."""
    verify, calls = Target.verify, []

    def pressing(target: Target, tokens: Sequence[int], paths: Any = ()) -> Any:
        calls.append(tokens)
        if len(calls) == 3:
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)
        return verify(target, tokens, paths)

    monkeypatch.setattr(Target, "verify", pressing)
    saved, before = tmp_path / "chat.json", signal.getsignal(signal.SIGINT)
    _, err = talk(monkeypatch, capsys, small_bundle, [QUESTIONS[0], QUESTIONS[1], f"/save {saved}"], "--draft", "off")
    assert signal.getsignal(signal.SIGINT) is before
    assert err.count("(stopped)") == 1
    first, second = (m["content"] for m in json.loads(saved.read_text())[1::2])
    assert 0 < len(first) < len(second)


def test_a_bundle_without_a_template_is_refused(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.chat_template.CHAT_TEMPLATE", "absent.jinja")
    assert "has no absent.jinja, which a chat needs" in refused(["chat", str(small_bundle), "--threads", "1"], capsys)


def test_the_command_has_help() -> None:
    done = script("chat", "--help")
    assert done.returncode == 0
    assert "--system TEXT" in done.stdout
