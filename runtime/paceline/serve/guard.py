"""Who may ask: programs on this machine but not every web page that its browser shows, and with a key only who has it.

A page can post to any address, and can have its own name resolve to 127.0.0.1. A browser says in both cases where the page
is from.
"""

from __future__ import annotations

from hmac import compare_digest
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.serve.errors import ApiError


class Guard:
    """Answers what is not allowed itself, and hands on the rest.

    Args:
        app: what is guarded.
        local: whether the server is reached by names of this machine only.
        key: that requests must carry as a bearer token; None asks for none.
    """

    def __init__(self, app: ASGIApp, local: bool, key: str | None):
        self.app, self.local, self.key = app, local, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(Headers(scope=scope))
        await (refused.response() if refused else self.app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.local and not is_local(f"//{host}"):
            return ApiError(403, f"the request is for host {host!r}; use localhost, or start the server with another --host.")
        if self.local and origin is not None and not is_local(origin):
            return ApiError(403, f"the request comes from a page of {origin!r}; only pages of this machine may ask.")
        if self.key is not None:
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not compare_digest(given.encode(), self.key.encode()):
                return ApiError(401, "the key is missing or wrong; send the server's as api_key.", code="invalid_api_key")
        return None


def is_local(url: str) -> bool:
    """Whether a URL's host is this machine by its name or address."""
    try:
        host = urlsplit(url).hostname
        return host == "localhost" or (host is not None and ip_address(host).is_loopback)
    except ValueError:  # neither
        return False
