"""Repeating calls that may be repeated: the same request again gets the same answer (STYLE 11)."""

import math
import time
from collections.abc import Callable
from typing import Final, TypeVar

from msgtx.database.connection import seconds_left, until
from msgtx.database.translation import sqlstate_of
from msgtx.errors import LockTimeout, MsgtxError

Answer = TypeVar("Answer")

CONFLICTS: Final = {"40001", "40P01"}  # of a statement that replay cancels
CONFLICT_SECONDS: Final = 30.0  # for a call that a standby cancels again and again; as max_standby_streaming_delay
CONFLICT_PAUSE_SECONDS: Final = 0.02  # after the first time, then twice as long each time
LONGEST_CONFLICT_PAUSE_SECONDS: Final = 1.0


def retried(
    attempt: Callable[[], Answer],
    *,
    deadline: float,
    pause: float,
    longest: float = 0.0,
    attempts: float = math.inf,
    silence: float | None = None,
    cut: bool = True,
) -> Answer:
    """Call until there is an answer, an error that is not retriable, or no time for another attempt.

    `deadline`: of `time.monotonic`; `pause`: seconds after the first attempt, then twice as many each time up to `longest`;
    `silence`: seconds for a sign of life from the server within one attempt; `cut`: an attempt on its way is given up at
    the deadline, too. Within `until`, the earlier deadline counts. Raise the last error.
    """
    while True:
        attempts -= 1
        try:
            with until(deadline if cut else math.inf, silence=silence):
                return attempt()
        except MsgtxError as error:
            left = min(deadline - time.monotonic(), seconds_left())
            if not error.retriable or attempts <= 0 or pause > left:
                raise
        time.sleep(pause)
        pause = max(pause, min(2 * pause, longest))


def past_conflicts(attempt: Callable[[], Answer]) -> Answer:
    """Call on a standby until its replay does not cancel the call: it removes rows that the call may need."""
    deadline = time.monotonic() + min(CONFLICT_SECONDS, seconds_left())
    pause = CONFLICT_PAUSE_SECONDS
    while True:
        try:
            return attempt()
        except LockTimeout as error:
            if sqlstate_of(error) not in CONFLICTS or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_CONFLICT_PAUSE_SECONDS)
