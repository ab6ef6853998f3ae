"""How often a stream that has nothing to read asks the database: Spark asks the source again after 10 ms.

A whole look takes five calls: it also finds new topics and partitions, deleted ones, and another incarnation. Between two of
them one call is enough, which compares the last stable offsets.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

# The rest between two looks: this part of the idle time, so that a stream with a record each second reads it after 50 ms.
PART_OF_IDLE_TIME: Final = 0.05
LONGEST_REST_SECONDS: Final = 0.25
WHOLE_LOOK_SECONDS: Final = 5.0  # between two whole looks, as `metadata_max_age_ms` is for consumers, but shorter


@dataclass(slots=True)
class Idle:
    """The looks of one stream while there is nothing to read."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    _start: Any = None  # of the next batch; None: not idle
    _stable: Mapping[int, int] | None = None
    _since: float = 0.0
    _looked: float = 0.0
    _looked_whole: float = 0.0

    def begin(self, start: object, stable: Mapping[int, int]) -> None:
        """Report that a whole look has found nothing behind `start`. `stable`: the last stable offsets, by partition id."""
        now = self.clock()
        if self._start != start:
            self._since = now
        self._start, self._stable = start, stable
        self._looked = self._looked_whole = now

    def end(self) -> None:
        """Report that a look has found something."""
        self._start = self._stable = None

    def goes_on(self, start: object, look: Callable[[Collection[int]], Mapping[int, int]]) -> bool:
        """Rest, then return whether there is still nothing behind `start`; if not, a whole look is due.

        `look`: returns the last stable offsets of partitions by id; without those that were deleted.
        """
        if self._stable is None or self._start != start:
            return False
        rest = min(LONGEST_REST_SECONDS, PART_OF_IDLE_TIME * (self._looked - self._since))
        if (left := self._looked + rest - self.clock()) > 0:
            self.sleep(left)
        now = self._looked = self.clock()
        return now - self._looked_whole < WHOLE_LOOK_SECONDS and look(self._stable.keys()) == self._stable
