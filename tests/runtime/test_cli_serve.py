"""`paceline serve`: what it prints where, its key, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from command import SCRIPT, refused, script
from serving import DEADLINE_S, ENDLESS, Served


@contextmanager
def command(bundle: Path, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and the line that it prints once it is ready."""
    arguments = [sys.executable, "-c", SCRIPT, "serve", str(bundle), "--port", "0", "--threads", "1", *options]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    ) as process:
        assert process.stdout
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What is left of stdout and stderr after Ctrl-C, which ends it well."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert "Traceback" not in err
    return out, err


def test_it_says_where_it_is_answers_and_ends_with_ctrl_c_in_the_midst_of_an_answer(small_bundle: Path) -> None:
    with command(small_bundle, "--name", "gemma", PACELINE_API_KEY="abc") as (process, ready):
        found = re.fullmatch(r"gemma is served at http://127\.0\.0\.1:(\d+)/v1\n", ready)
        assert found
        served = Served(int(found[1]))
        with served.client("wrong") as client, pytest.raises(openai.AuthenticationError, match="the key is missing or wrong"):
            client.models.list()
        with served.client("abc") as client:
            assert [model.id for model in client.models.list()] == ["gemma"]
            assert client.completions.create(model="gemma", prompt="def ", max_tokens=4).choices[0].text
            running = client.completions.create(model="gemma", prompt="x", stream=True, **ENDLESS)
            next(running)
            out, err = interrupted(process)
            with pytest.raises(openai.APIError, match="the answer was cancelled"):
                list(running)
        assert out == ""
        assert re.search(r"^POST /v1/completions 200: \d+ tokens of prompt, .* drafts accepted$", err, re.MULTILINE)
        assert "abc" not in err


def test_an_address_that_others_reach_is_warned_of(small_bundle: Path) -> None:
    with command(small_bundle, "--host", "0.0.0.0", PACELINE_API_KEY="") as (process, ready):
        assert ready.startswith("small is served at http://0.0.0.0:")
        _, err = interrupted(process)
        assert re.fullmatch(
            r"paceline: anyone who reaches http://0\.0\.0\.0:\d+ can use the model; set PACELINE_API_KEY .*\n", err
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "65536"], "port is 65536; allowed is 1 to 65535, or 0"),
        (["--host", "no.such.host.invalid"], "host 'no.such.host.invalid' is not known"),
        (["--host", "192.0.2.1"], "192.0.2.1:8080 cannot be used"),
        (["--queue", "-1"], "queue is -1; give 0 or more"),
    ],
)
def test_a_value_out_of_range_is_refused(
    options: list[str], words: str, small_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(["serve", str(small_bundle), *options], capsys)


def test_a_port_in_use_is_refused(small_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port} of 127.0.0.1 is in use; choose another" in refused(
            ["serve", str(small_bundle), "--port", port], capsys
        )


def test_without_its_packages_it_says_how_to_install_them() -> None:
    done = script("serve", "bundle", before='import sys\nsys.modules["pydantic"] = None\n')
    assert done.returncode == 2
    assert "paceline serve needs the package pydantic; install it with: pip install 'paceline[serve]'\n" in done.stderr
