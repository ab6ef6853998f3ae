"""The events of a client, for observers such as `msgtx.metrics` and `msgtx.otel`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from msgtx import callbacks
from msgtx.types import Record

log = logging.getLogger("msgtx.observer")
Ended = Literal["committed", "aborted"]


class Observer:
    """An observer of a client's producers, consumers and workers. From any thread; it does not wait."""

    def made(self, user: Any) -> None:
        """Take note of a new producer or consumer."""

    def batch_settled(
        self, topic: str, *, records: int, size: int, seconds: float, retries: int, error: BaseException | None
    ) -> None:
        """Take note of a batch that is stored, or failed; `seconds`: since its first record, `size`: in bytes."""

    def transaction_ended(self, producer: object, outcome: Ended, seconds: float) -> None:
        """Take note of the end of a transaction; `seconds`: that the commit or the abort took."""

    def transaction_failed(self, producer: object, error: Exception) -> None:
        """Take note of a commit, an abort or another end that raised."""

    def polled(self, group: str | None) -> None:
        """Take note of a poll that ended, with records or without."""

    def received(self, group: str | None, counts: Mapping[str, int], records: Sequence[Record], since: float | None) -> None:
        """Record the returned records, `counts` by topic.

        `since`: by `time.monotonic`, when a poll asked for them; None: they are iterated.
        """

    def poll_failed(self, group: str | None, error: Exception) -> None:
        """Take note of a poll that raised."""

    def working(self, group: str, dead_letter: str | None) -> None:
        """Record a new worker; `dead_letter`: the topic for records that it gives up on."""

    def handling(self, group: str, records: Sequence[Record]) -> AbstractContextManager[object]:
        """Return a context for a worker's call of the user's function."""
        return nullcontext()

    def attempted(self, group: str, *, records: int, seconds: float, error: Exception | None) -> None:
        """Take note of a worker's transaction; `error`: why nothing is left of it."""

    def waiting(self, group: str, change: int) -> None:
        """Take note that so many more of a worker's partitions wait for a record that fails; fewer, if it is below 0."""

    def set_aside(self, group: str, records: int, dead_letter: str | None) -> None:
        """Take note of records that a worker left out, or sent to the topic `dead_letter`."""


class Observers:
    """The observers of a client. Without any, a report costs a look at an empty tuple."""

    def __init__(self) -> None:
        self.each: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        """Add an observer of later work. One that is there already is told once."""
        if observer not in self.each:
            self.each = (*self.each, observer)

    def remove(self, observer: Observer) -> None:
        """Remove an observer."""
        self.each = tuple(each for each in self.each if each is not observer)

    def tell(self, what: Callable[[Observer], object], owner: object = None) -> None:
        """Tell each of them. A failure of one is reported, and does no harm to the observed work.

        `owner`: whose thread this may be, as `callbacks.run` has it; by default nobody's but the caller's.
        """
        interrupt = None
        for observer in self.each:
            interrupt = callbacks.run(log, "an observer failed", owner or self, what, observer) or interrupt
        if interrupt is not None:
            raise interrupt
