"""What a standby does not show yet: the partitions that a consumer was woken for, and their ends on the primary.

A wake-up comes from the primary, which is ahead of the standby. So the consumer looks at the standby repeatedly until that
shows the end that the primary had. Most standbys show it before the consumer has asked the primary for the end.
"""

import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from msgtx import units

log = logging.getLogger("msgtx.consumer")
ASK_SECONDS: Final = 0.1  # after a wake-up, before the primary is asked for the end: most standbys are not so far behind
ASK_AGAIN_SECONDS: Final = 1.0  # the primary goes on, and its end may have been lost in a crash
SOON_SECONDS: Final = 0.005  # between two looks at the standby, then twice as long each time
MOST_LOOK_SECONDS: Final = 0.1
BEHIND_SECONDS: Final = 10.0  # before the log says that the standby is behind


@dataclass(slots=True)
class _Awaited:
    since: float  # the wake-up, then the first time that the primary was asked
    target: int | None = None  # the end of the primary, as far as this reader may read; None: it was not asked yet
    asked: float = 0.0
    is_woken_again: bool = False  # since the primary was asked


class Awaited:
    """The partitions, by id, of which the primary has or may have more than the standby shows. For one thread."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Awaited] = {}
        self._pause = SOON_SECONDS
        self._is_told = False

    @property
    def partition_ids(self) -> Collection[int]:
        """The partitions to look at again."""
        return self._partitions.keys()

    def woken(self, partition_ids: Iterable[int]) -> None:
        """Note that the primary may have more of these."""
        now = time.monotonic()
        for partition_id in partition_ids:
            known = self._partitions.get(partition_id)
            if known is None:
                self._partitions[partition_id] = _Awaited(now)
            else:
                known.is_woken_again = known.target is not None
            self._pause = SOON_SECONDS

    def keep(self, partition_ids: Collection[int]) -> None:
        """Forget all other partitions."""
        self._partitions = {each: known for each, known in self._partitions.items() if each in partition_ids}

    def to_ask(self) -> list[int]:
        """Return the partitions whose ends the primary is to be asked for now."""
        now = time.monotonic()
        return [
            partition_id
            for partition_id, known in self._partitions.items()
            if now >= (known.since + ASK_SECONDS if known.target is None else known.asked + ASK_AGAIN_SECONDS)
        ]

    def is_asked(self, partition_id: int) -> bool:
        """Return whether the primary has said only just what its end is."""
        known = self._partitions.get(partition_id)
        return known is not None and known.target is not None and time.monotonic() < known.asked + ASK_AGAIN_SECONDS

    def asked(self, partition_id: int, end: int) -> None:
        """Note the end that the primary has, as far as this reader may read."""
        now = time.monotonic()
        known = self._partitions.setdefault(partition_id, _Awaited(now))
        if known.target is None:
            known.since = now  # until then it may have read a backlog of what the standby did show
        known.target, known.asked, known.is_woken_again = end, now, False

    def shown(self, partition_id: int, end: int) -> None:
        """Note the end that the standby shows."""
        known = self._partitions.get(partition_id)
        if known is None or known.target is None or end < known.target:
            return
        del self._partitions[partition_id]
        if known.is_woken_again:
            self.woken([partition_id])
        if not self._partitions and self._is_told:
            self._is_told = False
            log.info("the standby of read_url shows what the primary had")

    def behind(self, partition_id: int, end: int) -> int:
        """Return how far the end that the standby shows is behind the primary's, as far as it is known."""
        known = self._partitions.get(partition_id)
        return 0 if known is None or known.target is None else max(0, known.target - end)

    def pause(self) -> float | None:
        """Return the seconds until the next look at the standby; None: nothing is awaited."""
        if not self._partitions:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, MOST_LOOK_SECONDS)
        return pause

    def tell(self) -> None:
        """Have the log say, once, that the standby is behind."""
        if self._is_told or not self._partitions:
            return
        lasting = time.monotonic() - min(known.since for known in self._partitions.values())
        if lasting >= BEHIND_SECONDS:
            self._is_told = True
            log.warning(
                "the standby of read_url has been behind the primary for %s: its replay is slow or paused, or it lost its"
                " connection; records come when it shows them",
                units.lasting(lasting),
            )
