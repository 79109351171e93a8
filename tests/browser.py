"""A headless Chromium, spoken to in its DevTools protocol over a pipe, that looks at a page as a phone would."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


# The protocol is on file descriptors 3 and 4, wherever our own pipes have come to lie.
LAUNCHER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One tab. Replies come in the order of the commands; events between them are kept."""

    def __init__(self, to: RawIOBase, back: RawIOBase):
        self._to, self._back, self._unread = to, back, b""
        self._count, self._session = 0, {}
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: object) -> dict[str, Any]:
        """Runs a command of the protocol and returns its result."""
        self._count += 1
        self._to.write(json.dumps({"id": self._count, "method": method, "params": params, **self._session}).encode() + b"\0")
        while (message := self._read()).get("id") != self._count:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            piece = os.read(self._back.fileno(), 1 << 20)
            assert piece, "the browser has gone"
            self._unread += piece
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def open(self, file: Path, width: int, height: int, *, mobile: bool = False, dark: bool = False) -> None:
        """Loads a file into a viewport of this size, in CSS pixels, and waits until it is there."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=file.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())
        self.events = [event for event in self.events if event["method"] != "Page.loadEventFired"]

    def evaluate(self, expression: str) -> Any:
        """A JavaScript expression's value, as JSON has it."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"]["value"]

    def screenshot(self) -> bytes:
        """All of the page as a PNG file."""
        return base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    @property
    def complaints(self) -> list[dict[str, Any]]:
        """What the console would show."""
        return [event for event in self.events if event["method"] in ("Log.entryAdded", "Runtime.consoleAPICalled")]

    @property
    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"]


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A tab in a browser of its own, whose profile is a new directory. Needs CHROMIUM."""
    read_commands, write_commands = os.pipe()
    read_replies, write_replies = os.pipe()
    started = [sys.executable, "-c", LAUNCHER, str(read_commands), str(write_replies), str(CHROMIUM), *FLAGS]
    with (
        open(write_commands, "wb", buffering=0) as to,
        open(read_replies, "rb", buffering=0) as back,
        subprocess.Popen(
            [*started, f"--user-data-dir={profile}"],
            pass_fds=(read_commands, write_replies),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        os.close(read_commands)
        os.close(write_replies)
        try:
            yield Page(to, back)
        finally:
            process.kill()
