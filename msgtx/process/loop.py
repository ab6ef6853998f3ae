"""The loop of every worker: it polls, has each batch done in a transaction, and goes back when that failed."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from msgtx.consumer.consumer import Consumer
from msgtx.errors import ConfigError
from msgtx.process.worker import Worker
from msgtx.rules.record import as_reason
from msgtx.settings import Stop, StopSignal
from msgtx.types import OutputRecord, ProcessReport, Record, TopicPartition

log = logging.getLogger("msgtx.process")
POLL_SECONDS: Final = 0.2  # the longest wait for input before stop and idle_timeout are looked at
RETRY_SECONDS: Final = 0.05  # after an aborted attempt, longer with each one in a row
RETRIES_IN_A_ROW: Final = 100  # aborted attempts without a commit in between, before the error goes on
BACK_OFF_SECONDS: Final = 0.1  # after the first failure of a record, twice as long after each further one
LONGEST_BACK_OFF_SECONDS: Final = 30.0
RETRIES: Final = 3  # of `process_into`: of a record before it is set aside: a hiccup of another service is over by then
DRAIN_SECONDS: Final = 30.0  # what a worker may take to the end of its batch when its client is closed; as Kubernetes allows


class Ending:
    """Whether a worker is to end: its caller's event, a SIGTERM that nobody else handles, or the end of its client."""

    def __init__(self, given: StopSignal | None) -> None:
        self.threads = {threading.get_ident()}  # that wait for nothing but the work
        self.over = threading.Event()
        self._given = given
        self._asked = False

    def ask(self) -> None:
        """Have the loop end after its batch. No lock is taken: a signal may come at any moment."""
        self._asked = True

    def is_set(self) -> bool:
        """Return whether to end."""
        return self._asked or (self._given is not None and self._given.is_set())

    @contextlib.contextmanager
    def by_sigterm(self) -> Iterator[None]:
        """Within the block SIGTERM asks, and all others in such a block, if it would end the program else."""
        if (
            self._given is not None
            or threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _ask_all)
        ):
            yield
            return
        _by_sigterm.append(self)
        signal.signal(signal.SIGTERM, _ask_all)
        try:
            yield
        finally:
            if self in _by_sigterm:  # else a child of a fork leaves the block
                _by_sigterm.remove(self)
            if not _by_sigterm and signal.getsignal(signal.SIGTERM) is _ask_all:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


_by_sigterm: Final[list[Ending]] = []  # an event loop may run several workers


def _ask_all(*_: object) -> None:
    for each in _by_sigterm:
        each.ask()


_blocked: Final = threading.local()  # `before`: the signals that were blocked in a thread that forks


def _forks() -> None:
    """Hold SIGTERM back during a fork: the child would take it with the handler of its parent."""
    if _by_sigterm:
        _blocked.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _has_forked() -> None:
    if hasattr(_blocked, "before"):
        signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.before)
        del _blocked.before


def _is_child() -> None:
    """Have SIGTERM end a child, as it would without a worker in its parent."""
    if _by_sigterm and signal.getsignal(signal.SIGTERM) is _ask_all:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _by_sigterm.clear()
    _has_forked()


os.register_at_fork(before=_forks, after_in_parent=_has_forked, after_in_child=_is_child)


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

    def attempt(self, records: list[Record]) -> Done | Failed:
        """Do these in one transaction, with their offsets. An exception undoes it whole, too."""
        ...

    def set_aside(self, record: Record, error: Exception) -> Done | Failed:
        """Pass a record that fails."""
        ...

    def take_one(self) -> None:
        """Have the next transaction hold one record; later ones hold more and more."""
        ...

    def passes(self, error: Exception) -> bool:
        """Return whether the same transaction may succeed if it is tried again."""
        ...


def run_loop(consumer: Consumer, work: Work, worker: Worker) -> ProcessReport:
    """Run the loop until the worker is stopped, or until nothing came for its `idle_timeout`.

    A passing failure is tried again at once, a hundred times in a row. A record on which the user's function fails is
    tried alone, as often as the worker retries. Its partition waits for it, the others go on.
    """
    stop, idle_timeout, retries = worker.stop, worker.idle_timeout, worker.retries
    report = ProcessReport()
    started = time.monotonic()
    idle_since: float | None = None  # the first poll in a row that brought nothing
    in_a_row = 0
    trials = _Trials(consumer)
    consumer.committing.commit_starts()  # else, with `latest`, the next process would skip records before the first commit
    while not (stop is not None and stop.is_set()):
        if trials.resume():
            work.take_one()
        asked = time.monotonic()
        records = consumer.poll(POLL_SECONDS if idle_timeout is None else min(POLL_SECONDS, idle_timeout), work.chunk)
        if not records:
            idle_since = asked if idle_since is None else idle_since
            if idle_timeout is not None and not trials.open and time.monotonic() - idle_since >= idle_timeout:
                break
            continue
        idle_since = None
        try:
            given_up = trials.given_up(records)
            outcome = work.attempt(records) if given_up is None else work.set_aside(records[0], given_up)
        except Exception as error:
            in_a_row += 1
            if not work.passes(error) or in_a_row > RETRIES_IN_A_ROW:
                error.add_note(f"at {place_of(records)}; the transaction was rolled back, with the offsets")
                raise
            log.debug("%s: tried again", place_of(records), exc_info=error)
            consumer.rewind()
            report = replace(report, aborted=report.aborted + 1)
            pause(min(RETRY_SECONDS * in_a_row, 1.0), stop)
            continue
        if isinstance(outcome, Failed):
            is_over = outcome.alone and trials.is_over(outcome, retries)
            if isinstance(worker.failure, Stop) or (is_over and not worker.sets_aside):
                place = place_of(outcome.records)
                outcome.error.add_note(f"failed on {place}; its transaction was rolled back, with the offsets")
                raise outcome.error
            consumer.rewind()
            report = replace(report, aborted=report.aborted + 1)
            if outcome.alone:
                trials.failed(outcome, retries)
            work.take_one()
            continue
        in_a_row = 0
        trials.succeeded(records)
        report = replace(
            report,
            transactions=report.transactions + 1,
            records_in=report.records_in + outcome.read,
            records_out=report.records_out + outcome.written,
            failed=report.failed + outcome.failed,
            seconds=time.monotonic() - started,
        )
        if worker.on_commit is not None:
            worker.on_commit(report)
    return report


