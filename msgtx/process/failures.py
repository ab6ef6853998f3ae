"""What a worker does about failures that no record has caused: it waits, and its log tells of it."""

import logging
import math
import time
from typing import Final

from msgtx import units
from msgtx.database.faults import fault_of
from msgtx.database.outages import LONGEST_RETRY_SECONDS, RETRIES_IN_A_ROW, RETRY_SECONDS, Outages, Wait
from msgtx.errors import CommitsLost, Fault, IllegalState, LogTruncated, MsgtxError
from msgtx.observer import Observers
from msgtx.pauses import pause
from msgtx.process.places import reason_of
from msgtx.process.worker import Worker
from msgtx.settings import Stop
from msgtx.types import Record

log = logging.getLogger("msgtx.process")
BACK_OFF_SECONDS: Final = 0.1  # after the first failure of a record, twice as long after each further one
LONGEST_BACK_OFF_SECONDS: Final = 30.0
COUNTED_SECONDS: Final = 60.0  # between two lines for failures of one kind
MOST_KINDS: Final = 100  # of failures that are told apart; then all are new again


def back_off(failures: int) -> float:
    """Return the seconds to wait after so many failures."""
    return float(min(BACK_OFF_SECONDS * 2 ** min(failures - 1, 20), LONGEST_BACK_OFF_SECONDS))


class Patience(Wait):
    """A worker's waits for what passes: for a database that is away, up to `outage_timeout`; all of them end by `stop`."""

    def __init__(self, outages: Outages, worker: Worker) -> None:
        super().__init__(outages, worker.outage_timeout, pause=lambda seconds: pause(seconds, worker.stop))
        self._worker = worker
        self._stop = worker.stop
        self._passing = 0  # failures in a row of conditions that pass at once, such as a deadlock

    def deadline(self) -> float:
        """Return when calls have to end, for `until`: in an outage at once after `stop`, else by `outage_timeout`."""
        since = self._outages.since
        if since is None:
            return math.inf
        if self._stop is not None and self._stop.is_set():
            return 0.0
        return math.inf if self._timeout is None else since + self._timeout

    def passes(self, error: Exception, place: str, then: str, *, starts: bool = False, ends: bool = False) -> bool:
        """Wait a moment if a failure passes by itself. Return False if the installation is at fault; raise any other error.

        `place`: of the records at hand, "" without any; `then`: what becomes of them. `starts`: the worker does; `ends`: no
        further attempt would succeed.
        """
        fault = fault_of(error)
        if fault is Fault.OUTAGE:
            log.debug("%s: tried again", place or "polling", exc_info=error)
            self.failed(error)
            return True
        is_loss = isinstance(error, LogTruncated | CommitsLost)
        if fault is Fault.TRANSIENT and (place or is_loss or (isinstance(error, MsgtxError) and error.retriable)):
            self._passing += 1
            if self._passing <= RETRIES_IN_A_ROW:
                if is_loss:
                    log.warning("%s: %s; reading goes on from what is committed", place or "polling", error)
                log.debug("%s: tried again", place or "polling", exc_info=error)
                pause(min(RETRY_SECONDS * self._passing, LONGEST_RETRY_SECONDS), self._stop)
                return True
            fault = Fault.ENVIRONMENT
        is_ours = not place and (starts or isinstance(error, IllegalState))  # a wrong setting, a consumer that was closed
        if fault is Fault.ENVIRONMENT and not (is_ours or ends or isinstance(self._worker.failure, Stop)):
            return False
        if place:
            error.add_note(f"at {place}; the transaction was rolled back, {then}")
        raise error

    def answered(self) -> None:
        """Report that the database answers, or that the worker has ended."""
        self._passing = 0
        super().answered()


class Failures:
    """The failures of one worker, also of its members in threads: how many in a row, their kinds, the waiting partitions."""

    def __init__(self, worker: Worker, observers: Observers) -> None:
        self._worker = worker
        self._observers = observers
        self._given_up: set[object] = set()  # by key, since the last success
        self._holds = False
        self._waiting: dict[object, int] = {}  # by loop
        self._kinds: dict[object, tuple[float, int]] = {}  # when one was told, and how many came since

    def gives_up(self, record: Record) -> bool:
        """Return whether a record may be given up, now that it has failed often enough.

        Not behind `max_failures_in_a_row` others with different keys: then the installation is at fault, most likely.
        """
        key = (record.topic, record.key) if record.key is not None else (record.topic, record.partition, record.offset)
        if key in self._given_up or len(self._given_up) < self._worker.max_failures_in_a_row:
            self._given_up.add(key)
            return True
        if not self._holds:
            self._holds = True
            log.warning(
                "group %r: %s with different keys failed, one after the other: no record is given up until one succeeds",
                self._worker.group,
                units.counted(len(self._given_up), "record"),
            )
        return False

    def succeeded(self) -> None:
        """Report that the function succeeded on a record."""
        if self._given_up:
            self._given_up.clear()
            self._holds = False

    def tell(self, place: str, error: Exception, then: str) -> None:
        """Log a failure; the first one of a kind with its traceback, and of further ones the count, once a minute."""
        now, kind = time.monotonic(), _kind(error)
        told, more = self._kinds.get(kind, (-math.inf, 0))
        if now < told + COUNTED_SECONDS:
            self._kinds[kind] = (told, more + 1)
            log.debug("%s: %s; %s", place, reason_of(error), then, exc_info=error)
            return
        if len(self._kinds) >= MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = (now, 0)
        if told == -math.inf:
            log.warning("%s: %s; %s", place, reason_of(error), then, exc_info=error)
        else:
            log.warning("%s: %s; %s (%d more like it before)", place, reason_of(error), then, more)

    def waiting(self, loop: object, count: int) -> None:
        """Report how many partitions of a loop wait; of a share group, how many members: one or none."""
        if change := count - self._waiting.get(loop, 0):
            self._waiting[loop] = count
            self._observers.tell(lambda observer: observer.waiting(self._worker.group, change))


def waits(error: Exception) -> bool:
    """Return whether a failure is that of the installation: no record is at fault, and somebody has to act."""
    return fault_of(error) is Fault.ENVIRONMENT


def _kind(error: Exception) -> object:
    """Return what failures of one kind have in common: the class, and the line that raised it."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return type(error), None if at is None else (at.tb_frame.f_code.co_filename, at.tb_lineno)
