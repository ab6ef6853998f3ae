"""Pauses of loops that end when they are asked to."""

import time
from typing import Final

from msgtx.settings import StopSignal

POLL_SECONDS: Final = 0.2  # between two looks at `stop`


def pause(seconds: float, stop: StopSignal | None) -> None:
    """Wait so long, or until `stop` is set."""
    end = time.monotonic() + seconds
    while not (stop is not None and stop.is_set()) and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, POLL_SECONDS))
