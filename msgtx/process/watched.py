"""A watched worker: it reports its transactions and calls of the user's function."""

import functools
import inspect
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar

from msgtx import callbacks
from msgtx.observer import Observer, Observers, log
from msgtx.process.loop import Done, Failed, Work
from msgtx.types import Record

Call = TypeVar("Call", bound=Callable[..., Any])


def watched_call(call: Call, observers: Observers, group: str) -> Call:
    """Return the user's function with the observers around it; its last argument is a record or a list of them."""
    if not observers.each:
        return call

    def around(given: Any) -> _Around:
        return _Around(observers, group, given if isinstance(given, list) else [given])

    if inspect.iscoroutinefunction(call):

        @functools.wraps(call)
        async def awaited(*arguments: Any) -> Any:
            with around(arguments[-1]):
                return await call(*arguments)

        return awaited  # type: ignore[return-value]  # the same but for what is around it

    @functools.wraps(call)
    def called(*arguments: Any) -> Any:
        with around(arguments[-1]):
            return call(*arguments)

    return called  # type: ignore[return-value]


class _Around:
    """The observers' contexts around one call. One that fails is reported, and none changes how the call ends."""

    def __init__(self, observers: Observers, group: str, records: list[Record]) -> None:
        self._observers = observers
        self._group = group
        self._records = records
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        self._observers.tell(self._enter)

    def _enter(self, observer: Observer) -> None:
        block = ExitStack()
        block.enter_context(observer.handling(self._group, self._records))
        self._entered.append(block)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        interrupt = None
        for block in reversed(self._entered):
            raised = callbacks.run(log, "an observer failed", self._observers, block.__exit__, kind, error, at)
            interrupt = raised or interrupt
        if interrupt is not None:
            raise interrupt


def watched(work: Work, observers: Observers, group: str, dead_letter: str | None) -> Work:
    """Return the work of a loop, reported to the observers. `dead_letter`: the topic for records that it gives up on."""
    observers.tell(lambda observer: observer.working(group, dead_letter))
    return _Watched(work, observers, group, dead_letter) if observers.each else work


class _Watched:
    def __init__(self, work: Work, observers: Observers, group: str, dead_letter: str | None) -> None:
        self._work = work
        self._observers = observers
        self._group = group
        self._dead_letter = dead_letter
        self.take_one = work.take_one
        self.start = work.start
        self.idle = work.idle
        self.finish = work.finish
        self.ends = work.ends

    @property
    def chunk(self) -> int:
        return self._work.chunk

    def attempt(self, records: list[Record]) -> Done | Failed:
        return self._told(lambda: self._work.attempt(records), len(records))

    def set_aside(self, record: Record, error: Exception, *, deliveries: int) -> Done | Failed:
        return self._told(lambda: self._work.set_aside(record, error, deliveries=deliveries), 1)

    def _told(self, attempt: Callable[[], Done | Failed], records: int) -> Done | Failed:
        began = time.monotonic()
        try:
            outcome = attempt()
        except Exception as error:
            self._attempted(records, began, error)
            raise
        if isinstance(outcome, Failed):
            self._attempted(records, began, outcome.error)
            return outcome
        self._attempted(outcome.read, began, None)
        if outcome.failed:
            failed = outcome.failed
            self._observers.tell(lambda observer: observer.set_aside(self._group, failed, self._dead_letter))
        return outcome

    def _attempted(self, records: int, began: float, error: Exception | None) -> None:
        seconds = time.monotonic() - began
        self._observers.tell(lambda observer: observer.attempted(self._group, records=records, seconds=seconds, error=error))
