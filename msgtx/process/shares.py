"""The loop of a worker of a share group: it answers for each record by itself (internals: share-answers#workers)."""

import concurrent.futures
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Final

from msgtx.background import BackgroundThread
from msgtx.errors import InvalidRecordState, ThreadNotStarted, TransactionConflict, UnknownMember
from msgtx.executor import Threads
from msgtx.observer import Observers
from msgtx.process.loop import (
    POLL_SECONDS,
    RETRIES_IN_A_ROW,
    RETRY_SECONDS,
    Ending,
    Failed,
    Work,
    pause,
    place_of,
    reason_of,
)
from msgtx.process.worker import Worker
from msgtx.producer.producer import Transaction
from msgtx.session.answers import Answers
from msgtx.session.enlistment import UserSession
from msgtx.settings import OnCommit, Stop, StopSignal
from msgtx.shares.rides import ShareRide
from msgtx.shares.share_consumer import ShareConsumer
from msgtx.store.shares.answers import OffsetRange
from msgtx.types import Acknowledgement, ProcessReport, ShareRecord

log = logging.getLogger("msgtx.process")
LOOK_AT_WORK_SECONDS: Final = 0.5  # until it sees that the work is another one, whose locks may be shorter
RENEWED_SECONDS: Final = 3600.0  # how long a call keeps its records at most: a longer one hangs, and others try them
NOT_HELD: Final = (InvalidRecordState, TransactionConflict, UnknownMember)  # others have the record, or will