def pause(seconds: float, stop: StopSignal | None) -> None:
    """Wait so long, or until `stop` is set."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not (stop is not None and stop.is_set()):
        time.sleep(min(left, POLL_SECONDS))


@dataclass(slots=True)
class _Trial:
    """A record that failed alone; its partition waits until `due`."""

    offset: int
    error: Exception
    due: float
    failures: int = 0
    given_up: bool = False


class _Trials:
    """The records that fail, one for each partition: how often each was tried, and when it is tried again."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
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

    def given_up(self, records: Sequence[Record]) -> Exception | None:
        """Return the error of a record that is not tried any more."""
        trial = self.open.get(_partition_of(records[0]))
        if trial is None or not trial.given_up or len(records) > 1 or records[0].offset != trial.offset:
            return None
        return trial.error

    def is_over(self, failed: Failed, retries: int | None) -> bool:
        """Return whether a record has now failed more often than it may."""
        trial = self._trial(failed)
        return retries is not None and trial.failures >= retries

    def failed(self, failed: Failed, retries: int | None) -> None:
        """Note that a record failed alone; its partition waits."""
        trial = self._trial(failed)
        reason = reason_of(failed.error)
        place = place_of(failed.records)
        partition = _partition_of(failed.records[0])
        if self.is_over(failed, retries):
            trial.given_up, trial.error = True, failed.error
        else:
            trial.failures += 1
            pause = min(BACK_OFF_SECONDS * 2 ** min(trial.failures - 1, 20), LONGEST_BACK_OFF_SECONDS)
            trial.due = time.monotonic() + pause
            self._consumer.pause([partition])
            log.warning("%s: %s; tried again in %g s", place, reason, pause)
            log.debug("%s", place, exc_info=failed.error)
        self.open[partition] = trial

    def _trial(self, failed: Failed) -> _Trial:
        record = failed.records[0]
        trial = self.open.get(_partition_of(record))
        return trial if trial is not None and trial.offset == record.offset else _Trial(record.offset, failed.error, 0.0)

    def succeeded(self, records: Sequence[Record]) -> None:
        """Forget records that are done."""
        for record in records if self.open else ():
            trial = self.open.get(_partition_of(record))
            if trial is not None and record.offset >= trial.offset:
                del self.open[_partition_of(record)]


def _partition_of(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def place_of(records: Sequence[Record]) -> str:
    """Return where records stand: `orders-0 offset 7`, or `orders-0 offsets 7 to 9, orders-1 offset 4`."""
    spans: dict[str, list[int]] = {}
    for record in records:
        spans.setdefault(f"{record.topic}-{record.partition}", []).append(record.offset)
    return ", ".join(
        f"{name} offset {found[0]}" if len(found) == 1 else f"{name} offsets {found[0]} to {found[-1]}"
        for name, found in spans.items()
    )


def reason_of(error: Exception) -> str:
    """Return an error as one line. An error whose text fails has its name only."""
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except Exception:  # noqa: BLE001 - of the user's class: the record is set aside all the same
        text = name
    return as_reason(" ".join(text.splitlines()))


def dead_letter_of(record: Record, error: Exception, topic: str) -> OutputRecord:
    """Return a failed record as one for `topic`, with headers for the reason.

    One of them is the record's time. The letter gets the time of its sending, from which retention counts. Raise
    `ConfigError` if the record came from `topic`: it would come back for ever.
    """
    if record.topic == topic:
        raise ConfigError(
            f"{place_of([record])}: dead_letter {topic!r} is a topic that this worker reads: name another one, or a pattern"
            " that does not match it",
            name="dead_letter",
            topic=topic,
            reason="read",
        )
    why = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "error": reason_of(error),
    }
    headers = [*record.headers, *((f"msgtx.{name}", str(value).encode()) for name, value in why.items())]
    return OutputRecord(record.value, record.key, headers, topic=topic)


def tell_set_aside(record: Record, error: Exception, topic: str | None) -> None:
    """Log that a record was left out, or sent to `topic`."""
    log.warning("%s: %s; %s", place_of([record]), reason_of(error), "skipped" if topic is None else f"sent to {topic}")
