"""Half an hour of everything that clients do, to a server of its own; PACELINE_SOAK_MINUTES makes it another time.

Every greedy text is known beforehand, and memory must stay where it was once all kinds of requests have come by.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import openai
import psutil
import pytest
from command import SCRIPT
from openai import OpenAI
from serving import DEADLINE_S, ENDLESS, Served
from small_pair import PROMPTS

import paceline
from paceline.chat import Chat

MINUTES = float(os.environ.get("PACELINE_SOAK_MINUTES", "30"))
WARM_UP_MINUTES = min(2.0, MINUTES / 3)
CLIENTS, QUEUE = 3, 1  # the queue is full now and then
CAPACITY, TOKENS = 1024, 32
SAMPLE_S = 0.5
# Half an hour has well over ten thousand requests, so whatever a request leaves behind, a list of tokens or a body, comes to
# more than this; what the allocator keeps in pieces is less.
GROWTH_BYTES = 8 * 2**20
LONG = "".join(PROMPTS)
QUESTIONS = [prompt.split("\n")[1].removesuffix("<turn|>") for prompt in PROMPTS if prompt.startswith("<|turn>user")]


@dataclass
class Clients:
    """What the client threads share.

    Attributes:
        texts: of a greedy completion, by its prompt.
        answers: of a greedy conversation, by its questions so far.
    """

    served: Served
    end: float
    texts: dict[str, str]
    answers: dict[tuple[str, ...], str]
    done: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def run(self, seed: int) -> None:
        """One client, which does anything that there is in any order."""
        rng = random.Random(seed)
        with self.served.client() as client:
            while time.monotonic() < self.end and not self.errors:
                kind = rng.choice(KINDS)
                try:
                    kind(self, client, rng)
                    self.done[kind.__name__] += 1
                except openai.RateLimitError:
                    self.done["queue full"] += 1
                except Exception as error:  # of any kind: it is the test's to say so
                    self.errors.append(f"{kind.__name__}: {error!r}")


def completion(clients: Clients, client: OpenAI, rng: random.Random) -> None:
    """Greedy, short or long, streamed or not."""
    prompt, stream = rng.choice(list(clients.texts)), rng.random() < 0.5
    answer = client.completions.create(model="small", prompt=prompt, max_tokens=TOKENS, stream=stream)
    text = "".join(chunk.choices[0].text for chunk in answer) if stream else answer.choices[0].text
    assert text == clients.texts[prompt]


def conversation(clients: Clients, client: OpenAI, rng: random.Random) -> None:
    """Greedy, some turns, streamed or not."""
    messages: list[Any] = []
    questions = max(clients.answers, key=len)[: rng.randint(1, len(QUESTIONS))]
    for turn, question in enumerate(questions, 1):
        messages.append({"role": "user", "content": question})
        stream = rng.random() < 0.5
        answer = client.chat.completions.create(model="small", messages=messages, max_tokens=TOKENS, stream=stream)
        text = "".join(c.choices[0].delta.content or "" for c in answer) if stream else answer.choices[0].message.content
        assert text == clients.answers[questions[:turn]]
        messages.append({"role": "assistant", "content": text})


def sampled(clients: Clients, client: OpenAI, rng: random.Random) -> None:
    """With any of the fields, streamed or not."""
    extra = {"top_k": rng.randint(1, 100), "drafting": rng.choice(["greedy", "sampled", "block"])}
    extra |= {"draft_length": rng.choice([0, 1, 3, 7, "auto"]), "repetition_penalty": rng.choice([1, 1.2])}
    chunks = client.chat.completions.create(
        model="small",
        messages=[{"role": "user", "content": rng.choice(QUESTIONS)}],
        max_tokens=rng.randint(1, 2 * TOKENS),
        temperature=rng.uniform(0.5, 2),
        top_p=rng.uniform(0.5, 1),
        frequency_penalty=rng.choice([0, 1]),
        stop=["\n\n"],
        stream=True,
        stream_options={"include_usage": True},
        extra_body=extra,
    )
    *_, last = chunks  # to the end, because a stream that the garbage collector closes can lock its client up
    assert last.usage.completion_tokens > 0


def refused(clients: Clients, client: OpenAI, rng: random.Random) -> None:
    """For one reason or another."""
    wrong: Any = rng.choice(
        [{"temperature": -1}, {"logprobs": 1}, {"model": "x"}, {"prompt": [1] * 2 * CAPACITY}, {"logit_bias": {"9999": 1}}]
    )
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
        client.completions.create(**({"model": "small", "prompt": "x", "stream": rng.random() < 0.5} | wrong))


def left_in_a_stream(clients: Clients, client: OpenAI, rng: random.Random) -> None:
    """After some tokens of many."""
    chunks = client.completions.create(model="small", prompt=rng.choice(PROMPTS), stream=True, **ENDLESS)
    for _ in range(rng.randint(1, 40)):
        next(chunks)
    chunks.close()


def left_while_waiting(clients: Clients, client: OpenAI, rng: random.Random) -> None:
    """For an answer as a whole, in the queue or in the midst of a long prompt."""
    connection = clients.served.send("/v1/completions", {"prompt": LONG} | ENDLESS | ENDLESS["extra_body"])
    time.sleep(rng.uniform(0, 0.2))
    connection.close()


KINDS = [completion, completion, conversation, sampled, refused, left_in_a_stream, left_while_waiting]


@pytest.mark.slow
def test_the_server_stays_right_and_small(small_bundle: Path, tmp_path: Path) -> None:
    texts, answers = expected(small_bundle)
    arguments = ["serve", str(small_bundle), "--port", "0", "--threads", "1"]
    arguments += ["--queue", str(QUEUE), "--capacity", str(CAPACITY)]
    with (
        open(tmp_path / "log", "w+") as log,
        subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout
            ready = re.search(r":(\d+)/v1", process.stdout.readline())
            assert ready
            clients = Clients(Served(int(ready[1])), time.monotonic() + 60 * MINUTES, texts, answers)
            threads = [threading.Thread(target=clients.run, args=[seed], daemon=True) for seed in range(CLIENTS)]
            for thread in threads:
                thread.start()
            resident = memory(process.pid, threads, clients.end)
            assert clients.errors == []
            assert not [thread for thread in threads if thread.is_alive()]
            clients.served.until(busy=False, waiting=0)
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
        log.seek(0)
        assert "Traceback" not in log.read()
    part = len(resident) // 5
    early, late = median(resident[:part]), median(resident[-part:])
    print(f"{clients.done.total()} requests in {MINUTES} minutes, {dict(clients.done)}: {early} to {late} resident bytes")
    assert late - early < GROWTH_BYTES
    assert set(clients.done) == {kind.__name__ for kind in KINDS} | {"queue full"}


def expected(bundle: Path) -> tuple[dict[str, str], dict[tuple[str, ...], str]]:
    """What `Clients` compares answers with, by the Python API."""
    with paceline.load(bundle, threads=1, capacity=CAPACITY) as model:
        texts = {prompt: written(model.generate(prompt, max_new_tokens=TOKENS)) for prompt in [*PROMPTS, LONG]}
        answers = {}
        with Chat(model) as chat:
            for turn, question in enumerate(QUESTIONS, 1):
                answers[tuple(QUESTIONS[:turn])] = written(chat.send(question, max_new_tokens=TOKENS))
    return texts, answers


def written(pieces: Iterable[paceline.Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def memory(pid: int, threads: list[threading.Thread], end: float) -> list[int]:
    """Resident bytes after the warm-up, until the threads have ended, as they must soon after `end`."""
    process, resident, warm = psutil.Process(pid), [], time.monotonic() + 60 * WARM_UP_MINUTES
    while any(thread.is_alive() for thread in threads) and time.monotonic() < end + 2 * DEADLINE_S:
        time.sleep(SAMPLE_S)
        if time.monotonic() > warm:
            resident.append(process.memory_info().rss)
    return resident