@dataclass(slots=True)
class Part:
    """A member, and the records of its transaction that is under way.

    `dead_letters`: the topic of the records that it rejects.
    """

    consumer: ShareConsumer
    dead_letters: str | None = None
    records: Sequence[ShareRecord] = ()

    def riding(self, session: UserSession, refusal: str) -> contextlib.AbstractContextManager[ShareRide]:
        """Have the session's commit accept them."""
        return self.consumer.rides.accepting(session, self.records, refusal)

    def ride(self, transaction: Transaction) -> None:
        """Have the transaction accept them."""
        transaction.send_acknowledgements(self)

    def transaction_answers(self) -> Answers | None:
        """Accept them."""
        return self.consumer.answering.accepting(self.records)

    def undo(self, *, release: bool) -> None:
        """Do nothing: the loop tries them again, before it polls."""

    def keeping(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: they are this member's."""
        return contextlib.nullcontext()

    def more(self, timeout: float, most: int) -> list[ShareRecord]:
        """Return none: a transaction has the records that it began with."""
        return []


def run_shared(part: Part, work: Work, worker: Worker, observers: Observers) -> ProcessReport:
    """Run the loop until the worker is stopped, or until nothing came for its `idle_timeout`.

    A passing failure is tried again at once, a hundred times in a row. A record on which the user's function fails is
    answered for by itself, as the worker's `failure` says; the others are done without it. Locks are renewed as long as it
    takes, up to an hour.
    """
    assert worker.stop is not None
    stop, idle_timeout = worker.stop, worker.idle_timeout
    loop = _Loop(part, work, worker, stop, observers)
    last_input = time.monotonic()
    with _Renewing(part.consumer) as renewing:
        while not stop.is_set():
            wait = POLL_SECONDS if idle_timeout is None else min(POLL_SECONDS, idle_timeout)
            if records := part.consumer.poll(wait, work.chunk) if renewing.starts(wait) else []:
                renewing.take_over()
                loop.handle(records)
                last_input = time.monotonic()
            elif idle_timeout is not None and time.monotonic() - last_input >= idle_timeout:
                break
    return loop.report


class _Renewing:
    """Renews the locks of the records that a member works on, in a thread, before two thirds of their time are over."""

    def __init__(self, consumer: ShareConsumer) -> None:
        self._consumer = consumer
        self._work: Sequence[OffsetRange] = ()
        self._seen: Sequence[OffsetRange] = ()  # by the thread
        self._left: list[OffsetRange] = []
        self._until = self._due = 0.0
        self._over = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = BackgroundThread(
            "msgtx-renewing", self._live, what=f"renewing locks of share group {consumer.config.group!r}"
        )

    def starts(self, seconds: float) -> bool:
        """Start the thread unless it runs. Return False after `seconds` if the system gives none: then nothing is polled."""
        try:
            self._thread.start()
        except ThreadNotStarted as error:
            log.warning("%s", error)
            time.sleep(seconds)
            return False
        return True

    def take_over(self) -> None:
        """Work on the records of the last poll."""
        if not self._work:  # how long a lock lasts is known now
            self._wakes.put(None)
        self._work = self._consumer.waiting_records.handed_out

    def _live(self) -> None:
        while not self._over:
            with contextlib.suppress(queue.Empty):
                self._wakes.get(
                    timeout=min(
                        LOOK_AT_WORK_SECONDS, self._consumer.waiting_records.lock_seconds / 3 or LOOK_AT_WORK_SECONDS
                    )
                )
            now = time.monotonic()
            third = self._consumer.waiting_records.lock_seconds / 3
            if self._work is not self._seen:
                self._seen = self._work
                self._left, self._until, self._due = list(self._seen), now + RENEWED_SECONDS, now + third
            elif self._left and self._due <= now < self._until:
                self._left = self._consumer.answering.renew(self._left)
                self._due = now + third  # not reached after a failure: it is due at once

    def __enter__(self) -> "_Renewing":
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.stop()
        self._wakes.put(None)
        self._thread.join()


@dataclass(slots=True)
class _Loop:
    part: Part
    work: Work
    worker: Worker
    stop: StopSignal
    observers: Observers
    report: ProcessReport = field(default_factory=ProcessReport)
    started: float = field(default_factory=time.monotonic)
    in_a_row: int = 0

    def handle(self, records: list[ShareRecord]) -> None:
        """Process the polled records, in as many transactions as it takes; after `stop` the rest is left for others."""
        parts = deque([records])
        while parts and not self.stop.is_set():
            parts.extendleft(reversed(self._do(parts.popleft())))

    def _do(self, records: list[ShareRecord]) -> list[list[ShareRecord]]:
        """Do these in one transaction. Return the records that are still to be done."""
        self.part.records = records
        try:
            outcome = self.work.attempt([*records])
        except NOT_HELD as error:
            self._aborted()
            log.debug("%s: not held any more", place_of(records), exc_info=error)
            return _halves(records)
        except Exception as error:
            self.in_a_row += 1
            if not self.work.passes(error) or self.in_a_row > RETRIES_IN_A_ROW:
                error.add_note(f"at {place_of(records)}; the transaction was rolled back, and they are delivered again")
                raise
            self._aborted()
            log.debug("%s: tried again", place_of(records), exc_info=error)
            pause(min(RETRY_SECONDS * self.in_a_row, 1.0), self.stop)
            return [held] if (held := self.part.consumer.holdings.of(records)) else []
        if isinstance(outcome, Failed):
            self._aborted()
            if isinstance(self.worker.failure, Stop):
                outcome.error.add_note(
                    f"failed on {place_of(outcome.records)}; its transaction was rolled back, and it is delivered again"
                )
                raise outcome.error
            if len(outcome.records) > 1:
                return _halves(records)
            at = next(at for at, record in enumerate(records) if record is outcome.records[0])
            self._give_back(records[at], outcome.error)
            return [rest for rest in (records[:at], records[at + 1 :]) if rest]
        self.in_a_row = 0
        self._count(transactions=1, records_in=outcome.read, records_out=outcome.written)
        return []

    def _give_back(self, record: ShareRecord, error: Exception) -> None:
        consumer, answer = self.part.consumer, self.worker.failure
        assert isinstance(answer, Acknowledgement)
        dies = answer is Acknowledgement.REJECT
        try:
            consumer.acknowledge(record, answer, reason=reason_of(error))
            consumer.commit()
        except NOT_HELD as late:
            log.debug("%s: not held any more", place_of([record]), exc_info=late)
            return
        log.warning("%s: %s; %s", place_of([record]), reason_of(error), "a dead letter" if dies else "delivered again")
        if dies:
            group, letters = consumer.config.group, self.part.dead_letters
            self.observers.tell(lambda observer: observer.set_aside(group, 1, letters))
            self._count(records_in=1, failed=1)

    def _aborted(self) -> None:
        self.report = replace(self.report, aborted=self.report.aborted + 1)

    def _count(self, **counts: int) -> None:
        more = ProcessReport(**counts)
        self.report = replace(total([self.report, more]), seconds=time.monotonic() - self.started)
        if self.worker.on_commit is not None:
            self.worker.on_commit(self.report)


def _halves(records: list[ShareRecord]) -> list[list[ShareRecord]]:
    """Divide records in two parts, to find those that spoil the transaction; of a single one nothing is left."""
    middle = len(records) // 2
    return [records[:middle], records[middle:]] if middle else []


def together(member: Callable[[int, OnCommit | None], ProcessReport], worker: Worker, ending: Ending) -> ProcessReport:
    """Run a worker's members, each in a thread, and return their results. When one raises, the others end; then raise it.

    Each member gets its number, from 1 on.
    """
    count, on_commit = worker.share_members or 1, worker.on_commit
    if count == 1:
        return member(1, on_commit)
    latest = [ProcessReport()] * count
    lock = threading.Lock()

    def told(at: int) -> OnCommit:
        def note(report: ProcessReport) -> None:
            with lock:
                latest[at] = report
                if on_commit is not None:
                    on_commit(total(latest))

        return note

    threads = Threads(count, name="msgtx-worker")
    try:
        running = [_begun(threads, partial(member, at + 1, told(at))) for at in range(count)]
        for one in concurrent.futures.as_completed(running):
            one.result()
    except BaseException:
        ending.ask()
        raise
    finally:
        threads.shutdown(wait=True)
    return total([one.result() for one in running])


def _begun(
    threads: concurrent.futures.Executor, member: Callable[[], ProcessReport]
) -> "concurrent.futures.Future[ProcessReport]":
    try:
        return threads.submit(member)
    except ThreadNotStarted as error:
        raise ThreadNotStarted(
            f"a worker needs a thread, and the system gives none ({error}): lower share_members"
        ) from error


def total(reports: Sequence[ProcessReport]) -> ProcessReport:
    """Return reports of workers as one; `seconds` are the longest."""
    sums = {each.name: sum(getattr(one, each.name) for one in reports) for each in fields(ProcessReport)}
    return ProcessReport(**sums | {"seconds": max((one.seconds for one in reports), default=0.0)})
