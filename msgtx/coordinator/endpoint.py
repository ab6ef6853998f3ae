"""The daemon's HTTP: `/metrics` for Prometheus, `/healthz` and `/readyz` for supervisors of processes."""

import gzip
import logging
import socket
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST

from msgtx.background import BackgroundThread
from msgtx.errors import ConfigError, ThreadNotStarted

log = logging.getLogger("msgtx.coordinator")
Page = Callable[[], tuple[HTTPStatus, str, bytes]]  # status, content type, body
CLIENT_SECONDS: Final = 10.0  # for a client to send its request, and to take the answer


def plain(status: HTTPStatus, text: str) -> tuple[HTTPStatus, str, bytes]:
    """Return a page of one line."""
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


def exposition(text: bytes) -> tuple[HTTPStatus, str, bytes]:
    """Return a page for Prometheus."""
    return HTTPStatus.OK, CONTENT_TYPE_LATEST, text


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_SECONDS
    server: "_Server"

    def __getattr__(self, name: str) -> Any:
        # The server looks for a method `do_VERB`: each verb has an answer.
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        refused = page is not None and self.command not in {"GET", "HEAD"}
        if page is None:
            status, kind, body = plain(HTTPStatus.NOT_FOUND, f"there are {', '.join(self.server.pages)}")
        elif refused:
            status, kind, body = plain(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD")
        else:
            try:
                status, kind, body = page()
            except Exception:
                log.exception("%s failed", self.path)
                status, kind, body = plain(HTTPStatus.INTERNAL_SERVER_ERROR, "failed: see the log")
        packed = len(body) > 1_000 and "gzip" in self.headers.get("Accept-Encoding", "")
        if packed:
            body = gzip.compress(body, 1)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if packed:
            self.send_header("Content-Encoding", "gzip")
        if refused:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no request: a scrape is no event."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, pages: dict[str, Page]) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        self.pages = pages
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]  # names or addresses

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass by a client that went away."""
        log.debug("a client of the metrics went away", exc_info=True)


class Endpoint:
    """An HTTP server in a thread; close it. Raise `ConfigError` if the address cannot be had, `ThreadNotStarted`."""

    def __init__(self, host: str, port: int, pages: dict[str, Page]) -> None:
        try:
            self._server = _Server(host, port, pages)
        except (OSError, UnicodeError) as error:  # a host with a part of more than 63 letters is no name of the DNS
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"metrics cannot be served at {host}:{port}: {reason}", reason="address") from error
        self.port: int = self._server.server_port
        self._thread = BackgroundThread(
            "msgtx-metrics", self._server.serve_forever, what=f"serving metrics at {host}:{port}"
        )
        try:
            self._thread.start()
        except ThreadNotStarted:
            self._server.server_close()
            raise

    def close(self) -> None:
        """Stop answering."""
        self._thread.stop()
        if self._thread.lives:
            self._server.shutdown()
        self._server.server_close()
        self._thread.join(CLIENT_SECONDS)
