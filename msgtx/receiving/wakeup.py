"""How a commit in one process wakes a consumer that waits in another: LISTEN and NOTIFY, one channel per client.

No SQL transaction that is flushed notifies: PostgreSQL would let one at a time through, flush included. A client
notifies after its commits (`coordinator.notifier`). A COMMIT without a client, as of SQL's `msgtx.publish`, leaves a
row that listeners look for. If a client dies in between, readers wait until they look by themselves
(`fetch_max_wait_ms`). Through a pooler, which passes no notifications on, readers poll.
"""

import contextlib
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Final

from msgtx.background import BackgroundThread
from msgtx.database.calls import LISTEN, query
from msgtx.database.connection import RawConnection, until
from msgtx.database.pool import Engine
from msgtx.database.translation import translated
from msgtx.database.wire import Arriving, readable
from msgtx.errors import AuthorizationFailed, ThreadNotStarted
from msgtx.store.fetch.wakeups import look, notify, prepare_looks, remove_wake_ups, seen

log = logging.getLogger("msgtx.receiving.wakeup")
LOOK_FOR_COMMITS_SECONDS: Final = 0.1  # between two looks: nearly a millisecond of an idle machine
LOOK_SOON_SECONDS: Final = 0.005  # and while it concerns waiters of this client
LOOK_SOON_FOR_SECONDS: Final = 1.0  # after it did the last time
MOST_HEARD: Final = 100  # notifications parsed at once; of more, it only counts that they came
REMOVE_SECONDS: Final = 60.0  # between two removals of seen rows
POLL_LEAST_SECONDS: Final = 0.02  # of consumers while no notifications arrive, after the last data
POLL_MOST_SECONDS: Final = 0.1  # and when none came for a while: ten questions a second
RECONNECT_SECONDS: Final = 1.0
REFUSED_SECONDS: Final = 30.0  # to a role that may not consume, and so waits for nothing: a right may be granted later
LISTEN_ANSWER_SECONDS: Final = 10.0  # for its few words: without it readers poll; `close` waits for it


