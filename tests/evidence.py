"""What a test that failed leaves behind, for waits that happen once in a thousand runs.

A failure for lack of time has two kinds of reasons: the server waited, or the whole machine stood still. Its report says
which: how long this process did not run at all, and what each session of the test's server was at.
"""

import os
import threading
import time
from typing import Any, Final

import psycopg
import pytest

from tests.databases import connect

BEAT_SECONDS: Final = 0.5
LONG_SECONDS: Final = 2.0  # a process that does not run for so long is told of
SESSIONS: Final = """
    select pid, application_name, state, wait_event_type || ' ' || wait_event as waits_for,
           clock_timestamp() - query_start as since, pg_blocking_pids(pid) as behind, left(query, 100) as query
      from pg_stat_activity
     where backend_type = 'client backend' and pid <> pg_backend_pid()
"""


class Pulse:
    """A thread that only sleeps: when it sleeps too long, nothing here ran."""

    def __init__(self) -> None:
        self._still: list[tuple[float, float]] = []  # until when it stood still, and for how long
        self._last = time.monotonic()
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            now, before = time.monotonic(), self._last
            self._last = now
            if now - before > LONG_SECONDS:
                self._still.append((now, now - before))

    def since(self, start: float) -> list[float]:
        """Return how long the process stood still, each time that ended after `start` (`time.monotonic`), in seconds."""
        now, before = time.monotonic(), self._last  # the thread may still have to find out
        unseen = [(now, now - before)] if now - before > LONG_SECONDS else []
        return [seconds for end, seconds in [*self._still, *unseen] if end >= start]


def report(item: pytest.Item, seconds: float, still: list[float]) -> str:
    """Say what is known about a test that has failed after `seconds`."""
    lines = [f"it took {seconds:.1f} s; this process stood still for {', '.join(f'{each:.1f}' for each in still) or 0} s"]
    lines.append(f"load of the machine: {os.getloadavg()}")
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    url = arguments.get("database_url")
    if isinstance(url, str):
        lines += sessions(url)
    return "\n".join(lines)


def sessions(url: str) -> list[str]:
    """Return a line about each session of the database's server."""
    try:
        with connect(url, connect_timeout=5, options="-c statement_timeout=5s") as connection:
            cursor = connection.execute(SESSIONS)
            names = [column.name for column in cursor.description or ()]
            return [", ".join(f"{n} {v}" for n, v in zip(names, row, strict=True) if v) for row in cursor]
    except psycopg.Error as error:
        return [f"its server: {error}"]
