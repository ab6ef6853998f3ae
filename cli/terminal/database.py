"""The database that a command works on."""

from typing import TYPE_CHECKING

from msgtx.cli.terminal.interruption import deferred
from msgtx.cli.terminal.invocation import Invocation

if TYPE_CHECKING:
    from msgtx.client import Client
    from msgtx.database.pool import Engine


def connect(invocation: Invocation) -> "Client":
    """Connect as `msgtx.connect` does: to the URL that is given, else to the embedded server."""
    with deferred():
        from msgtx import client
    return client.connect(invocation.url, read_url=invocation.read_url, on_failover=invocation.on_failover)


def open_engine(invocation: Invocation) -> "Engine":
    """Return an engine for that database, without a check of its schema."""
    with deferred():
        from msgtx.database import opening
    return opening.open_engine(invocation.url, read_url=invocation.read_url)
