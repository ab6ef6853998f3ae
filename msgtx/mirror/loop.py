"""The loop of a mirror: portions from the source to the target, until it is stopped."""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from msgtx import errors
from msgtx.database.faults import fault_of
from msgtx.database.outages import LONGEST_RETRY_SECONDS, RETRY_SECONDS
from msgtx.errors import Fault
from msgtx.mirror.asked import Asked
from msgtx.mirror.ends import Lag, Portion, PortionLimits, Source, Target
from msgtx.settings import StopSignal
from msgtx.types import MirrorReport, Record

log = logging.getLogger("msgtx.mirror")
STOP_SECONDS: Final = 0.2  # between two looks at `stop`
NOTE_SECONDS: Final = 5.0  # between two notes of a mirror that writes nothing
# Between two looks while open transactions overlap: each goes through all that is behind them.
LONGEST_HELD_SECONDS: Final = 1.0
MOST_RETRIES: Final = 100  # after failures that may pass at once, before somebody has to act
TOLD_SECONDS: Final = 60.0  # between two lines about one outage


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
        self._failures = 0  # in a row
        self._away: float | None = None  # since when, by `time.monotonic`
        self._told = 0.0
        self._held = 0  # looks in a row at which the source had more, and no end that divides no transaction

    def run(self) -> MirrorReport:
        """Copy until `stop` is set. Return what was copied. Raise the error that a person must look at."""
        while not self._stop.is_set():
            try:
                if self._copy():
                    break
            except errors.MsgtxError as error:
                self._failed(error)
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
            self._pause(min(RETRY_SECONDS * self._held, LONGEST_HELD_SECONDS))
            self._source.wait(STOP_SECONDS)
        return True

    def _tell(self) -> None:
        if self._asked.on_progress is not None:
            self._asked.on_progress(self.report)

    def _slow_down(self, records: int, began: float) -> None:
        if self._asked.rate_limit is None:
            return
        end = began + records / self._asked.rate_limit
        while (left := end - time.monotonic()) > NOTE_SECONDS and not self._stop.is_set():  # one large transaction
            self._pause(NOTE_SECONDS)
            self._target.note(self._lag)
            self._tell()
        self._pause(left)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._stop.is_set():
            time.sleep(min(left, STOP_SECONDS))

    def _answered(self) -> None:
        if self._away is not None and self._told:
            log.info("mirror %s: copies again", self._asked.name)
        self._failures, self._away, self._told = 0, None, 0.0

    def _failed(self, error: errors.MsgtxError) -> None:
        """Wait a moment if a failure passes by itself, else raise it."""
        if isinstance(error, STOPPING) or fault_of(error) not in {Fault.TRANSIENT, Fault.OUTAGE, Fault.ENVIRONMENT}:
            raise error
        if fault_of(error) is Fault.ENVIRONMENT and not isinstance(error, errors.ProducerFenced | errors.OutcomeUnknown):
            raise error
        log.debug("mirror %s: tried again", self._asked.name, exc_info=error)
        now = time.monotonic()
        self._failures += 1
        self._away = now if self._away is None else self._away
        if self._asked.outage_timeout is not None and now - self._away > self._asked.outage_timeout:
            raise error
        if fault_of(error) is not Fault.OUTAGE and self._failures > MOST_RETRIES:
            raise error
        if self._failures > 1 and now > self._told + TOLD_SECONDS:
            self._told = now
            log.warning("mirror %s: %s; it is tried again from the target's progress", self._asked.name, error)
        self._pause(min(RETRY_SECONDS * self._failures, LONGEST_RETRY_SECONDS))


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
