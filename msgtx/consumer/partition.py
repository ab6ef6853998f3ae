"""A partition of a consumer: where it is read on, its fetched records, and what becomes of the returned ones.

Only this module writes the fields of `Assigned`; the tables of its moves are in `msgtx.rules.partition`.
"""

import contextlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from msgtx.rules.partition import PLACES, RETURNED, FetchState, Returned, ReturnedEvent
from msgtx.store.fetch.fetch import FetchedBatch, Position
from msgtx.store.fetch.records import Reading
from msgtx.types import Record, TopicPartition, TransactionId

UNKNOWN_HOLDER: Final = TransactionId(-1, -1, -1)  # a transaction that was sealed between two looks


@dataclass(slots=True)
class Assigned:
    """One partition of this consumer.

    `at` belongs to `place`: the position, the time to look up, the offset out of range, or the transaction to wait for.
    """

    topic_partition: TopicPartition
    partition_id: int
    new: bool = False  # made since the consumer began: read from its beginning, with any auto_offset_reset
    place: FetchState = FetchState.FINDING
    at: Position | int | TransactionId | None = None
    batches: deque[FetchedBatch] = field(default_factory=deque)
    reading: Reading | None = None  # of the batch that is handed out, while anything of it is left
    skip_to: int = 0  # the offset where reading began, for a batch that begins before it
    paused: bool = False
    end: int | None = None  # that this reader may read, when it was fetched the last time
    at_end: bool = False  # there was no more to fetch when it was fetched the last time
    returned: Returned = Returned.SETTLED
    overtaken: bool = False  # more was handed out behind what was lost
    moves: int = 0  # by rewinding and seeking

    @property
    def next(self) -> Position | None:
        """The place to fetch from next; None: it has to be found first."""
        return self.at if isinstance(self.at, Position) else None

    @property
    def time(self) -> int | None:
        """The time to look up: `EARLIEST`, `LATEST`, or milliseconds; None: none was asked for."""
        return self.at if self.place is FetchState.LOOKING_UP and isinstance(self.at, int) else None

    @property
    def out_of_range(self) -> int | None:
        """The offset that the log does not hold; None: there is none."""
        return self.at if self.place is FetchState.OUT_OF_RANGE and isinstance(self.at, int) else None

    @property
    def waits_for(self) -> TransactionId | None:
        """The sealed transaction that the group's offset is part of; None: there is none."""
        return self.at if isinstance(self.at, TransactionId) else None

    @property
    def handed(self) -> bool:
        """Whether returned records are in no commit and no transaction's offsets yet."""
        return self.returned is not Returned.SETTLED

    @property
    def undone(self) -> bool:
        """Whether the session that was to commit returned records was rolled back."""
        return self.returned is Returned.GOES_BACK or self.returned is Returned.ASKS

    @property
    def buffered(self) -> bool:
        """Whether there are fetched records that were not returned."""
        return self.reading is not None or bool(self.batches)

    @property
    def position(self) -> int | None:
        """The offset of the next record to be returned; None: it has to be found first."""
        if (reading := self.reading) is not None:
            return reading.offsets[-reading.left]
        if self.batches:
            return max(self.batches[0].base_offset, self.skip_to)
        following = self.next
        return None if following is None else following.offset

    @property
    def lag(self) -> int | None:
        """The distance of the position from the end that was seen last; None: not known. For other threads, too."""
        end, position = self.end, None
        with contextlib.suppress(IndexError):  # handed out meanwhile
            position = self.position
        return None if end is None or position is None else max(0, end - position)

    @property
    def read_identity(self) -> str | None:
        """The identity of the row before the position, as it was fetched: by it a crash that took it back is noticed."""
        position = self.position
        if position is None or not self.buffered:
            return None if self.next is None else self.next.identity
        reading = self.reading
        return (self.batches[0] if reading is None else reading.batch).identity_before(position)

    # ── where it is read on ──

    def found(self, position: Position) -> None:
        """Read on at a position."""
        self._move(FetchState.READING, position)

    def wait_for(self, transaction_id: TransactionId | None) -> None:
        """Read nothing until this transaction is decided (None: one that is not known)."""
        self._move(FetchState.WAITING, transaction_id or UNKNOWN_HOLDER)

    def stop_waiting(self) -> None:
        """Look for the position again: the transaction is decided."""
        if self.place is FetchState.WAITING:
            self._move(FetchState.FINDING, None)

    def lose_position(self, offset: int) -> None:
        """Note that the log does not hold the offset to read."""
        self._move(FetchState.OUT_OF_RANGE, offset)

    def find_again(self) -> None:
        """Look for the position again: another member may have moved it."""
        self._move(FetchState.FINDING, None)

    def fetched(self, batches: Iterable[FetchedBatch], following: Position, *, end: int) -> None:
        """Take what a fetch has found, and where the next one goes on. `end`: that this reader may read."""
        assert self.next is not None
        self.batches, self.skip_to = deque(batches), self.next.offset
        self.end, self.at_end = end, following.offset >= end
        self._move(FetchState.READING, following)

    def expect_more(self) -> None:
        """Fetch it again, even if there was no more the last time."""
        self.at_end = False

    def _move(self, place: FetchState, at: Position | int | TransactionId | None) -> None:
        assert place in PLACES[self.place], f"{self.topic_partition}: from {self.place} to {place}"
        self.place, self.at = place, at

    def pause(self) -> None:
        """Return no records of it."""
        self.paused = True

    def resume(self) -> None:
        """Return records of it again."""
        self.paused = self.at_end = False  # partitions notified in between were not fetched

    # ── the caller's moves ──

    def seek(self, offset: int) -> None:
        """Read on at an offset."""
        self._seek(FetchState.READING, Position(offset), ReturnedEvent.SEEK)

    def seek_to_time(self, timestamp: int) -> None:
        """Look a time up with the next fetch, and read on there."""
        self._seek(FetchState.LOOKING_UP, timestamp, ReturnedEvent.SEEK)

    def go_back(self) -> None:
        """Go back to the committed offset."""
        self._seek(FetchState.FINDING, None, ReturnedEvent.REWIND)

    def put_back(self, offset: int) -> None:
        """Move back to an offset: the records from there on were not returned after all. That is no seek."""
        self._drop(FetchState.READING, Position(offset))

    def _seek(self, place: FetchState, at: Position | int | None, event: ReturnedEvent) -> None:
        self._drop(place, at)
        self.moves += 1
        self.returned, self.overtaken = RETURNED[self.returned, event], False

    def _drop(self, place: FetchState, at: Position | int | None) -> None:
        """Move the position, and drop fetched records."""
        self.place, self.at, self.at_end = place, at, False
        self.batches, self.reading, self.skip_to = deque(), None, at.offset if isinstance(at, Position) else 0

    # ── returned records ──

    def take(self, most: int) -> list[Record]:
        """Return fetched records."""
        reading = self._next_reading()
        if reading is None:
            return []
        records = reading.take(most)
        if not reading.left:  # thousands of partitions would keep one each
            self.reading = None
        return records

    def take_one(self) -> Record | None:
        """Return one fetched record; None: there is none, perhaps since a seek."""
        reading = self.reading or self._next_reading()
        if reading is None:
            return None
        if self.returned is Returned.SETTLED:  # faster than to look it up for each record
            self.returned = Returned.HANDED
        record = reading.take_one()
        if not reading.left:
            self.reading = None
        return record

    def _next_reading(self) -> Reading | None:
        if self.reading is None and self.batches:  # a fetch leaves out rows without a record for it
            self.reading = Reading(self.batches.popleft(), self.topic_partition, self.skip_to)
        if self.reading is not None:
            self.returned = RETURNED[self.returned, ReturnedEvent.HAND_OUT]
        return self.reading

    def committed(self) -> None:
        """Note that a commit, or a transaction's offsets, hold the returned records."""
        self.returned, self.overtaken = RETURNED[self.returned, ReturnedEvent.COMMIT], False

    def take_back(self) -> None:
        """Have the next poll return the records again: they could not ride in a session."""
        self.returned = RETURNED[self.returned, ReturnedEvent.TAKE_BACK]

    def lost(self, event: ReturnedEvent) -> None:
        """Note a rollback of the session that was to commit the records: `LOSE`, or `LOSE_BATCH`."""
        self.overtaken |= self.returned is Returned.HANDED
        self.returned = RETURNED[self.returned, event]
