"""One call, with one flush, for several members of a share group in one client that poll at the same time.

A pool of workers in one process polls one record each, many times a second. By themselves they would wait for each other's
lock on the partition, and each for a flush of its own. So they also ask for the same partition at the same time.
"""

import secrets
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Final

from msgtx.database.pool import Engine
from msgtx.database.together import MOST_TOGETHER, SharedCalls
from msgtx.shares.losses import AnswerLosses
from msgtx.store.shares.answers import NO_ANSWERS, AnswerColumns, Refused, acknowledge_records
from msgtx.store.shares.shares import Acknowledging, Acquiring, Acquisition, acquire_records, acquire_records_together

MOST_RECORDS: Final = 32  # of a poll in a shared call: a larger poll gains nothing, and delays the others
GATHER_SECONDS: Final = 0.001  # for which a call waits for others: less than the time that a shared call saves
TURN_SECONDS: Final = 0.1  # for which one partition is asked first; then it is the next one's turn
EMPTY_SECONDS: Final = 2.0  # for which an empty partition loses its turn while others have records; a wake-up ends it

Asked = Acquiring | Acknowledging


class SharePolls:
    """The polls of all share groups of a client."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._groups: weakref.WeakValueDictionary[str, GroupPolls] = weakref.WeakValueDictionary()

    def of(self, group: str) -> "GroupPolls":
        """Return the polls of a group. Its members share the object as long as there are any."""
        with self._lock:
            found = self._groups.get(group)
            if found is None:
                found = self._groups[group] = GroupPolls(self._engine)
            return found


class GroupPolls:
    """Acquires records for members of a group, for any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._calls: dict[int, SharedCalls[Asked, Acquisition]] = {}  # by the first partition asked
        self.losses = AnswerLosses()
        self._turns = secrets.randbelow(1 << 16)  # so far; other clients begin with other partitions
        self._turn = -1
        self._place = -1
        self._unusual: dict[int, float] = {}  # until when each asks for a partition by itself
        self._empty: dict[int, float] = {}  # until when a partition is passed over

    def place(self, partition_ids: Sequence[int]) -> int:
        """Return the partition to ask first: each in turn, except partitions that were empty a moment ago."""
        now = time.monotonic()
        turn = int(now / TURN_SECONDS)
        with self._lock:
            if turn != self._turn or self._place not in partition_ids:
                left = [each for each in partition_ids if self._empty.get(each, 0.0) < now] or partition_ids
                self._turn, self._turns = turn, self._turns + 1
                self._place = left[self._turns % len(left)]
            return self._place

    def heard(self, partition_ids: Collection[int] | None) -> None:
        """Record that these partitions may have new records; None: all of them."""
        if partition_ids is None:
            self._empty.clear()
        else:
            for each in partition_ids:
                self._empty.pop(each, None)

    def acquire(self, asked: Acquiring) -> Acquisition:
        """Acquire records for a member. Return and raise what `acquire_records` does, also from a shared call."""
        first = asked.partition_ids[0]
        goes_alone = asked.max_records > MOST_RECORDS or asked.is_again
        if goes_alone or (asked.answers is not NO_ANSWERS and asked.accepted() is None) or self._is_unusual(first):
            found = self._by_itself(asked)
        else:
            found = self._calls_of(first).call(asked)
        if found.records and found.records[0].range.partition_id != first:
            self._place, self._empty[first] = found.records[0].range.partition_id, time.monotonic() + EMPTY_SECONDS
        return found

    def acknowledge(
        self, group: str, member_number: int, call_number: int, answers: AnswerColumns, *, is_whole: bool
    ) -> Sequence[Refused]:
        """Send a member's answers. Return the refused ones, as `acknowledge_records`. `is_whole`: see `Acknowledging`."""
        asked = Acknowledging(group, member_number, call_number, answers, is_whole)
        first = asked.partition_ids[0]
        if asked.accepted() is None or self._is_unusual(first):
            return self._by_itself(asked).refused
        return self._calls_of(first).call(asked).refused

    def _is_unusual(self, partition_id: int) -> bool:
        return self._unusual.get(partition_id, 0.0) > time.monotonic()

    def _calls_of(self, partition_id: int) -> SharedCalls[Asked, Acquisition]:
        with self._lock:
            calls = self._calls.get(partition_id)
            if calls is None:
                calls = self._calls[partition_id] = SharedCalls(
                    self._by_itself, self._together, most=MOST_TOGETHER, gather_seconds=GATHER_SECONDS, again=self._again
                )
            return calls

    def _by_itself(self, asked: Asked) -> Acquisition:
        with self._engine.connection() as connection:
            self.losses.look(connection, asked)
            if isinstance(asked, Acquiring):
                found = acquire_records(connection, asked)
            else:
                refused = acknowledge_records(connection, asked.answers, call_number=asked.call_number)
                found = Acquisition([], refused, has_passed=False)
            self.losses.acknowledged(connection, asked, found.refused)
            return found

    def _again(self, asked: Asked) -> Acquisition:
        return self._by_itself(asked._replace(is_again=True) if isinstance(asked, Acquiring) else asked)

    def _together(self, several: Sequence[Asked], sent: Callable[[], object]) -> Sequence[Acquisition | None]:
        sent()
        with self._engine.connection() as connection:
            if any(self.losses.may_be_lost(connection, each) for each in several):
                return [None] * len(several)  # each looks by itself
            found = acquire_records_together(connection, several)
            for each, answer in zip(several, found, strict=True):
                if answer is not None:
                    self.losses.acknowledged(connection, each, answer.refused)
        if not any(found):  # a group ordered by key, for one, or a partition with records to deliver again
            self._unusual[several[0].partition_ids[0]] = time.monotonic() + TURN_SECONDS
        return found
