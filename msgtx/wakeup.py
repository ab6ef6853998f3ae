"""How a commit in one process wakes a consumer that waits in another: LISTEN and NOTIFY, one channel per client.

A commit notifies in its own SQL transaction. When commits come faster than readers need, only the first of an interval does,
and a notification of its own follows for the others: no reader depends on another commit coming. Behind a pooler, which
passes no notifications on, readers poll.
"""

import contextlib
import logging
import os
import queue
import select
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Final

from msgtx.database.engine import Engine, RawConnection, query
from msgtx.errors import MsgtxError

log = logging.getLogger("msgtx.wakeup")
INTERVAL_SECONDS: Final = 0.002  # between two notifying commits of one client
MOST_TOLD: Final = 700  # partitions of one notification: PostgreSQL refuses one of 8000 bytes
LATER_SECONDS: Final = 0.004  # until the notification that follows commits which did not notify
POLL_SECONDS: Final = 0.02  # of consumers while no notifications arrive, after the last data
POLL_MOST_SECONDS: Final = 0.1  # and when none came for a while: ten questions a second
RECONNECT_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 30.0  # the idle channel is looked after


class Waiter:
    """A consumer that waits for data on some partitions.

    A queue and not an event: its `put` may interrupt its own `get`, so `wake` may come from a signal handler.
    """

    __slots__ = ("_listener", "_pause", "_waited", "_wakes")

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._pause = POLL_SECONDS
        self._waited = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def watch(self, partition_ids: Iterable[int]) -> None:
        """Be woken for these partitions, and for no others."""
        self._listener.watch(self, map(str, partition_ids))

    def watch_group(self, group_id: int) -> None:
        """Be woken for changes of a group's membership, and for nothing else."""
        self._listener.watch(self, (f"g{group_id}",))

    def clear(self) -> None:
        """Forget earlier wake-ups; call this before looking at the data."""
        if not self._waited:  # what was looked at before was there
            self._pause = POLL_SECONDS
        self._waited = False
        with contextlib.suppress(queue.Empty):
            while True:
                self._wakes.get_nowait()

    def wake(self) -> None:
        """End the wait, now or the next one."""
        self._wakes.put(None)

    def wait(self, seconds: float) -> None:
        """Wait until woken, at most `seconds`; shorter while notifications do not arrive."""
        self._waited = True
        if not self._listener.confirmed:
            seconds = min(seconds, self._pause)
            self._pause = min(2 * self._pause, POLL_MOST_SECONDS)
        self.sleep(seconds)

    def sleep(self, seconds: float) -> bool:
        """Wait until woken, at most `seconds`. Returns whether it was woken."""
        try:
            self._wakes.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            return False
        return True


class Listener:
    """One connection that listens for a whole client. Starts with its first waiter."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._waiters: dict[str, set[Waiter]] = {}  # by the words of a notification: 17 is a partition, g17 a group
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._token = uuid.uuid4().hex
        self._wake_read, self._wake_write = os.pipe()
        self.confirmed = False

    def watch(self, waiter: Waiter, words: Iterable[str]) -> None:
        """Register a waiter for these words instead of its earlier ones."""
        wanted = set(words)
        with self._lock:
            for waiters in self._waiters.values():
                waiters.discard(waiter)
            for word in wanted:
                self._waiters.setdefault(word, set()).add(waiter)
            if wanted and self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="msgtx-listener", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread and its connection."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        os.write(self._wake_write, b".")
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        while not self._stopping:
            try:
                connection = self._engine.dedicated()
            except MsgtxError as error:
                log.debug("no wake-ups: %s", error)
                self._pause()
                continue
            if self._engine.pooled:
                # LISTEN would stay behind in a session that others use, and its notifications would go to them.
                log.debug("no wake-ups behind a pooler: consumers poll")
                connection.close()
                return
            try:
                self._listen(connection)
            except (MsgtxError, OSError) as error:
                log.debug("the wake-up channel was lost: %s", error)
            finally:
                listened, self.confirmed = self.confirmed, False
                connection.close()
                self._wake_all()
            if not listened:
                self._pause()  # a replica, for one, refuses LISTEN each time

    def _pause(self) -> None:
        select.select([self._wake_read], [], [], RECONNECT_SECONDS)

    def _listen(self, connection: RawConnection) -> None:
        # What arrives with the answer to a statement, psycopg has taken off the connection: it hands it to this.
        connection.add_notify_handler(lambda notification: self._notified(notification.payload))
        query(connection, "listen msgtx")
        query(connection, "select pg_catalog.pg_notify('msgtx', %s)", self._token)
        self._wake_all()
        raw = connection.pgconn
        while not self._stopping:
            while (notification := raw.notifies()) is not None:
                self._notified(notification.extra.decode())
            ready, _, _ = select.select([raw.socket, self._wake_read], [], [], CHECK_SECONDS)
            if raw.socket in ready:
                try:
                    raw.consume_input()
                except Exception as error:  # libpq names no class for a lost connection here
                    raise OSError(str(error)) from error
            elif not ready:
                query(connection, "select 1")

    def _notified(self, payload: str) -> None:
        if payload == self._token:
            self.confirmed = True
            self._wake_all()
            return
        with self._lock:
            for word in payload.split(","):
                for waiter in self._waiters.get(word, ()):
                    waiter.wake()

    def _wake_all(self) -> None:
        with self._lock:
            for waiters in self._waiters.values():
                for waiter in waiters:
                    waiter.wake()


class Notifier:
    """Decides which commits of a client notify, and sees to it that the others' readers hear soon."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._last = 0.0
        self.waiting: set[int] = set()
        self.due: float | None = None
        self.sleeping = True  # the thread that takes what is due waits without a limit

    def now(self, partition_ids: list[int]) -> bool:
        """Return whether this commit shall notify by itself; it then does so for earlier ones of these partitions, too."""
        with self._changed:
            at = time.monotonic()
            if at - self._last < INTERVAL_SECONDS:
                return False
            self._last = at
            self.waiting.difference_update(partition_ids)
            if not self.waiting:
                self.due = None
            return True

    def later(self, partition_ids: list[int]) -> None:
        """Have readers of these partitions told within the interval."""
        with self._changed:
            self.waiting.update(partition_ids)
            if self.due is None:
                self.due = time.monotonic() + LATER_SECONDS
                if self.sleeping:
                    self._changed.notify_all()

    def take(self, *, closing: bool) -> str | None:
        """Return what to notify now, None if nothing is due (or waits, when closing). The caller holds the condition."""
        if self.due is None or (time.monotonic() < self.due and not closing):
            return None
        told = sorted(self.waiting)[:MOST_TOLD]
        self.waiting.difference_update(told)
        if not self.waiting:
            self.due = None
        return ",".join(map(str, told)) or None
