"""The socket and the loop of the server."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from paceline.errors import InputError
from paceline.serve.engine import Engine

SHUTDOWN_S = 5  # for a client that does not read what is left of its answer


class Server(uvicorn.Server):
    """uvicorn, quiet, that ends running generations when it is told to end.

    Args:
        app: what is served.
        engine: whose generations end.
        ready: is called once clients can connect.
    """

    def __init__(self, app: ASGIApp, engine: Engine, ready: Callable[[], None]):
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="critical",
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_S,
            )
        )
        self._engine, self._ready = engine, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Opens the sockets."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes them; uvicorn waits for the answers that are being written."""
        self._engine.stop()
        await super().shutdown(sockets)


def bound(host: str, port: int) -> socket.socket:
    """A socket for the server, which does not listen yet.

    Args:
        host: a name or an address of this machine.
        port: 0 takes a free one.

    Raises:
        InputError: the host or the port cannot be had.
    """
    if not 0 <= port < 2**16:
        raise InputError(f"port is {port}; allowed is 1 to 65535, or 0 for any that is free.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InputError(f"host {host!r} is not known ({error}); use an address of this machine, or 127.0.0.1.") from None
    server = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # where it lets two servers share a port
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # without it a restart has to wait
        server.bind(address)
    except OSError as error:
        server.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} of {host} is in use; choose another with --port, or 0 for any.") from None
        raise InputError(f"{host}:{port} cannot be used ({error.strerror}); choose another --host or --port.") from None
    return server


def url(server: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port = server.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
