"""What both kinds of consumer do alike: polls in one piece and in two halves, iterations, reports, and the end."""

import abc
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from msgtx import arguments, units
from msgtx.closing import Closing
from msgtx.config import ConsumerConfig, ShareConsumerConfig
from msgtx.database.connection import until
from msgtx.errors import MsgtxError
from msgtx.observer import Observers
from msgtx.receiving.integrity import Integrity
from msgtx.receiving.poll import Found, Poll, Stopping
from msgtx.receiving.sole_use import SoleUse
from msgtx.receiving.wakeup import Listener, Waiter
from msgtx.types import Record
from msgtx.units import Duration

Config = TypeVar("Config", ConsumerConfig, ShareConsumerConfig)


class Reader(Closing, abc.ABC, Generic[Config, Found]):
    """A consumer of either kind, for one thread. `kind`: its name in refusals."""

    def __init__(self, kind: str, config: Config, listener: Listener, observers: Observers | None) -> None:
        self.config: Config = config
        self.stopping = Stopping()
        self._observers = observers or Observers()
        self._waiter = Waiter(listener)
        self._integrity = Integrity(f"the {kind}")
        self._sole_use = SoleUse(kind)
        self._asked = 0.0  # when the last poll began
        self._takes = False  # it hands out: an exception keeps its records from the caller

    def __repr__(self) -> str:
        group = f"of group {self.config.group!r}" if self.config.group else "without a group"
        return f"<msgtx.{type(self).__name__} {group}{self._reads()}{', closed' if self.closed else ''}>"

    # ── what each kind does in its own way ──

    @abc.abstractmethod
    def _reads(self) -> str:
        """Return what it reads, in words behind a comma."""

    @abc.abstractmethod
    def _look(self, deadline: float, most: int) -> bool:
        """Wait until there are records to return. Return False when time is over, or after `stop`."""

    @abc.abstractmethod
    def _take(self, most: int) -> list[Found]:
        """Return up to `most` records that are there."""

    @abc.abstractmethod
    def _each(self) -> Iterator[Found]:
        """Yield the records that are there."""

    @abc.abstractmethod
    def _finish(self, deadline: float) -> None:
        """Commit what is left to commit, at the end."""

    @abc.abstractmethod
    def _leave(self, deadline: float) -> None:
        """Leave the group, at the end."""

    # ── reading ──

    def begin(self, timeout: Duration = 1.0, max_records: int | None = None) -> Poll[Found]:
        """Return a poll in two halves: one waits, in another thread, and one returns records without waiting."""
        seconds, most = units.wait_seconds("timeout", timeout), self._most(max_records)
        return Poll(partial(self._await_records, seconds, most), partial(self._guarded, self._taken, most), self._each)

    def _most(self, max_records: int | None) -> int:
        if max_records is None:
            return self.config.max_poll_records
        return min(arguments.whole("max_records", max_records, least=1), arguments.LARGEST_INT4)  # what the database takes

    def _polled(self, timeout: Duration, max_records: int | None) -> list[Found]:
        seconds, most = units.wait_seconds("timeout", timeout), self._most(max_records)
        with self._use():
            if not self._await_records(seconds, most):
                self.stopping.heard()  # `stop` ended this poll, not later ones
                return []
            return self._taken(most)

    def _guarded(self, take: Callable[..., list[Found]], *given: Any) -> list[Found]:
        try:
            return take(*given)
        except BaseException as error:
            self._kept_from_the_caller(error)
            raise

    def _kept_from_the_caller(self, error: BaseException) -> None:
        if self._takes:
            self._integrity.raised(error)

    def _await_records(self, timeout: float, most: int) -> bool:
        """Wait until there are records to return. Return False when time is over, or after `stop`."""
        with self._use():
            self._asked, self._takes = time.monotonic(), False
            self._integrity.require()
            try:
                found = self._look(self._asked + timeout, most)
            except MsgtxError as error:
                self._tell_failure(error)
                raise
            if not found:
                self._tell_polled([])
            return found

    def _taken(self, most: int) -> list[Found]:
        self._takes = True
        return self._take(most)

    def __iter__(self) -> Iterator[Found]:
        """Yield records forever, one by one; `stop`, from another thread or a signal handler, ends it."""
        while not self.stopping.asked and not self.closed:
            if self._await_records(1.0, self.config.max_poll_records):
                yield from self._each()
        self.stopping.heard()

    def stop(self) -> None:
        """End an iteration (or the poll that waits now) soon. For another thread or a signal handler, too."""
        self.stopping.asked = True
        self._waiter.wake()

    # ── reports ──

    def _tell_failure(self, error: MsgtxError) -> None:
        self._observers.tell(lambda observer: observer.poll_failed(self.config.group, error))

    def _tell_polled(self, records: Sequence[Record[Any, Any]]) -> None:
        if self._observers.each:
            group, since = self.config.group, self._asked
            self._observers.tell(lambda observer: observer.polled(group))
            if records:
                counts = Counter(record.topic for record in records)
                self._observers.tell(lambda observer: observer.received(group, counts, records, since))

    def _tell_one(self, record: Record[Any, Any]) -> None:
        group = self.config.group
        self._observers.tell(lambda observer: observer.received(group, {record.topic: 1}, (record,), None))

    # ── the end ──

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._sole_use.closed

    def _use(self) -> contextlib.AbstractContextManager[None]:
        return self._sole_use.call()

    def _close(self) -> None:
        """End a poll that waits in another thread, then finish and leave within `request_timeout_ms`."""
        if self.closed or self._sole_use.origin.is_parent:
            return
        self._sole_use.closed = True  # no call begins any more
        self._waiter.wake()
        seconds = self.config.request_timeout_ms / 1000
        deadline = time.monotonic() + seconds
        with contextlib.ExitStack() as block:
            try:
                block.enter_context(self._sole_use.close(seconds))
                with until(deadline):
                    self._finish(deadline)
            finally:
                self._waiter.watch(())
                self._leave(deadline)
