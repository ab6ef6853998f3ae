"""The pace of cleaning: removed and rewritten bytes are spread over time (internals: coordinator#pace)."""

import math
import time
from collections.abc import Callable
from typing import Final

PIECE_BYTES: Final = 1024 * 1024  # of one call: a sender's flush waits for at most so much of the sweep's WAL
CATCH_UP_SECONDS: Final = 0.1  # of pauses that lasted too long, which later ones may be shorter for

PACE_LIMIT_SECONDS: Final = 60.0  # a higher rate counts at the latest after it


class Pace:
    """A pause after each call, as long as its bytes take at the permitted rate. `clock`: seconds, that of the process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at = -math.inf

    def due_in(self) -> float:
        """Return the seconds until the next call; 0 if it may be made now."""
        return max(0.0, self._free_at - self._clock())

    def spend(self, size: int, *, rate: int) -> None:
        """Count the bytes of a call that was just made. `rate`: bytes per second."""
        self._free_at = max(self._free_at, self._clock() - CATCH_UP_SECONDS) + min(size / rate, PACE_LIMIT_SECONDS)