class Waiter:
    """A consumer that waits for data on some partitions.

    A queue and not an event: its `put` may interrupt its own `get`, so `wake` may come from a signal handler.
    """

    __slots__ = ("_listener", "_named", "_pause", "_waited", "_wakes")

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._pause = POLL_LEAST_SECONDS
        self._waited = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._named: set[str | None] = set()  # partitions that wake-ups named and nobody has looked at yet

    def watch(self, partition_ids: Iterable[int]) -> None:
        """Be woken for these partitions, and for no others."""
        self._listener.watch(self, map(str, partition_ids))

    def watch_group(self, group_id: int) -> None:
        """Be woken for changes of a group's membership, and for nothing else."""
        self._listener.watch(self, (f"g{group_id}",))

    def clear(self) -> set[int] | None:
        """Forget earlier wake-ups; call this before looking at the data. Returns the partitions they named; None: any."""
        if not self._waited:  # rows that were looked at before were visible
            self._pause = POLL_LEAST_SECONDS
        self._waited = False
        with contextlib.suppress(queue.Empty):
            while True:
                self._wakes.get_nowait()
        # After the queue: a thread that named a partition before found an entry there, and added none.
        named = set()
        while self._named:
            named.add(self._named.pop())
        return {int(word) for word in named if word is not None} if None not in named else None

    @property
    def notified(self) -> bool:
        """Whether notifications arrive: partitions that they do not name have nothing new."""
        return self._listener.confirmed

    def wake(self, word: str | None = None) -> None:
        """End the wait, now or the next one. However often: a consumer may look late, or never."""
        self._named.add(word)
        if self._wakes.empty():
            self._wakes.put(None)

    def wait(self, seconds: float) -> None:
        """Wait until woken, at most `seconds`; shorter while notifications do not arrive."""
        self._waited = True
        if not self._listener.confirmed:
            self._listener.start()  # it may have died, or there was no thread for it
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
        self._wanted = False  # somebody has waited
        self._listened = False
        self._thread = BackgroundThread("msgtx-listener", self._run, what="listening for wake-ups", pause=self._pause)
        self._token = uuid.uuid4().hex
        self._wake_read, self._wake_write = os.pipe()
        self.confirmed = False

    def watch(self, waiter: Waiter, words: Iterable[str]) -> None:
        """Register a waiter for these words instead of its earlier ones."""
        wanted = set(words)
        with self._lock:
            for word in [word for word, waiters in self._waiters.items() if waiter in waiters]:
                self._waiters[word].discard(waiter)
                if not self._waiters[word]:
                    del self._waiters[word]
            for word in wanted:
                self._waiters.setdefault(word, set()).add(waiter)
            self._wanted = self._wanted or bool(wanted)
        self.start()

    def start(self) -> None:
        """Start the thread if somebody waits and it does not run. While the system gives none, readers poll."""
        if self._wanted and not self._stopping and not self._thread.lives:
            try:
                self._thread.start()
            except ThreadNotStarted as error:
                log.debug("no wake-ups: %s", error)

    def close(self) -> None:
        """End the thread and its connection."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        self._thread.stop()
        os.write(self._wake_write, b".")
        if self._thread.join(2 * LISTEN_ANSWER_SECONDS):  # else it uses them
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _run(self) -> None:
        while not self._stopping:
            self._listened = False
            with until(time.monotonic() + LISTEN_ANSWER_SECONDS):
                connection = self._engine.dedicated()
            if self._engine.pooled:
                # LISTEN would stay behind in a session that others use, and its notifications would go to them.
                log.debug("no wake-ups behind a pooler: consumers poll")
                connection.close()
                return
            try:
                with until(silence=LISTEN_ANSWER_SECONDS), translated(connection):
                    self._listen(connection)
            finally:
                self._listened, self.confirmed = self.confirmed, False
                connection.close()
                self._wake_all()

    def _pause(self, error: BaseException) -> float:
        """Return the seconds until the next connection, after this error. A replica, for one, refuses LISTEN each time."""
        if isinstance(error, AuthorizationFailed):
            return REFUSED_SECONDS
        return 0.0 if self._listened else RECONNECT_SECONDS

    def _listen(self, connection: RawConnection) -> None:
        # psycopg passes notifications here that arrived with the answer to a statement.
        heard: list[str] = []
        connection.add_notify_handler(lambda notification: heard.append(notification.payload))
        query(connection, LISTEN)
        snapshot = prepare_looks(connection)
        notify(connection, self._token)
        self._wake_all()
        raw = connection.pgconn
        looked = removed = time.monotonic()
        looking, arriving = False, Arriving()
        soon_until = 0.0
        while not self._stopping:
            while (notification := raw.notifies()) is not None:
                heard.append(notification.extra.decode())
            self._take(heard)
            now = time.monotonic()
            if looking and (answer := arriving.take(raw)) is not None:
                looking = False
                snapshot, words = seen(answer)
                if words is not None and self._wake(words):
                    soon_until = now + LOOK_SOON_FOR_SECONDS
                if words is not None and now - removed > REMOVE_SECONDS:
                    removed = now
                    remove_wake_ups(connection)
            next_look = looked + (LOOK_SOON_SECONDS if now < soon_until else LOOK_FOR_COMMITS_SECONDS)
            if not looking and now >= next_look:
                look(raw, snapshot)
                looking, looked = True, now
            wait = looked + LISTEN_ANSWER_SECONDS if looking else next_look
            ready = readable([raw.socket, self._wake_read], wait - now)
            if raw.socket in ready:
                raw.consume_input()
            elif looking and time.monotonic() >= wait:
                raise OSError(f"no answer for {LISTEN_ANSWER_SECONDS:g} s")

    def _take(self, heard: list[str]) -> None:
        """Wake whom these notifications concern. The channel is open to every login: a flood of them costs little."""
        if self._token in heard:
            self.confirmed = True
            self._wake_all()
        if len(heard) > MOST_HEARD:
            self._wake_all()
            time.sleep(LOOK_SOON_SECONDS)
        else:
            for payload in heard:
                self._wake(payload)
        heard.clear()

    def _wake(self, words: str) -> bool:
        """Wake the waiters of these words. Returns whether there are any."""
        found = False
        with self._lock:
            for word in words.split(","):
                for waiter in self._waiters.get(word, ()):
                    waiter.wake(word)
                    found = True
        return found

    def _wake_all(self) -> None:
        with self._lock:
            for waiters in self._waiters.values():
                for waiter in waiters:
                    waiter.wake()
