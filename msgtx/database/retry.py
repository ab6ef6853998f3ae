"""Repeating calls that may be repeated: the same request again gets the same answer (STYLE 11)."""

import math
import time
from collections.abc import Callable
from typing import TypeVar

from msgtx.database.connection import seconds_left, until
from msgtx.errors import MsgtxError

Answer = TypeVar("Answer")


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
