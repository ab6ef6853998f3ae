"""Outages of the database, as a client's log tells of them: when one begins, each minute, and when it is over."""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from msgtx import units

log = logging.getLogger("msgtx.database")
LASTING_SECONDS: Final = 0.5  # before the first line: a call that is answered by then shows that there was no outage
AGAIN_SECONDS: Final = 60.0  # between two lines of one outage
RETRY_SECONDS: Final = 0.05  # after a failure, longer with each one in a row
LONGEST_RETRY_SECONDS: Final = 1.0
RETRIES_IN_A_ROW: Final = 100  # after failures that may pass at once, before somebody has to act


class Outages:
    """The outage of one client, for any thread.

    Each object that asks the database reports when it gets no answer, and when it gets one. The outage is over when each
    has got one since, so a client with many threads writes one line. `name`: of the address, if it is
    not that of the primary; `what` is away.
    """

    def __init__(self, name: str = "", what: str = "the database") -> None:
        self._prefix = name and f"{name}: "
        self._what = what
        self.since: float | None = None  # by `time.monotonic`; None: the database answers
        self._failing: weakref.WeakSet[object] = weakref.WeakSet()
        self._told: float | None = None  # when the log last spoke of this outage
        self._lock = threading.Lock()

    def words(self, sentence: str) -> str:
        """Return a sentence about the database as one about what is away here."""
        return sentence.replace("the database", self._what)

    def failed(self, who: object, error: BaseException) -> None:
        """Note that `who` has asked the database in vain."""
        now = time.monotonic()
        with self._lock:
            self._failing.add(who)
            since = self.since = now if self.since is None else self.since
            told = self._told
            if now < (since + LASTING_SECONDS if told is None else told + AGAIN_SECONDS):
                return
            self._told = now
        words = self._prefix + " ".join(str(error).split())
        if told is None:
            log.warning(self.words("the database is away: %s"), words)
        else:
            log.warning(self.words("the database has been away for %s: %s"), units.lasting(now - since), words)

    def answered(self, who: object) -> None:
        """Note that `who` has got an answer, or has stopped asking."""
        if self.since is None:
            return
        with self._lock:
            self._failing.discard(who)
            if self._failing:
                return
            since, told = self.since, self._told
            self.since = self._told = None
        if told is not None:  # else the log knows of no outage, or another thread was faster
            log.info(self.words("%sthe database is back after %s"), self._prefix, units.lasting(time.monotonic() - since))


class Wait:
    """The waits of one caller that repeats its calls: up to `timeout` seconds of an outage; None: as long as it lasts.

    `pause`: sleeps for some seconds, or less if the caller is to end.
    """

    def __init__(self, outages: Outages, timeout: float | None, *, pause: Callable[[float], object] = time.sleep) -> None:
        self._outages = outages
        self._timeout = timeout
        self._pause = pause
        self._since: float | None = None  # the first failure
        self._failures = 0  # in a row

    def failed(self, error: Exception) -> None:
        """Wait a moment after a failure. Raise it if the outage is longer than `timeout`.

        A single failure is no outage yet: one connection may have been lost.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        self._failures += 1
        away = now - min(self._since, self._outages.since or now)
        if self._timeout is not None and away >= self._timeout:
            if not hasattr(error, "__notes__"):  # else a call within this one has waited in vain
                words = f"the database was away for {units.lasting(away)}: outage_timeout is {self._timeout:g} s"
                error.add_note(self._outages.words(words))
            raise error
        if self._failures > 1:
            self._outages.failed(self, error)
        self._pause(min(RETRY_SECONDS * self._failures, LONGEST_RETRY_SECONDS))

    def answered(self) -> None:
        """Report that the database answers, or that the caller has stopped asking."""
        if self._failures:
            self._since, self._failures = None, 0
            self._outages.answered(self)
