"""A worker that is watched: what it tells of its transactions, and of the user's function."""

import functools
import inspect
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from msgtx.observer import Observers
from msgtx.process.loop import Done, Failed, Work
from msgtx.types import Record

Call = TypeVar("Call", bound=Callable[..., Any])


def watched_call(call: Call, observers: Observers, group: str) -> Call:
    """Return the user's function with the observers around it; its last argument is a record or a list of them."""
    if not observers.each:
        return call

    def around(given: Any) -> ExitStack:
        records = given if isinstance(given, list) else [given]
        stack = ExitStack()
        observers.tell(lambda observer: stack.enter_context(observer.handling(group, records)))
        return stack

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


def watched(work: Work, observers: Observers, group: str, dead_letter: str | None) -> Work:
    """Return the work of a loop, told of to the observers."""
    observers.tell(lambda observer: observer.working(group, dead_letter))
    return _Watched(work, observers, group, dead_letter) if observers.each else work


class _Watched:
    def __init__(self, work: Work, observers: Observers, group: str, dead_letter: str | None) -> None:
        self._work = work
        self._observers = observers
        self._group = group
        self._dead_letter = dead_letter
        self.take_one = work.take_one
        self.passes = work.passes

    @property
    def chunk(self) -> int:
        return self._work.chunk

    def attempt(self, records: list[Record]) -> Done | Failed:
        return self._told(lambda: self._work.attempt(records), len(records))

    def set_aside(self, record: Record, error: Exception) -> Done | Failed:
        return self._told(lambda: self._work.set_aside(record, error), 1)

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
