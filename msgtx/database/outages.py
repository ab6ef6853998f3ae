"""Outages of the database, as a client's log tells of them: when one begins, each minute, and when it is over."""

import logging
import threading
import time
import weakref
from typing import Final

from msgtx import units

log = logging.getLogger("msgtx.database")
LASTING_SECONDS: Final = 0.5  # before the first line: a call that is answered by then shows that there was no outage
AGAIN_SECONDS: Final = 60.0  # between two lines of one outage


class Outages:
    """The outage of one client, for any thread.

    Each object that asks the database reports when it gets no answer, and when it gets one. The outage is over when each
    has got one since, so a client with many threads writes one line.
    """

    def __init__(self) -> None:
        self.since: float | None = None  # by `time.monotonic`; None: the database answers
        self._failing: weakref.WeakSet[object] = weakref.WeakSet()
        self._told: float | None = None  # when the log last spoke of this outage
        self._lock = threading.Lock()

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
        words = " ".join(str(error).split())
        if told is None:
            log.warning("the database is away: %s", words)
        else:
            log.warning("the database has been away for %s: %s", units.lasting(now - since), words)

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
            log.info("the database is back after %s", units.lasting(time.monotonic() - since))
