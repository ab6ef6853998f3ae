"""Outages of the database, as a client's log tells of them: when one begins, each minute, and when it is over."""

import logging
import threading
import time
import weakref
from typing import Final

from msgtx import units

log = logging.getLogger("msgtx.database")
AGAIN_SECONDS: Final = 60.0  # between two lines of one outage


class Outages:
    """The outage of one client, for any thread.

    Each object that asks the database reports its own failures and successes. The outage is over when none of them fails
    any more, so a client with many threads writes one line.
    """

    def __init__(self) -> None:
        self.since: float | None = None  # by `time.monotonic`; None: the database answers
        self._failing: weakref.WeakSet[object] = weakref.WeakSet()
        self._told = 0.0
        self._lock = threading.Lock()

    def failed(self, who: object, error: BaseException) -> None:
        """Report that the database did not answer `who`."""
        now = time.monotonic()
        with self._lock:
            self._failing.add(who)
            since, self.since = self.since, now if self.since is None else self.since
            if since is not None and now < self._told + AGAIN_SECONDS:
                return
            self._told = now
        words = " ".join(str(error).split())
        if since is None:
            log.warning("the database is away: %s", words)
        else:
            log.warning("the database has been away for %s: %s", units.lasting(now - since), words)

    def answered(self, who: object) -> None:
        """Report that the database answered `who`, or that `who` asks it no more."""
        if self.since is None:
            return
        with self._lock:
            self._failing.discard(who)
            if self._failing:
                return
            since, self.since = self.since, None
        if since is not None:  # else another thread was faster
            log.info("the database is back after %s", units.lasting(time.monotonic() - since))
