"""Conversations: every answer is a fresh sequence's, and a turn computes only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.backends import BACKENDS
from paceline.chat import Chat
from paceline.chat_template import ChatTemplate
from paceline.errors import CancelledError, CapacityError, InputError
from paceline.kept_sequence import common
from paceline.kv_cache import KVCache
from paceline.ngram import Lookup
from paceline.sampling import GREEDY, Sampling
from paceline.signatures import PREFILL_CHUNK
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


@pytest.fixture
def chat(model: paceline.Model) -> Iterator[Chat]:
    with Chat(model, "You write Python.") as chat:
        yield chat


class Rows(list[int]):
    """The tokens that the target was given, drafts left out."""

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> Rows:
        prefill, verify = Target.prefill, Target.verify

        def prefilled(target: Target, tokens: Sequence[int], cancel: Any = None) -> None:
            self.extend(tokens)
            prefill(target, tokens, cancel)

        def verified(target: Target, tokens: Sequence[int], paths: Any = ()) -> Any:
            self.append(tokens[0])
            return verify(target, tokens, paths)

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
    model: paceline.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Sampling(temperature=1.0, seed=5)
    monkeypatch.setattr(model, "sampling", own)
    with Chat(model) as chat:
        tokens = prompt_of(chat, QUESTIONS[0])
        for options, sampling in (({}, own), ({"sampling": GREEDY}, GREEDY), ({"sampling": own}, own)):
            sent = list(chat.send(QUESTIONS[0], max_new_tokens=24, draft_length=2, **options))
            alone = list(model.generate(tokens, max_new_tokens=24, draft_length=2, sampling=sampling))
            assert [p.token for p in sent] == [p.token for p in alone]
            chat.reset()


def test_a_thought_is_shown_and_left_out_of_the_conversation(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [piece.token for piece in turn(chat, QUESTIONS[0], fresh=False)]
    texts = [chat.model.tokenizer.id_to_token(token) for token in tokens]
    opens = next(index for index, text in enumerate(texts) if text not in texts[:index] and text not in texts[index + 1 :])
    closes = next(index for index, text in enumerate(texts) if index > opens + 3 and text not in texts[:index])
    monkeypatch.setattr("paceline.text.THOUGHT_OPENS", texts[opens])
    monkeypatch.setattr("paceline.text.THOUGHT_CLOSES", texts[closes])
    chat.reset()
    pieces = turn(chat, QUESTIONS[0], fresh=False)
    assert [piece.token for piece in pieces] == tokens
    assert [piece.thought for piece in pieces[: closes + 2]] == [opens <= index <= closes for index in range(closes + 2)]
    assert chat.messages[-1]["content"] == "".join(piece.text for piece in pieces if not piece.thought)
    turn(chat, QUESTIONS[1], fresh=False)


def test_penalties_and_lookup_are_of_all_the_text(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the tokens alone that a turn computes."""
    penalised = Sampling(repetition_penalty=1.6)
    turn(chat, QUESTIONS[0], fresh=False)
    looked_in: list[list[int]] = []
    monkeypatch.setattr("paceline.kept_sequence.Lookup", lambda tokens: looked_in.append(list(tokens)) or Lookup(tokens))
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


def test_a_prompt_is_cancelled_between_chunks_and_what_was_computed_stays(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    text, cancel, commit = " ".join(QUESTIONS * 12), Event(), KVCache.commit
    tokens = prompt_of(chat, text)
    assert len(tokens) > 2 * PREFILL_CHUNK
    with monkeypatch.context() as patch:
        patch.setattr(KVCache, "commit", lambda cache, rows: (commit(cache, rows), cancel.set()))
        with pytest.raises(CancelledError, match="cancelled before its first token"):
            next(chat.send(text, draft_length=0, cancel=cancel))
    assert len(chat.messages) == 1
    pieces = turn(chat, text, count=12)
    assert pieces[-1].stats
    assert pieces[-1].stats.prompt_tokens == len(tokens) - PREFILL_CHUNK


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
    assert chat._sequence._sequence
    assert chat._sequence._sequence[0].cache.local_start > 0
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
    with Chat(model, template=ChatTemplate(source, {})) as chat:
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


def test_the_sequence_goes_back_to_the_model(model: paceline.Model) -> None:
    before = len(model._idle)
    with Chat(model) as chat:
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
    total.add(Stats(prompt_tokens=2, accepted_at=[1, 1], drafted_at=[1, 1], sources={"drafter": SourceStats(1, 2, 2)}))
    assert (total.prompt_tokens, total.accepted_at, total.drafted_at) == (3, [2, 1], [3, 1])
    assert total.sources == {"drafter": SourceStats(2, 4, 3)}
