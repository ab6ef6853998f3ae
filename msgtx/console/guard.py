"""The guard in front of every answer: hosts, methods, origins, and the headers that protect a reader.

A browser is the enemy's tool: a page of another origin can send requests here, and a name of the enemy's can be made to
lead here (DNS rebinding). So the Host header has to be an address, `localhost`, or a name that was allowed; a POST has to
come from a page of ours.
"""

import hmac
import ipaddress
import logging
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("msgtx.console")
METHODS: Final = {"GET", "HEAD", "POST"}
NOT_OURS: Final = "this form was not ours, or is too old: reload the page"
# `same-origin`, not `no-referrer`: with the latter a browser sends `Origin: null` with our own forms. Others see no
# address in either case.
PROTECTION: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none';"
    " object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """An ASGI application around the pages."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str] = (), end_streams: Callable[[], None]) -> None:
        self._app = app
        self.end_streams = end_streams  # for a server that ends: they would keep it waiting
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it before anything is read."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in PROTECTION.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, protected)
            return
        status, words = refusal
        log.warning("refused %s %r of %s: %s", scope["method"], scope["path"], peer_of(scope), words)
        await PlainTextResponse(f"{words}\n", status)(scope, receive, protected)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._knows(hosts[0]):
            return 421, f"this console does not answer for the host {hosts!r}; `msgtx console --allow-host NAME` allows one"
        if scope["method"] not in METHODS:
            return 405, "only GET, HEAD and POST"
        if scope["method"] == "POST":
            origins = headers.getlist("origin")
            if len(origins) != 1 or urlsplit(origins[0]).netloc != hosts[0]:
                return 403, f"a form of another origin ({origins!r})"
            if headers.get("sec-fetch-site", "same-origin") != "same-origin":
                return 403, "a form of another site"
        return None

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if urlsplit(f"//{host}").netloc != host or "@" in host:
                return False
        except ValueError:
            return False
        return name in self._hosts or is_address(name)


def is_address(text: str) -> bool:
    """Whether a host is an address and not a name: only names can be made to lead elsewhere."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether an address, or `localhost`, is of this machine alone."""
    return address == "localhost" or (is_address(address) and ipaddress.ip_address(address).is_loopback)


def peer_of(scope: Scope) -> str:
    """Return the address at the other end of the connection, whatever a header says."""
    return str(scope["client"][0]) if scope.get("client") else "unknown"


def token_of(secret: bytes, cookie: str, *bound: str) -> str:
    """Return the token that a form of this cookie's owner has. `bound`: what else it is of, such as its address."""
    return hmac.new(secret, repr((cookie, *bound)).encode(), "sha256").hexdigest()


def is_token(secret: bytes, cookie: str, token: str, *bound: str) -> bool:
    """Whether a form has its token."""
    return bool(cookie) and hmac.compare_digest(token_of(secret, cookie, *bound).encode(), token.encode(errors="replace"))
