"""What `poll` and `flush` do beside messages: waiting as long as the caller says, and statistics."""

import json
import math
import time
from collections.abc import Callable
from typing import Final

LONGEST_WAIT: Final = 3_600.0  # of one call of msgtx; a caller that waits without a limit calls again


def deadline_of(timeout: float | None) -> float:
    """Return the end of a wait, by `time.monotonic`. None and negative numbers: there is none."""
    if timeout is None:
        return math.inf
    if not isinstance(timeout, int | float):
        raise TypeError(f"must be real number, not {type(timeout).__name__}")
    seconds = float(timeout)
    return math.inf if seconds < 0 else time.monotonic() + seconds


def seconds_left(deadline: float) -> float:
    """Return how long a call may still wait, at least 0."""
    return min(LONGEST_WAIT, max(0.0, deadline - time.monotonic()))


def none_or(timeout: float | None) -> float | None:
    """Return a timeout as msgtx has it. None: without a limit, or the limit of the call's own setting."""
    return None if timeout is None or timeout < 0 else float(timeout)


class Statistics:
    """The calls of `stats_cb`, each `interval_ms`."""

    def __init__(self, kind: str, callback: Callable[[str], object] | None, interval_ms: int) -> None:
        self.messages = 0
        self._kind = kind
        self._callback = callback if interval_ms > 0 else None
        self._interval = interval_ms / 1000
        self._due = time.monotonic() + self._interval

    def serve(self, waiting: int = 0) -> int:
        """Call the callback if it is due. Return the number of calls."""
        if self._callback is None or time.monotonic() < self._due:
            return 0
        self._due = time.monotonic() + self._interval
        moved = {"txmsgs" if self._kind == "producer" else "rxmsgs": self.messages, "msg_cnt": waiting}
        clock = {"ts": time.monotonic_ns() // 1_000, "time": int(time.time())}
        name = {"name": f"msgtx#{self._kind}", "type": self._kind}
        self._callback(json.dumps({**name, **clock, **moved, "brokers": {}, "topics": {}}))
        return 1
