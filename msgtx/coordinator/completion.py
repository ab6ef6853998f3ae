"""What a client does beside the calls: telling readers of its commits, markers in bulk, a look at what topics became."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import psycopg

from msgtx.database.connection import until
from msgtx.database.engine import Engine, RawConnection
from msgtx.errors import MsgtxError
from msgtx.store.transactions import mark
from msgtx.store.wakeups import notify, tell_readers
from msgtx.wakeup import Notifier

log = logging.getLogger("msgtx.coordinator")
SPEAK_SECONDS: Final = 1.0  # after a connection to tell by was refused, until the next try
MARK_SECONDS: Final = 1.0  # between two rounds of markers of one client
ANSWER_SECONDS: Final = (
    10.0  # for each: what is given up, the next round, a sweep or a poll makes up for; `close` waits for it
)
TOPICS_SECONDS: Final = 30.0  # until a producer that sends knows of new partitions and other limits


class Completion:
    """One thread per client; starts with its first producer."""

    def __init__(self, engine: Engine, look_at_topics: Callable[[RawConnection], object]) -> None:
        self._engine = engine
        self._look_at_topics = look_at_topics
        self._topics_due = time.monotonic() + TOPICS_SECONDS
        self._changed = threading.Condition()
        self.notifier = Notifier(self._changed)
        self._mark_due: float | None = None
        # A connection of its own: the pool's may all be busy, and readers of what is committed must not wait for that.
        self._speaker: RawConnection | None = None
        self._silent_until = 0.0
        self._stopping = False
        self._thread: threading.Thread | None = None

    def decided(self) -> None:
        """Hear that a transaction was decided: its markers follow within a second."""
        with self._changed:
            if self._mark_due is None:
                self._mark_due = time.monotonic() + MARK_SECONDS
                self._changed.notify_all()
            self.start()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._changed:
            if (self._thread is None or not self._thread.is_alive()) and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="msgtx-completion", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Write what is due and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with until(silence=ANSWER_SECONDS):
                self._speak()
            while True:
                with self._changed:
                    told, marking = self._wait()
                    last = self._stopping
                with until(silence=ANSWER_SECONDS):
                    if told:
                        self._tell(told)
                    if marking:
                        self._mark()
                    if time.monotonic() >= self._topics_due:
                        self._topics_due = time.monotonic() + TOPICS_SECONDS
                        self._ask_for_topics()
                if last and not self.notifier.waiting:
                    return
        finally:
            if self._speaker is not None:
                self._speaker.close()

    def _wait(self) -> tuple[list[int], bool]:
        while True:
            now = time.monotonic()
            told = self.notifier.take(closing=self._stopping)
            marking = self._mark_due is not None and (now >= self._mark_due or self._stopping)
            if marking:
                self._mark_due = None
            if told or marking or self._stopping:
                return told, marking
            due = [at for at in (self._mark_due, self.notifier.due) if at is not None]
            self._changed.wait(max(0.0, min(due) - now) if due else None)

    def _speak(self) -> RawConnection | None:
        """Return the connection to tell by, None while there is none."""
        if self._speaker is None and time.monotonic() >= self._silent_until:
            try:
                self._speaker = self._engine.dedicated()
            except MsgtxError as error:
                log.debug("nobody is told of commits, readers poll: %s", error)
                self._silent_until = time.monotonic() + SPEAK_SECONDS
        return self._speaker

    def _tell(self, partition_ids: list[int]) -> None:
        for _ in range(2):  # the connection may have died since the last time
            connection = self._speak()
            if connection is None:
                return
            try:
                self._say(connection, partition_ids)
            except (MsgtxError, psycopg.Error) as error:
                log.debug("a notification was lost: %s", error)
                self._speaker = None
                with contextlib.suppress(psycopg.Error):
                    connection.close()
            else:
                return

    @staticmethod
    def _say(connection: RawConnection, partition_ids: list[int]) -> None:
        try:
            notify(connection, ",".join(map(str, partition_ids)))
        except psycopg.errors.ProgramLimitExceeded:
            # The queue of notifications is full: some session listens and does not read. No commit fails of that.
            tell_readers(connection, partition_ids)

    def _mark(self) -> None:
        try:
            with self._engine.connection() as connection:
                mark(connection)
        except MsgtxError as error:
            log.debug("markers are left to the next round: %s", error)

    def _ask_for_topics(self) -> None:
        try:
            with self._engine.connection() as connection:
                self._look_at_topics(connection)
        except MsgtxError as error:
            log.debug("topics are looked at later: %s", error)
