"""The loop of every worker: it polls, has each batch done in a transaction, and goes back when that failed."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from msgtx.consumer.consumer import Consumer
from msgtx.errors import fresh
from msgtx.pauses import POLL_SECONDS, pause
from msgtx.process.failures import Failures, Patience, back_off, waits
from msgtx.process.places import place_of
from msgtx.process.words import Partitions, tell_end
from msgtx.process.worker import Worker
from msgtx.settings import Stop
from msgtx.types import MemberDescription, ProcessReport, Record, TopicPartition

log = logging.getLogger("msgtx.process")
RETRIES: Final = 3  # of `process_into`: of a record before it is set aside: a hiccup of another service is over by then


@dataclass(frozen=True, slots=True)
class Done:
    """A transaction that was committed. `failed`: records that were left out of it, or are dead letters in it."""

    read: int
    written: int
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """An aborted transaction, and the records at which the user's function failed. `alone`: it held one."""

    error: Exception
    records: Sequence[Record]
    alone: bool


class Work(Protocol):
    """The work that a worker does on records."""

    @property
    def chunk(self) -> int:
        """How many it is given at most."""

    def start(self) -> None:
        """Prepare in the database what the work needs. It is called again after an outage."""

    def attempt(self, records: list[Record]) -> Done | Failed:
        """Do these in one transaction, with their offsets. An exception undoes it whole, too."""
        ...

    def set_aside(self, record: Record, error: Exception, *, deliveries: int) -> Done | Failed:
        """Pass a record that fails. `deliveries`: how often it was tried by itself."""
        ...

    def take_one(self) -> None:
        """Have the next transaction hold one record; later ones hold more and more."""
        ...

    def idle(self) -> None:
        """Raise the error that has ended this work, where no records come that would meet it."""

    def finish(self) -> Done | None:
        """End the transaction whose end was not answered. Return it if it is committed."""

    def ends(self, error: Exception) -> bool:
        """Return whether no further attempt of this worker can succeed."""
        ...


@dataclass(slots=True, eq=False)
class Loop:
    """The loop of one worker of a consumer group.

    A passing failure is tried again at once. A record on which the user's function fails is tried alone, as often as the
    worker retries. Its partition waits for it, the others go on. In an outage of the database the worker waits.
    """

    consumer: Consumer
    work: Work
    worker: Worker
    patience: Patience
    failures: Failures
    members: Callable[[], Sequence[MemberDescription]]  # asks for those of the group
    report: ProcessReport = field(default_factory=ProcessReport)
    _started: float = field(default_factory=time.monotonic)
    _idle_since: float | None = None  # the first poll in a row that brought nothing
    _halts: int = 0  # failures in a row of the installation, without records
    _records: list[Record] = field(default_factory=list)  # those at hand
    _counted: bool = False
    _ends: bool = False  # by what a record's function has raised

    def run(self, start: Callable[[], None]) -> ProcessReport:
        """Run the loop until the worker is stopped, or until nothing came for its `idle_timeout`.

        `start`: prepares the work and the consumer. It is called again after an outage.
        """
        stop, trials, prepare = self.worker.stop, _Trials(self.consumer, self.failures, self.worker), start
        self.consumer.committing.commit_starts()  # else, with `latest`, the next process would skip records before it
        goes_on, partitions = True, Partitions(self.worker.group, self.members)
        try:
            while goes_on and not (stop is not None and stop.is_set()):
                self._records, self._counted = [], False
                try:
                    prepare()
                    prepare = _nothing
                    goes_on = self._turn(trials)
                except Exception as error:
                    if self._ends:
                        raise
                    self._passes(error, trials, starts=prepare is start)
                    prepare = start if prepare is start else self._go_back
                partitions.look(self.consumer.assignment())
                self.failures.waiting(self, len(trials.open))
                if self._counted and self.worker.on_commit is not None:
                    self.worker.on_commit(self.report)
        finally:
            self.failures.waiting(self, 0)
            self.patience.answered()
            tell_end(self.worker, self.report)
        return self.report

    def _turn(self, trials: "_Trials") -> bool:
        """Handle the records of a poll. Return False when nothing came for `idle_timeout`."""
        if trials.resume():
            self.work.take_one()
        asked, idle_timeout = time.monotonic(), self.worker.idle_timeout
        timeout = POLL_SECONDS if idle_timeout is None else min(POLL_SECONDS, idle_timeout)
        records = self._records = self.consumer.poll(timeout, self.work.chunk)
        if not records:
            if self.consumer.failing is not None:
                raise fresh(self.consumer.failing)
            self.work.idle()
            self.patience.answered()
            self._halts = 0
            self._idle_since = asked if self._idle_since is None else self._idle_since
            return idle_timeout is None or bool(trials.open) or time.monotonic() - self._idle_since < idle_timeout
        self._idle_since = None
        trial = trials.given_up(records)
        if trial is None:
            outcome = self.work.attempt(records)
        else:
            outcome = self.work.set_aside(records[0], trial.error, deliveries=trial.waits + 1)
        if isinstance(outcome, Failed):
            self._failed(outcome, trials)
            return True
        if outcome.failed < outcome.read:
            self.failures.succeeded()
        trials.succeeded(records)
        self._done(outcome)
        return True

    def _done(self, outcome: Done) -> None:
        self._halts = 0
        self._counted = True
        self.patience.answered()
        self.report = replace(
            self.report,
            transactions=self.report.transactions + 1,
            records_in=self.report.records_in + outcome.read,
            records_out=self.report.records_out + outcome.written,
            failed=self.report.failed + outcome.failed,
            seconds=time.monotonic() - self._started,
        )

    def _failed(self, outcome: Failed, trials: "_Trials") -> None:
        """Go back, and have the records tried one by one. Raise if the worker ends."""
        stops = isinstance(self.worker.failure, Stop)
        if stops or (outcome.alone and trials.ends(outcome)):
            outcome.error.add_note(
                f"failed on {place_of(outcome.records)}; its transaction was rolled back, with the offsets"
            )
            self._ends = True
            raise outcome.error
        self._aborted()
        self.consumer.rewind()
        if outcome.alone:
            trials.failed(outcome)
        self.work.take_one()

    def _go_back(self) -> None:
        """End the open transaction after a failure, and go back to the committed offsets."""
        if (done := self.work.finish()) is not None:
            self._done(done)
        self.consumer.rewind()

    def _passes(self, error: Exception, trials: "_Trials", *, starts: bool) -> None:
        """Wait for what has to pass. Raise an error that does not."""
        place = place_of(self._records)
        if place:
            self._aborted()
        if self.patience.passes(error, place, "with the offsets", starts=starts, ends=self.work.ends(error)):
            return
        if place:
            trials.halt(self._records, error)
            self.work.take_one()
            return
        self._halts += 1
        seconds = back_off(self._halts)
        self.failures.tell(f"group {self.worker.group!r}", error, f"no record is at fault; tried again in {seconds:g} s")
        pause(seconds, self.worker.stop)

    def _aborted(self) -> None:
        self.report = replace(self.report, aborted=self.report.aborted + 1)


