"""Conversations: every answer is a fresh sequence's, a turn computes only what is new, and the command around it."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from command import refused, script

import paceline
from paceline.backends import BACKENDS
from paceline.chat import Chat, add, common
from paceline.chat_template import ChatTemplate
from paceline.cli.main import main
from paceline.errors import CapacityError, InputError
from paceline.ngram import Lookup
from paceline.sampling import GREEDY, Sampling
from paceline.stats import SourceStats, Stats
from paceline.target import Target

CAPACITY = 640
QUESTIONS = [
    "Return the number of items in the queue.",
    "Open the file and return its first line.",
    "Sort the list of names and print each one.",
]


@pytest.fixture(scope="module", params=BACKENDS)
def model(request: pytest.FixtureRequest, small_bundle: Path) -> paceline.Model:
    return paceline.load(small_bundle, backend=request.param, threads=1, capacity=CAPACITY)


@pytest.fixture(scope="module")
def template(model: paceline.Model, small_bundle: Path) -> ChatTemplate:
    return ChatTemplate.load(small_bundle, model.manifest, model.tokenizer)


@pytest.fixture
def chat(model: paceline.Model, template: ChatTemplate) -> Iterator[Chat]:
    with Chat(model, template, "You write Python.") as chat:
        yield chat


class Rows(list[int]):
    """The tokens that the target was given, drafts left out."""

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> Rows:
        prefill, verify = Target.prefill, Target.verify

        def prefilled(target: Target, tokens: Sequence[int]) -> None:
            self.extend(tokens)
            prefill(target, tokens)

        def verified(target: Target, tokens: Sequence[int]) -> Any:
            self.append(tokens[0])
            return verify(target, tokens)

        monkeypatch.setattr(Target, "prefill", prefilled)
        monkeypatch.setattr(Target, "verify", verified)
        return self


def prompt_of(chat: Chat, text: str) -> list[int]:
    return chat.model.encode(chat.template.render([*chat.messages, {"role": "user", "content": text}]))


def prompt_of_last(chat: Chat) -> list[int]:
    return chat.model.encode(chat.template.render(chat.messages[:-1]))


def turn(chat: Chat, text: str, fresh: bool = True, count: int = 40, draft: int = 3) -> list[paceline.Piece]:
    """One whole turn, compared with a fresh sequence on the same tokens."""
    tokens = prompt_of(chat, text)
    pieces = list(chat.send(text, max_new_tokens=count, draft_length=draft))
    if fresh:
        alone = list(chat.model.generate(tokens, max_new_tokens=count, draft_length=draft))
        assert [p.token for p in pieces] == [p.token for p in alone]
        assert "".join(p.text for p in pieces) == "".join(p.text for p in alone) == chat.messages[-1]["content"]
    return pieces


@pytest.mark.parametrize("draft", [0, 3])
def test_every_turn_is_a_fresh_sequences_text(chat: Chat, draft: int) -> None:
    for question in QUESTIONS:
        turn(chat, question, draft=draft)
    assert [m["role"] for m in chat.messages] == ["system", *["user", "assistant"] * 3]
    assert [m["content"] for m in chat.messages[1::2]] == QUESTIONS
    assert chat.turns == 3


def test_a_turn_computes_only_what_is_new(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prompt_of(chat, QUESTIONS[0])
    answer = turn(chat, QUESTIONS[0], fresh=False)
    held = [*first, *[p.token for p in answer[:-1]]]  # of the newest token there is no row
    second = prompt_of(chat, QUESTIONS[1])
    shared = common(held, second)
    assert shared >= len(first)
    rows = Rows().watch(monkeypatch)
    pieces = list(chat.send(QUESTIONS[1], max_new_tokens=1, draft_length=0))
    assert rows == second[shared:]
    assert pieces[-1].stats
    assert pieces[-1].stats.prompt_tokens == len(second) - shared < len(second) // 2


def test_a_checkpoint_that_samples_is_sampled_and_options_go_first(
    model: paceline.Model, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Sampling(temperature=1.0, seed=5)
    monkeypatch.setattr(model, "sampling", own)
    with Chat(model, template) as chat:
        tokens = prompt_of(chat, QUESTIONS[0])
        for options, sampling in (({}, own), ({"sampling": GREEDY}, GREEDY), ({"sampling": own}, own)):
            sent = list(chat.send(QUESTIONS[0], max_new_tokens=24, draft_length=2, **options))
            alone = list(model.generate(tokens, max_new_tokens=24, draft_length=2, sampling=sampling))
            assert [p.token for p in sent] == [p.token for p in alone]
            chat.reset()


def test_penalties_and_lookup_are_of_all_the_text(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the tokens alone that a turn computes."""
    penalised = Sampling(repetition_penalty=1.6)
    turn(chat, QUESTIONS[0], fresh=False)
    looked_in: list[list[int]] = []
    monkeypatch.setattr("paceline.chat.Lookup", lambda tokens: looked_in.append(list(tokens)) or Lookup(tokens))
    tokens = prompt_of(chat, QUESTIONS[0])
    sent = list(chat.send(QUESTIONS[0], max_new_tokens=40, draft_length=3, sampling=penalised))
    alone = list(chat.model.generate(tokens, max_new_tokens=40, draft_length=3, sampling=penalised))
    assert [p.token for p in sent] == [p.token for p in alone]
    assert looked_in == [tokens]


