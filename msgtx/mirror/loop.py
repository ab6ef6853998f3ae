"""The loop of a mirror: portions from the source to the target, until it is stopped."""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from msgtx import errors
from msgtx.database.faults import AGAIN, fault_of
from msgtx.database.outages import LONGEST_RETRY_SECONDS, RETRIES_IN_A_ROW, RETRY_SECONDS, Outages, Wait
from msgtx.errors import Fault
from msgtx.mirror.asked import Asked
from msgtx.mirror.ends import NOTE_SECONDS, Lag, Portion, PortionLimits, Source, Target
from msgtx.pauses import POLL_SECONDS, pause
from msgtx.settings import StopSignal
from msgtx.types import MirrorReport, Record

log = logging.getLogger("msgtx.mirror")
# Between two looks while open transactions overlap: each goes through all that is behind them.
LONGEST_HELD_SECONDS: Final = 1.0


class MirrorLoop:
    """One run of a mirror. Failures that pass are retried from the target's progress; others end it."""

    def __init__(self, asked: Asked, source: Source, target: Target, stop: StopSignal) -> None:
        self._asked = asked
        self._limits = _slow(asked.limits, asked.rate_limit)
        self._source = source
        self._target = target
        self._stop = stop
        self._began = time.monotonic()
        self._records = 0
        self._portions = 0
        self._lag = Lag(0, 0)
        self._outage = Wait(
            Outages(f"mirror {asked.name}", "an end"), asked.outage_timeout, pause=lambda seconds: pause(seconds, stop)
        )
        self._passing = 0  # failures in a row that are no outage
        self._held = 0  # looks in a row at which the source had more, and no end that divides no transaction

    def run(self) -> MirrorReport:
        """Copy until `stop` is set. Return what was copied. Raise the error that a person must look at."""
        while not self._stop.is_set():
            try:
                if self._copy():
                    break
            except errors.MsgtxError as error:
                try:
                    self._failed(error)
                except errors.MsgtxError:
                    with contextlib.suppress(errors.MsgtxError):  # the caller gets the reason itself
                        self._target.give_up(error)
                    raise
        return self.report

    @property
    def report(self) -> MirrorReport:
        """What this run has copied, and what the source had behind that."""
        running_ms = int((time.monotonic() - self._began) * 1000)
        return MirrorReport(self._asked.name, self._records, self._portions, running_ms, self._lag.records, self._lag.age_ms)

    def _copy(self) -> bool:
        """Copy portions from the target's progress on. Return whether the mirror has ended, not only failed."""
        progress = self._target.take_over()
        self._tell()
        noted = time.monotonic()
        while not self._stop.is_set():
            began = time.monotonic()
            portion = self._source.next(progress, self._limits)
            if not portion.is_empty:
                copied = _Counted(portion)
                progress = self._target.write(progress, copied.portion)
                self._answered()
                self._held = 0
                self._records += copied.records
                self._portions += 1
                self._lag = portion.lag
                self._tell()
                noted = time.monotonic()
                self._slow_down(copied.records, began)
                continue
            self._answered()
            self._lag = portion.lag
            if self._asked.until_caught_up:
                return True
            if time.monotonic() > noted + NOTE_SECONDS:
                self._target.note(portion.lag)
                self._tell()
                noted = time.monotonic()
            self._held = self._held + 1 if portion.lag.records else 0
            pause(min(RETRY_SECONDS * self._held, LONGEST_HELD_SECONDS), self._stop)
            self._source.wait(POLL_SECONDS)
        return True

    def _tell(self) -> None:
        if self._asked.on_progress is not None:
            self._asked.on_progress(self.report)

    def _slow_down(self, records: int, began: float) -> None:
        if self._asked.rate_limit is None:
            return
        end = began + records / self._asked.rate_limit
        while (left := end - time.monotonic()) > NOTE_SECONDS and not self._stop.is_set():  # one large transaction
            pause(NOTE_SECONDS, self._stop)
            self._target.note(self._lag)
            self._tell()
        pause(left, self._stop)

    def _answered(self) -> None:
        self._passing = 0
        self._outage.answered()

    def _failed(self, error: errors.MsgtxError) -> None:
        """Wait a moment if a failure passes by itself, else raise it."""
        fault = fault_of(error)
        is_told = isinstance(error, errors.ProducerFenced | errors.OutcomeUnknown)  # the target's progress says what holds
        if isinstance(error, STOPPING) or not (fault in AGAIN or (fault is Fault.ENVIRONMENT and is_told)):
            raise error
        log.debug("mirror %s: tried again", self._asked.name, exc_info=error)
        if fault is Fault.OUTAGE:
            self._outage.failed(error)
            return
        self._passing += 1
        if self._passing > RETRIES_IN_A_ROW:
            raise error
        pause(min(RETRY_SECONDS * self._passing, LONGEST_RETRY_SECONDS), self._stop)


# Errors at which only a person can decide. Most would be raised again at once; none may be retried into a loss.
STOPPING: Final = (errors.MirrorFenced, errors.LogTruncated, errors.IncarnationChanged, errors.OffsetOutOfRange)


def _slow(limits: PortionLimits, rate_limit: int | None) -> PortionLimits:
    """Return limits at which a mirror writes something each few seconds."""
    most = limits.records if rate_limit is None else max(1, int(rate_limit * NOTE_SECONDS))
    return replace(limits, records=min(limits.records, most))


class _Counted:
    """A portion whose records are counted as they are read."""

    def __init__(self, portion: Portion) -> None:
        self.records = 0
        self._portion = portion
        self.portion = Portion(portion.source, self._counted(), portion.places, portion.topics, portion.lag)

    def _counted(self) -> Iterator[Record]:
        for record in self._portion.records:
            self.records += 1
            yield record
