"""The database that a command works on."""

from typing import TYPE_CHECKING

from msgtx.cli.interruption import deferred
from msgtx.cli.options import Invocation

if TYPE_CHECKING:
    from msgtx.client import Client
    from msgtx.database.engine import Engine


def connect(invocation: Invocation) -> "Client":
    """Connect as `msgtx.connect` does: to the URL that is given, else to the embedded server."""
    with deferred():
        from msgtx import client
    return client.connect(invocation.url)


def open_engine(invocation: Invocation) -> "tuple[Engine, bool]":
    """Return an engine, whatever the schema is like, and whether the server is the embedded one."""
    with deferred():
        from msgtx import client
    return client.open_engine(invocation.url)
