"""Connections to the embedded server, which the variables of libpq do not reach: they are for the user's own servers.

An address cannot say all of it: `PGSERVICE` counts before an address is read, and `PGTZ` has no parameter.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, Final, Self

from psycopg.abc import PQGenConn

from msgtx.database.connection import Connection

VARIABLES_PREFIX: Final = "PG"
# The settings that psycopg takes from the environment if the address lacks them.
NOT_ASKED_FOR: Final = {"hostaddr": "127.0.0.1", "target_session_attrs": "any", "load_balance_hosts": "disable"}
_one_at_a_time: Final = threading.RLock()


class Sheltered(Connection):
    """A connection for which only its address counts."""

    @classmethod
    def connect(cls, conninfo: str = "", **options: Any) -> Self:
        """Open a connection to a server of 127.0.0.1."""
        return super().connect(conninfo, **{**NOT_ASKED_FOR, **options})

    @classmethod
    def _connect_gen(cls, *arguments: Any, **named: Any) -> PQGenConn[Self]:
        steps = super()._connect_gen(*arguments, **named)
        try:
            with _without_variables():
                wanted = next(steps)
            while True:
                ready = yield wanted
                with _without_variables():
                    wanted = steps.send(ready)
        except StopIteration as end:
            connection: Self = end.value
            return connection


@contextlib.contextmanager
def _without_variables() -> Iterator[None]:
    """Hide the variables from libpq for one step of a connection, which does not wait: other threads may need them."""
    with _one_at_a_time:
        hidden = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES_PREFIX)}
        try:
            for name in hidden:
                os.environ.pop(name, None)
            yield
        finally:
            for name, value in hidden.items():
                os.environ.setdefault(name, value)  # another thread may have set it meanwhile


# A child has its variables, and a lock that nobody holds.
os.register_at_fork(
    before=_one_at_a_time.acquire, after_in_parent=_one_at_a_time.release, after_in_child=_one_at_a_time.release
)