@pytest.mark.parametrize("seen", [1, 2, 7, 19])
def test_an_answer_left_early_is_the_answer_and_the_next_turn_goes_on(chat: Chat, seen: int) -> None:
    turn(chat, QUESTIONS[0])
    answer = chat.send(QUESTIONS[1], max_new_tokens=40, draft_length=7)
    shown = "".join(next(answer).text for _ in range(seen))
    assert chat.messages[-2:] == [{"role": "user", "content": QUESTIONS[1]}, {"role": "assistant", "content": shown}]
    if seen % 2:
        answer.close()  # otherwise the next turn does it
    turn(chat, QUESTIONS[2])
    assert next(answer, None) is None
    assert chat.messages[-3] == {"role": "assistant", "content": shown}
    assert chat.turns == 3


def test_a_cancelled_answer_is_kept(chat: Chat) -> None:
    cancel, shown = Event(), ""
    for piece in chat.send(QUESTIONS[0], draft_length=3, cancel=cancel):
        shown += piece.text
        if len(shown) > 10:
            cancel.set()
    assert piece.finish_reason is paceline.FinishReason.CANCELLED
    assert chat.messages[-1]["content"] == shown
    turn(chat, QUESTIONS[1])


@pytest.mark.parametrize("where", ["prefill", "verify"])
def test_an_interrupt_inside_a_call_loses_rows_but_not_the_session(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    turn(chat, QUESTIONS[0])
    before = chat.messages

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Target, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(chat.send(QUESTIONS[1], draft_length=3))
    assert chat.messages == before
    pieces = turn(chat, QUESTIONS[1])
    assert pieces[-1].stats
    assert pieces[-1].stats.prompt_tokens == len(prompt_of_last(chat))


def test_a_new_conversation_keeps_what_it_shares(chat: Chat) -> None:
    turn(chat, QUESTIONS[0])
    chat.reset()
    assert chat.messages == [{"role": "system", "content": "You write Python."}]
    pieces = turn(chat, QUESTIONS[1])
    assert pieces[-1].stats
    assert pieces[-1].stats.prompt_tokens < len(prompt_of_last(chat))
    again = chat.model.encode(chat.template.render(chat.messages[:-1]))
    chat.reset()
    pieces = turn(chat, QUESTIONS[1])  # all of it is known, and its last token is computed for its logits
    assert chat.model.encode(chat.template.render(chat.messages[:-1])) == again
    assert pieces[-1].stats
    assert pieces[-1].stats.prompt_tokens == 1


def test_where_local_caches_have_lost_rows_all_is_computed_anew(chat: Chat) -> None:
    """The window is 64 rows and a local cache has 256."""
    turn(chat, " ".join(QUESTIONS * 12), count=48)
    assert chat._sequence
    assert chat._sequence[0].cache.local_start > 0
    turn(chat, QUESTIONS[1])  # goes on, as the rows that it needs are there
    assert chat.last_stats
    assert chat.last_stats.prompt_tokens < 64
    chat.reset()
    turn(chat, QUESTIONS[2])
    assert chat.last_stats.prompt_tokens == len(prompt_of_last(chat))
    turn(chat, QUESTIONS[0])


@pytest.mark.parametrize("seed", range(2))
def test_any_course_of_turns_gives_fresh_texts(model: paceline.Model, seed: int) -> None:
    """Answers of odd tokens, cut anywhere, under a template that changes old turns, so that any number of rows is kept."""
    source = "{% for m in messages %}{{ m.content[: (40 if loop.last else 9 + messages | length)] }}|{% endfor %}"
    random = np.random.default_rng(seed)
    with Chat(model, ChatTemplate(source, {})) as chat:
        for _ in range(6):
            text = "".join(chr(c) for c in random.integers(32, 1000, 30))
            if random.random() < 0.2:
                chat.reset()
            if random.random() < 0.5:
                answer = chat.send(text, max_new_tokens=24, draft_length=int(random.integers(0, 8)))
                for _ in range(random.integers(0, 12)):
                    next(answer, None)
            else:
                turn(chat, text, count=12, draft=int(random.integers(0, 8)))


def test_a_conversation_that_no_longer_fits_is_refused_and_stays_usable(chat: Chat) -> None:
    turn(chat, QUESTIONS[0])
    before = chat.messages
    with pytest.raises(CapacityError, match=rf"has \d+ tokens .* {CAPACITY} rows; start a new one with /reset, or load"):
        chat.send("word " * CAPACITY)
    assert chat.messages == before
    turn(chat, QUESTIONS[1])


def test_refused_options_change_nothing(chat: Chat) -> None:
    with pytest.raises(InputError, match="draft length is 9"):
        chat.send("x", draft_length=9)
    assert len(chat.messages) == 1
    assert chat.turns == 0


def test_the_sequence_goes_back_to_the_model(model: paceline.Model, template: ChatTemplate) -> None:
    before = len(model._idle)
    with Chat(model, template) as chat:
        turn(chat, QUESTIONS[0], fresh=False)
        idle = len(model._idle)
    assert len(model._idle) == idle + 1 >= before
    turn(chat, QUESTIONS[1])  # takes another
    chat.close()
    chat.close()


def test_statistics_are_of_the_turn_and_of_all(chat: Chat) -> None:
    for question in QUESTIONS[:2]:
        turn(chat, question, fresh=False, count=12)
    assert chat.stats.emitted == 24
    assert chat.last_stats
    assert chat.stats.prompt_tokens > chat.last_stats.prompt_tokens
    next(chat.send(QUESTIONS[2], draft_length=0))
    chat.reset()
    assert chat.last_stats
    assert (chat.last_stats.emitted, chat.stats.emitted, chat.turns) == (1, 25, 3)
    total = Stats(prompt_tokens=1, accepted_at=[1], drafted_at=[2], sources={"drafter": SourceStats(1, 2, 1)})
    add(total, Stats(prompt_tokens=2, accepted_at=[1, 1], drafted_at=[1, 1], sources={"drafter": SourceStats(1, 2, 2)}))
    assert (total.prompt_tokens, total.accepted_at, total.drafted_at) == (3, [2, 1], [3, 1])
    assert total.sources == {"drafter": SourceStats(2, 4, 3)}


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
    with Chat(model, ChatTemplate.load(small_bundle, model.manifest, model.tokenizer), "Be brief.") as chat:
        for question in QUESTIONS[:2]:
            turn(chat, question, count=12)
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
    with Chat(model, ChatTemplate.load(small_bundle, model.manifest, model.tokenizer)) as chat:
        turn(chat, QUESTIONS[0], fresh=False, count=12)
        assert "\n".join(out) == chat.messages[-1]["content"]


def test_a_full_cache_is_said_and_the_session_goes_on(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [QUESTIONS[0], "word " * 90, "/reset", QUESTIONS[0]]
    out, err = talk(monkeypatch, capsys, small_bundle, lines, "--capacity", "90")
    assert "the KV cache 90 rows; start a new one with /reset" in err
    assert out[: len(out) // 2] == out[len(out) // 2 :]


@pytest.mark.parametrize("options", [["--sample"], ["--temperature", "0.9", "--seed", "3"], []])
def test_sampling_options_and_the_checkpoints_own(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """Without an option, and with one that starts from it, the checkpoint's own holds."""
    own, used = Sampling(temperature=0.7, seed=1), []
    send = Chat.send

    def watched(chat: Chat, text: str, **given: Any) -> Iterator[paceline.Piece]:
        used.append(given["sampling"])
        return send(chat, text, **given)

    monkeypatch.setattr("paceline.model._sampling", lambda _: own)
    monkeypatch.setattr(Chat, "send", watched)
    talk(monkeypatch, capsys, small_bundle, [QUESTIONS[0]], *options)
    assert used == [Sampling(temperature=0.9, seed=3) if "--seed" in options else own]


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_stops_the_answer_and_keeps_the_session(
    small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], presses: int
) -> None:
    """The signal really comes, while the third token is on its way."""
    verify, calls = Target.verify, []

    def pressing(target: Target, tokens: Sequence[int]) -> Any:
        calls.append(tokens)
        if len(calls) == 3:
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)
        return verify(target, tokens)

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