def _nothing() -> None:
    """Prepare nothing."""


@dataclass(slots=True)
class _Trial:
    """A record that failed alone; its partition waits until `due`. `failures`: its own, `waits`: all of them."""

    offset: int
    error: Exception
    due: float
    failures: int = 0
    waits: int = 0
    given_up: bool = False


class _Trials:
    """The records that fail, one for each partition: how often each was tried, and when it is tried again."""

    def __init__(self, consumer: Consumer, failures: Failures, worker: Worker) -> None:
        self._consumer = consumer
        self._failures = failures
        self._worker = worker
        self.open: dict[TopicPartition, _Trial] = {}

    def resume(self) -> bool:
        """Have partitions read again whose time has come. Returns whether there are any."""
        if not self.open:
            return False
        assigned = self._consumer.assignment()
        self.open = {tp: trial for tp, trial in self.open.items() if tp in assigned}
        now = time.monotonic()
        due = [tp for tp, trial in self.open.items() if trial.due <= now]
        self._consumer.resume(due)
        return bool(due)

    def given_up(self, records: Sequence[Record]) -> _Trial | None:
        """Return what is known of a record that is not tried any more."""
        trial = self.open.get(_partition_of(records[0]))
        if trial is None or not trial.given_up or len(records) > 1 or records[0].offset != trial.offset:
            return None
        return trial

    def ends(self, failed: Failed) -> bool:
        """Return whether the worker ends by a record that failed alone."""
        return not self._worker.sets_aside and self._is_over(self._trial(failed.records[0], failed.error), failed.error)

    def failed(self, failed: Failed) -> None:
        """Note that a record failed alone; its partition waits."""
        (record, *_), error = failed.records, failed.error
        trial = self._trial(record, error)
        if self._is_over(trial, error) and self._failures.gives_up(record):
            trial.given_up, trial.error = True, error
            self.open[_partition_of(record)] = trial
            return
        is_own = not waits(error)
        trial.failures += is_own
        self._wait(record, trial, error, "" if is_own else "no record is at fault, the partition waits; ")

    def halt(self, records: Sequence[Record], error: Exception) -> None:
        """Have the partitions of these records wait: their transaction has failed, and no record is at fault."""
        firsts: dict[TopicPartition, Record] = {}
        for record in records:
            firsts.setdefault(_partition_of(record), record)
        for record in firsts.values():
            self._wait(record, self._trial(record, error), error, "no record is at fault, the partition waits; ")

    def _is_over(self, trial: _Trial, error: Exception) -> bool:
        """Return whether a record has now failed more often than it may."""
        retries = self._worker.retries
        return retries is not None and trial.failures >= retries and not waits(error)

    def _wait(self, record: Record, trial: _Trial, error: Exception, why: str) -> None:
        trial.waits += 1
        seconds = back_off(trial.waits)
        trial.due = time.monotonic() + seconds
        partition = _partition_of(record)
        if partition in self._consumer.assignment():  # else it was given away meanwhile
            self._consumer.pause([partition])
            self.open[partition] = trial
        self._failures.tell(place_of([record]), error, f"{why}tried again in {seconds:g} s")

    def _trial(self, record: Record, error: Exception) -> _Trial:
        trial = self.open.get(_partition_of(record))
        return trial if trial is not None and trial.offset == record.offset else _Trial(record.offset, error, 0.0)

    def succeeded(self, records: Sequence[Record]) -> None:
        """Forget records that are done."""
        for record in records if self.open else ():
            trial = self.open.get(_partition_of(record))
            if trial is not None and record.offset >= trial.offset:
                del self.open[_partition_of(record)]
                if trial.waits > trial.failures:
                    log.info("%s succeeded, its partition goes on", place_of([record]))


def _partition_of(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
