"""Notifying listeners of a client's commits: the committing thread does it, while commits come slowly.

Source: internals: notifications.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterable
from typing import Final

import psycopg
from psycopg import pq

from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.database.wire import Arriving, readable
from msgtx.errors import MsgtxError
from msgtx.store.fetch.wakeups import MOST_TOLD, send_notification, tell_readers

log = logging.getLogger("msgtx.coordinator")
INTERVAL_SECONDS: Final = 0.002  # between two notifications of one client
CLAIM_SECONDS: Final = 0.001  # from a notification until a commit may bring the next one
REST_SECONDS: Final = 1.0  # and from one that failed
INTERVAL_MOST_SECONDS: Final = 0.008  # and while they come faster: each costs what some commits do
FAST: Final = 750  # commits a second, from where on they come faster
HEAR_SECONDS: Final = 0.05  # from a notification until a thread reads its answer, if no later one did
SPEAK_SECONDS: Final = 1.0  # after a connection was refused or was the second one in vain, until the next try
QUEUE_IS_FULL: Final = b"54000"  # program_limit_exceeded
NOTIFY_ANSWER_SECONDS: Final = 10.0  # a notification without an answer by then is repeated, on another connection


class Notifier:
    """Sends notifications on a connection of its own, since the pool's may all be busy, and waits for none of the answers.

    `tell` may be called by any thread. It leaves some notifications to `tend` (commits come fast, the connection is lost),
    and all answers. One thread calls `tend` at `due`; only this thread opens and closes the connection.
    """

    def __init__(self, engine: Engine, changed: threading.Condition) -> None:
        self._engine = engine
        self._changed = changed  # guards all that follows; the thread waits for it
        self._connection: RawConnection | None = None
        self._arriving = Arriving()
        self._lost = False
        self._in_vain = False  # nothing was notified since a connection was lost
        self._silent_until = 0.0
        self._last = 0.0
        self._rests_until = 0.0  # until when no commit brings its notification
        self._interval = INTERVAL_SECONDS
        self._commits = 0
        self._said: list[int] = []  # in a notification whose answer was not read
        self._full = False  # the server's queue of notifications
        self.waiting: set[int] = set()
        self.due: float | None = None

    def tell(self, partition_ids: Iterable[int]) -> None:
        """Have readers of these partitions notified of a commit that is done. Does not wait."""
        with self._changed:
            self.waiting.update(partition_ids)
            self._commits += 1
            now = time.monotonic()
            if now >= self._last + self._interval:
                self._say(now)
            due = self._next_due(now)
            if due is not None and (self.due is None or due < self.due):
                self.due = due
                self._changed.notify_all()

    def claim(self) -> bool:
        """Return whether a caller is to notify by itself, after its own COMMIT; if not, or if it did not, it calls `tell`.

        Only while nothing waits: nobody's readers wait for another one's commit.
        """
        with self._changed:
            now = time.monotonic()
            if self.waiting or now < max(self._last + CLAIM_SECONDS, self._rests_until):
                return False
            self._last, self._commits, self._interval = now, 0, INTERVAL_SECONDS
            return True

    def failed(self) -> None:
        """Record that a caller's own notification failed: for a while, all go over the notifier's connection."""
        with self._changed:
            self._rests_until = time.monotonic() + REST_SECONDS

    def tend(self, *, closing: bool = False) -> None:
        """Send waiting notifications if they are due, or when closing; read answers; open the connection. For one thread."""
        ends = time.monotonic() + NOTIFY_ANSWER_SECONDS
        while True:
            self._open()
            with self._changed:
                now = time.monotonic()
                if self._hear(now) and (closing or now >= self._last + self._interval):
                    self._say(now)
                self.due = self._next_due(now)
                over = self._connection is None or now >= ends or not (closing and (self._said or self.waiting))
                awaited = None
                late = now >= self._last + HEAR_SECONDS  # the answer is due: the thread would come again at once
                if self._said and (self.waiting or closing or late) and self._connection is not None:
                    awaited = self._connection.pgconn.socket
            if self._full:
                self._leave_word()
            if awaited is not None:
                readable([awaited], HEAR_SECONDS)
            if over:
                return

    def close(self) -> None:
        """Close the connection; unanswered notifications wait again. For the thread of `tend`."""
        with self._changed:
            connection, self._connection = self._connection, None
            self.waiting.update(self._said)
            self._said = []
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _next_due(self, now: float) -> float | None:
        if self.waiting or self._lost:
            return max(now, self._last + self._interval, self._silent_until)
        return self._last + HEAR_SECONDS if self._said else None

    def _open(self) -> None:
        if self._lost:
            self.close()
            self._lost = False
        if self._connection is None and time.monotonic() >= self._silent_until:
            try:
                connection = self._engine.dedicated()
            except (MsgtxError, psycopg.Error) as error:
                log.debug("no listener is told of commits, readers poll: %s", error)
                self._silent_until = time.monotonic() + SPEAK_SECONDS
            else:
                with self._changed:
                    self._connection, self._arriving = connection, Arriving()

    def _say(self, now: float) -> None:
        """Send one notification with all waiting names, unless the answer to the last one is missing. The lock is held."""
        if not self.waiting or not self._hear(now) or self._connection is None:
            return
        said = sorted(self.waiting)[:MOST_TOLD]
        try:
            send_notification(self._connection.pgconn, said)
        except psycopg.Error as error:
            self._lose(str(error))
            return
        self._said = said
        self.waiting.difference_update(said)
        fast = self._commits > 1 and self._commits > FAST * (now - self._last)
        self._interval = min(2 * self._interval, INTERVAL_MOST_SECONDS) if fast else INTERVAL_SECONDS
        self._last, self._commits = now, 0

    def _hear(self, now: float) -> bool:
        """Read the answer to the last notification, if it is there. Returns whether another may go. The lock is held."""
        connection = None if self._lost else self._connection
        if connection is None:
            return False
        raw = connection.pgconn
        try:
            raw.flush()
            raw.consume_input()  # notices a connection that was ended, too
            if (answer := self._arriving.take(raw)) is None:
                if now >= self._last + NOTIFY_ANSWER_SECONDS:
                    self._lose(f"no answer for {NOTIFY_ANSWER_SECONDS:g} s")
                return False
            for result in answer:
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    self._failed(result)
                else:
                    self._in_vain = False
        except psycopg.Error as error:
            self._lose(str(error))
        self._said = []
        return not (self._lost or self._full)

    def _failed(self, result: pq.abc.PGresult) -> None:
        if result.error_field(pq.DiagnosticField.SQLSTATE) == QUEUE_IS_FULL:
            # Some session listens and does not read. No commit fails of that.
            self._full = True
            self.waiting.update(self._said)
        else:
            self._lose(result.error_message.decode(errors="replace"))

    def _lose(self, why: str) -> None:
        log.debug("the connection that notifies was lost: %s", why)
        if self._in_vain and not self._lost:
            self._silent_until = time.monotonic() + SPEAK_SECONDS
        self._lost = self._in_vain = True
        self.waiting.update(self._said)
        self._said = []

    def _leave_word(self) -> None:
        """Leave a row for listeners to find, instead of notifying them."""
        with self._changed:
            connection, self._connection = self._connection, None  # no other thread speaks meanwhile
            waiting, self.waiting = self.waiting, set()
        failure = None
        try:
            if connection is not None:
                tell_readers(connection, sorted(waiting))
        except (MsgtxError, psycopg.Error) as error:
            failure = error
        with self._changed:
            self._connection = connection
            self._full = False
            if connection is None or failure is not None:
                self.waiting.update(waiting)
            if failure is not None:
                self._lose(str(failure))
            self.due = self._next_due(time.monotonic())
