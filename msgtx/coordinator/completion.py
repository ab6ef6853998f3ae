"""What a client does beside the calls: markers in bulk, notifications that were put off, a look at what topics became."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from msgtx.database.engine import Engine, RawConnection, query
from msgtx.errors import MsgtxError
from msgtx.store.transactions import mark
from msgtx.wakeup import LATER_SECONDS, Notifier

log = logging.getLogger("msgtx.coordinator")
AWAKE_SECONDS: Final = 0.1  # without a commit that was put off, before the thread sleeps until it is woken
MARK_SECONDS: Final = 1.0  # between two rounds of markers of one client
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
        self._put_off_at = 0.0  # when a notification was last seen to be put off
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
        """Start the thread, once."""
        with self._changed:
            if self._thread is None and not self._stopping:
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
        while True:
            with self._changed:
                payload, marking = self._wait()
                last = self._stopping
            if payload is not None:
                self._notify(payload)
            if marking:
                self._mark()
            if time.monotonic() >= self._topics_due:
                self._topics_due = time.monotonic() + TOPICS_SECONDS
                self._ask_for_topics()
            if last and not self.notifier.waiting:
                return

    def _wait(self) -> tuple[str | None, bool]:
        while True:
            now = time.monotonic()
            payload = self.notifier.take(closing=self._stopping)
            marking = self._mark_due is not None and (now >= self._mark_due or self._stopping)
            if marking:
                self._mark_due = None
            if payload is not None or marking or self._stopping:
                return payload, marking
            due = [at for at in (self._mark_due, self.notifier.due) if at is not None]
            # While commits are being put off it looks by itself: waking it for each would cost them more than the call.
            self.notifier.sleeping = self.notifier.due is None and now - self._put_off_at > AWAKE_SECONDS
            if not self.notifier.sleeping:
                due.append(now + LATER_SECONDS)
            self._changed.wait(max(0.0, min(due) - now) if due else None)
            if self.notifier.due is not None:
                self._put_off_at = time.monotonic()

    def _notify(self, payload: str) -> None:
        try:
            with self._engine.connection() as connection:
                query(connection, "select pg_catalog.pg_notify('msgtx', %s)", payload)
        except MsgtxError as error:
            log.debug("a notification was lost, readers poll: %s", error)

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
