"""The loop of a worker of a share group: it answers for each record by itself (internals: share-answers#workers)."""

import concurrent.futures
import contextlib
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Final

from msgtx.background import BackgroundThread
from msgtx.database.faults import AGAIN, fault_of
from msgtx.ending import Ending
from msgtx.errors import InvalidRecordState, MsgtxError, ThreadNotStarted, TransactionConflict, UnknownMember
from msgtx.executor import Threads
from msgtx.observer import Observers
from msgtx.pauses import POLL_SECONDS, pause
from msgtx.process.failures import Failures, Patience, back_off, waits
from msgtx.process.loop import Done, Failed, Work
from msgtx.process.places import letter_in, place_of, reason_of
from msgtx.process.worker import Worker
from msgtx.producer.producer import Transaction
from msgtx.session.answers import Answers
from msgtx.session.enlistment import UserSession
from msgtx.settings import OnCommit, Stop
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

    `end_of_deliveries`: asks for the group's `delivery_count_limit`, and for the topic of its dead letters.
    """

    consumer: ShareConsumer
    end_of_deliveries: Callable[[], tuple[int, str]] = lambda: (0, "")
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


def run_shared(
    part: Part,
    work: Work,
    worker: Worker,
    *,
    patience: Patience,
    failures: Failures,
    observers: Observers,
    start: Callable[[], None],
) -> ProcessReport:
    """Run the loop until the worker is stopped, or until nothing came for its `idle_timeout`.

    A passing failure is tried again at once. A record on which the user's function fails is answered for by itself, as the
    worker's `failure` says; the others are done without it. Locks are renewed as long as it takes, up to an hour. In an
    outage of the database the worker waits. `start`: prepares the work; it is called again after an outage.
    """
    with _Renewing(part.consumer) as renewing:
        return _Loop(part, work, worker, patience, failures, observers, renewing).run(start)


class _Renewing:
    """Renews the locks of the records that a member works on, in a thread, before two thirds of their time are over."""

    def __init__(self, consumer: ShareConsumer) -> None:
        self._consumer = consumer
        self._work: Sequence[OffsetRange] = ()
        self._seen: Sequence[OffsetRange] = ()  # by the thread
        self._left: list[OffsetRange] = []
        self._until = self._due = 0.0
        self._began = self._over = False
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
        if not self._began:  # how long a lock lasts is known now
            self._began = True
            self._wakes.put(None)
        self._work = self._consumer.waiting_records.handed_out

    def rest(self) -> None:
        """Renew nothing: the records are done. If a failover has lost that, their locks must expire."""
        self._work = ()

    def extend(self) -> None:
        """Renew for another hour."""
        self._until = time.monotonic() + RENEWED_SECONDS

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


@dataclass(slots=True, eq=False)
class _Loop:
    part: Part
    work: Work
    worker: Worker
    patience: Patience
    failures: Failures
    observers: Observers
    renewing: _Renewing
    report: ProcessReport = field(default_factory=ProcessReport)
    started: float = field(default_factory=time.monotonic)
    parts: deque[list[ShareRecord]] = field(default_factory=deque)  # the polled records that are left, by transactions
    ends: bool = False  # by what a record's function has raised
    halts: int = 0  # failures in a row that are no record's fault
    last_input: float = field(default_factory=time.monotonic)
    counted: bool = False

    def run(self, start: Callable[[], None]) -> ProcessReport:
        stop, prepare, goes_on = self.worker.stop, start, True
        try:
            while goes_on and not (stop is not None and stop.is_set()):
                self.counted = False
                try:
                    prepare()
                    prepare = _nothing
                    goes_on = self._turn()
                except NOT_HELD as error:
                    if self.ends or not self.parts:
                        raise
                    self._not_held(error)
                except Exception as error:
                    if self.ends:
                        raise
                    self._passes(error, starts=prepare is start)
                    prepare = start if prepare is start else self._finish
                if self.counted and self.worker.on_commit is not None:
                    self.worker.on_commit(self.report)
        finally:
            self.failures.waiting(self, 0)
            self.patience.answered()
        return self.report

    def _turn(self) -> bool:
        """Do one transaction. Return False when nothing came for `idle_timeout`."""
        if self.parts:
            self._do(self.parts[0])
            self.last_input = time.monotonic()
            return True
        self.renewing.rest()
        idle_timeout = self.worker.idle_timeout
        wait = POLL_SECONDS if idle_timeout is None else min(POLL_SECONDS, idle_timeout)
        if records := self.part.consumer.poll(wait, self.work.chunk) if self.renewing.starts(wait) else []:
            self.renewing.take_over()
            self.parts.append(records)
            return True
        self.work.idle()
        self._answered()
        return idle_timeout is None or time.monotonic() - self.last_input < idle_timeout

    def _do(self, records: list[ShareRecord]) -> None:
        """Do these in one transaction."""
        self.part.records = records
        outcome = self.work.attempt([*records])
        if isinstance(outcome, Failed):
            self._failed(outcome, records)
            return
        self.parts.popleft()
        self.failures.succeeded()
        self._done(outcome)

    def _done(self, outcome: Done) -> None:
        self._answered()
        self._count(transactions=1, records_in=outcome.read, records_out=outcome.written)

    def _answered(self) -> None:
        self.halts = 0
        self.failures.waiting(self, 0)
        self.patience.answered()

    def _failed(self, outcome: Failed, records: list[ShareRecord]) -> None:
        """Answer for the record on which the function failed. Raise if the worker ends."""
        self._aborted()
        error = outcome.error
        if isinstance(self.worker.failure, Stop):
            error.add_note(
                f"failed on {place_of(outcome.records)}; its transaction was rolled back, and it is delivered again"
            )
            self.ends = True
            raise error
        if waits(error):
            self._halt(error)
            return
        self.parts.popleft()
        if len(outcome.records) > 1:
            self.parts.extendleft(reversed(_halves(records)))
            return
        at = next(at for at, record in enumerate(records) if record is outcome.records[0])
        rest = [part for part in (records[:at], records[at + 1 :]) if part]
        if not self.failures.gives_up(records[at]):
            self.parts.extendleft(reversed([records[at : at + 1], *rest]))
            self._halt(error)
            return
        self.parts.extendleft(reversed(rest))
        self._give_back(records[at], error)

    def _give_back(self, record: ShareRecord, error: Exception) -> None:
        consumer, answer = self.part.consumer, self.worker.failure
        assert isinstance(answer, Acknowledgement)
        try:
            consumer.acknowledge(record, answer, reason=reason_of(error))
            while not self._committed():
                if self.worker.stop is not None and self.worker.stop.is_set():
                    return
        except NOT_HELD as late:
            log.debug("%s: not held any more", place_of([record]), exc_info=late)
            return
        limit, letters = self._end_of_deliveries()
        dies = answer is Acknowledgement.REJECT or record.delivery_count >= limit
        then = "delivered again"
        if dies:
            then = f"becomes a dead letter {letter_in(record, letters)}"
            if answer is not Acknowledgement.REJECT:
                then = f"delivered {record.delivery_count} times, the last permitted; {then}"
            log.warning("%s: %s; %s", place_of([record]), reason_of(error), then)
            group = consumer.config.group
            self.observers.tell(lambda observer: observer.set_aside(group, 1, letters))
            self._count(records_in=1, failed=1)
        else:
            self.failures.tell(place_of([record]), error, then)

    def _end_of_deliveries(self) -> tuple[float, str]:
        try:
            return self.part.end_of_deliveries()
        except MsgtxError as error:  # the record is answered for; only the log knows less
            log.debug("share group %r: %s", self.worker.group, error)
            return math.inf, "the group's topic"

    def _committed(self) -> bool:
        """Send the answer. Return False after an outage of a moment: it is sent again."""
        try:
            self.part.consumer.commit()
        except NOT_HELD:
            raise
        except MsgtxError as error:
            if fault_of(error) not in AGAIN:
                raise
            self.patience.failed(error)
            return False
        return True

    def _not_held(self, error: Exception) -> None:
        """Divide the records, to find those that others have by now."""
        records = self.parts.popleft()
        self._aborted()
        log.debug("%s: not held any more", place_of(records), exc_info=error)
        self.parts.extendleft(reversed(_halves(records)))

    def _passes(self, error: Exception, *, starts: bool) -> None:
        """Wait for what has to pass. Raise an error that does not."""
        place = place_of(self.parts[0]) if self.parts else ""
        if place:
            self._aborted()
        if not self.patience.passes(error, place, "and they are delivered again", starts=starts, ends=self.work.ends(error)):
            self._halt(error)
        self.last_input = time.monotonic()

    def _halt(self, error: Exception) -> None:
        """Wait for somebody to act: no record is at fault. The member keeps its records."""
        self.halts += 1
        seconds = back_off(self.halts)
        place = place_of(self.parts[0]) if self.parts else f"share group {self.worker.group!r}"
        self.failures.waiting(self, 1)
        self.failures.tell(place, error, f"no record is at fault, the worker waits; tried again in {seconds:g} s")
        self.renewing.extend()
        pause(seconds, self.worker.stop)

    def _finish(self) -> None:
        """End the open transaction after a failure. Keep the records at hand whose locks this member still has."""
        if (done := self.work.finish()) is not None:
            self._done(done)
        if self.parts:
            held = self.part.consumer.holdings.of(self.parts.popleft())
            self.parts.extendleft([held] if held else [])

    def _aborted(self) -> None:
        self.report = replace(self.report, aborted=self.report.aborted + 1)

    def _count(self, **counts: int) -> None:
        self.counted = True
        self.report = replace(total([self.report, ProcessReport(**counts)]), seconds=time.monotonic() - self.started)


def _nothing() -> None:
    """Prepare nothing."""


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
