"""A server of the small pair in this process, and what its clients need."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from openai import DefaultHttpxClient, OpenAI

import paceline
from paceline.serve.app import application
from paceline.serve.engine import Engine
from paceline.serve.server import Server, bound
from paceline.settings import Settings

DEADLINE_S = 30  # of anything that is waited for
QUEUE = 4  # requests that may wait
# A text that goes on until the cache is full, slowly: whoever needs a busy server ends it.
ENDLESS: dict[str, Any] = {"logit_bias": {"1": -1000, "5": -1000}, "temperature": 1.5, "extra_body": {"draft_length": 0}}


@dataclass(frozen=True)
class Served:
    """A running server, by its port."""

    port: int

    def client(self, key: str = "none") -> OpenAI:
        """OpenAI's own, which neither retries nor asks a proxy."""
        http = DefaultHttpxClient(trust_env=False)
        return OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0, timeout=DEADLINE_S, http_client=http
        )

    def raw(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of one request."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def health(self) -> Any:
        """What /health says."""
        return self.raw("GET", "/health")[1]

    def until(self, **state: Any) -> None:
        """Waits until /health says so."""
        wait(lambda: state.items() <= self.health().items())

    def send(self, path: str, body: Mapping[str, Any]) -> socket.socket:
        """Sends a request, and leaves the connection to the caller."""
        text = json.dumps(body)
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        return connection


def wait(done: Callable[[], bool]) -> None:
    """Until something is so, which must be soon."""
    end = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


@contextmanager
def serving(bundle: Path) -> Iterator[tuple[Served, paceline.Model]]:
    """A server in a thread of its own, and its model."""
    model, ready = paceline.load(bundle, threads=1), threading.Event()
    with closing(bound("127.0.0.1", 0)) as listening, model, Engine(model, QUEUE) as engine:
        defaults = Settings(draft_length=3, sampling=model.sampling)
        server = Server(application(engine, "small", defaults, local=True), engine, ready.set)
        thread = threading.Thread(target=server.run, args=[[listening]])
        port = listening.getsockname()[1]
        thread.start()
        try:
            assert ready.wait(DEADLINE_S)
            yield Served(port), model
        finally:
            server.should_exit = True
            thread.join()
