"""`paceline serve`: a local server that OpenAI's clients can use."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from contextlib import closing, suppress

from paceline.cli import drafting, loading
from paceline.cli.command import Command, ExitCode
from paceline.errors import InputError
from paceline.serve.app import application
from paceline.serve.engine import Engine
from paceline.serve.guard import is_local
from paceline.serve.server import Server, bound, url
from paceline.settings import Settings

KEY = "PACELINE_API_KEY"


def configure(parser: ArgumentParser) -> None:
    loading.configure(parser)
    drafting.configure(parser)
    loading.configure_backend(parser)
    loading.configure_placement(parser)
    group = parser.add_argument_group("server", f"If the environment has {KEY}, requests must carry it as their API key.")
    group.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this machine only)")
    group.add_argument("--port", type=int, default=8080, metavar="N", help="port (default: 8080); 0 takes a free one")
    group.add_argument("--name", help="the model's id (default: the name of the bundle's directory)")
    group.add_argument(
        "--queue",
        type=int,
        default=8,
        metavar="N",
        help="requests that may wait while one is answered (default: 8); more are told to try again",
    )


def run(options: Namespace) -> ExitCode:
    if options.queue < 0:
        raise InputError(f"queue is {options.queue}; give 0 or more.")
    name, key = options.name or options.bundle.resolve().name, os.environ.get(KEY) or None
    with closing(bound(options.host, options.port)) as socket:
        where = url(socket)
        local = is_local(where)
        if not local and key is None:
            print(f"paceline: anyone who reaches {where} can use the model; set {KEY} to ask for a key.", file=sys.stderr)
        with (
            loading.loaded(options, options.backend, loading.placement(options)) as model,
            Engine(model, options.queue) as engine,
        ):
            defaults = Settings(draft_length=options.draft, sampling=model.sampling)
            app = application(engine, name, defaults, local=local, key=key)
            server = Server(app, engine, ready=lambda: print(f"{name} is served at {where}/v1", flush=True))
            with suppress(KeyboardInterrupt):  # it has ended in good order, and says so once more
                server.run([socket])
    return ExitCode.SUCCESS


COMMAND = Command(
    summary="Serve a model to OpenAI's clients on this machine; needs paceline[serve].",
    examples="""  paceline serve my-bundle
  paceline serve my-bundle --port 0 --name gemma --queue 2 --capacity 8192""",
    configure=configure,
    run=run,
)
