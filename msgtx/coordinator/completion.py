"""The work of a client beside its calls: notifications of its commits, markers in bulk, changes of topics."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from msgtx.background import BackgroundThread, left_for_later
from msgtx.coordinator.notifier import Notifier
from msgtx.database.connection import RawConnection, until
from msgtx.database.pool import Engine
from msgtx.errors import ThreadNotStarted
from msgtx.store.transactions.transactions import mark_in_turn

log = logging.getLogger("msgtx.coordinator")
MARK_SECONDS: Final = 1.0  # between two rounds of markers
REST_MS: Final = 900  # a client leaves a round out if another one was at work so shortly before
# For each call: after it the work is left to the next round, a sweep or a poll. `close` waits for it.
MARK_ANSWER_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 4 * MARK_ANSWER_SECONDS  # for all that a close waits for
TOPIC_CHANGES_SECONDS: Final = 30.0  # until a producer that sends knows of new partitions and other limits


class Completion:
    """One thread per client; starts with its first producer."""

    def __init__(self, engine: Engine, look_at_topics: Callable[[RawConnection], object]) -> None:
        self._engine = engine
        self._look_at_topics = look_at_topics
        self._topics_due = time.monotonic() + TOPIC_CHANGES_SECONDS
        self._changed = threading.Condition()
        self.notifier = Notifier(engine, self._changed)
        self._mark_due: float | None = None
        self._stopping = False
        self._thread = BackgroundThread("msgtx-completion", self._run, what="telling readers and writing markers")

    def decided(self) -> None:
        """Take note that a transaction was decided: its markers follow within a second."""
        with self._changed:
            if self._mark_due is None:
                self._mark_due = time.monotonic() + MARK_SECONDS
                self._changed.notify_all()
            self.start()

    def start(self) -> None:
        """Start the thread, unless it runs. While the system gives none, readers and sweeps do its work later."""
        if not self._stopping and not self._thread.lives:
            try:
                self._thread.start()
            except ThreadNotStarted as error:
                log.warning("%s", error)

    def close(self) -> None:
        """Write due markers and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)  # after a failure it is run again, and does the rest
        self._thread.stop()

    def _run(self) -> None:
        try:
            while True:
                with until(silence=MARK_ANSWER_SECONDS):
                    self.notifier.tend()
                with self._changed:
                    marking = self._wait()
                    last = self._stopping
                with until(silence=MARK_ANSWER_SECONDS):
                    if marking:
                        self._mark(rest_ms=0 if last else REST_MS)
                    if time.monotonic() >= self._topics_due:
                        self._topics_due = time.monotonic() + TOPIC_CHANGES_SECONDS
                        self._ask_for_topics()
                    if last:
                        self.notifier.tend(closing=True)
                        return
        finally:
            self.notifier.close()

    def _wait(self) -> bool:
        """Wait until something is to be done. Returns whether that is markers."""
        while True:
            now = time.monotonic()
            marking = self._mark_due is not None and (now >= self._mark_due or self._stopping)
            if marking:
                self._mark_due = None
            if marking or self._stopping or (self.notifier.due is not None and now >= self.notifier.due):
                return marking
            due = [at for at in (self._mark_due, self.notifier.due) if at is not None]
            self._changed.wait(max(0.0, min(due) - now) if due else None)

    def _mark(self, *, rest_ms: int) -> None:
        with left_for_later("markers are left to the next round"):
            with self._engine.connection() as connection:
                done = mark_in_turn(connection, rest_ms=rest_ms)
            if not done:
                self.decided()  # decisions that became visible after the other client's look wait for the next round

    def _ask_for_topics(self) -> None:
        with left_for_later("topics are looked at later"), self._engine.connection() as connection:
            self._look_at_topics(connection)
