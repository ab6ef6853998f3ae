"""Records out of the log's rows, and how many there are."""

import contextlib
import gc
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.generated import calls
from msgtx.store.fetch.fetch import FetchedBatch
from msgtx.types import Headers, Isolation, Record, TopicPartition

# The first record that a reader would be given: where it is, its time, and how old it is, in milliseconds.
FirstRecord = calls.FirstRecordsRow


def first_records(connection: RawConnection, positions: Mapping[int, int]) -> dict[int, FirstRecord]:
    """Return, by partition id, the first committed record at or after a position; where there is none, it is absent."""
    rows = call(connection, calls.FIRST_RECORDS, Int4Array(positions), Int8Array(positions.values()))
    return {row.partition_id: row for row in rows}


def count_records(connection: RawConnection, positions: Mapping[int, int], isolation: Isolation) -> dict[int, int]:
    """Return, by partition id, how many records lie at or after a position, as `isolation` sees them."""
    rows = call(connection, calls.COUNT_RECORDS, Int4Array(positions), Int8Array(positions.values()), isolation.value)
    return {partition_id: count for partition_id, count in rows}  # noqa: C416 - typed, which dict(rows) is not


class Reading:
    """The records of a fetched batch from offset `start` on. Each is made when it is returned."""

    def __init__(self, batch: FetchedBatch, topic_partition: TopicPartition, start: int) -> None:
        count = len(batch.values)
        offsets: Sequence[int] = range(batch.base_offset, batch.base_offset + count)
        if batch.offset_deltas is not None:
            offsets = [batch.base_offset + delta for delta in batch.offset_deltas]
        timestamps = repeat(batch.max_timestamp) if batch.timestamps is None else batch.timestamps
        keys = repeat(None) if batch.keys is None else batch.keys
        topic, partition = topic_partition
        self.batch = batch
        self.offsets = offsets
        passed = bisect_left(offsets, start)
        self.left = count - passed  # how many were not returned
        self._records = map(
            Record, repeat(topic), repeat(partition), offsets, timestamps, keys, batch.values, _headers_of(batch)
        )
        deque(islice(self._records, passed), maxlen=0)

    def take(self, most: int) -> list[Record]:
        """Return up to `most`."""
        records = list(islice(self._records, most))
        self.left -= len(records)
        return records

    def take_one(self) -> Record:
        """Return one, if any is left."""
        self.left -= 1
        return next(self._records)


def _headers_of(batch: FetchedBatch) -> Iterable[Headers]:
    if batch.header_counts is None:
        return repeat(())
    pairs = iter(zip(batch.header_keys or (), batch.header_values or (), strict=True))
    return (tuple(islice(pairs, count)) for count in batch.header_counts)


def records_of(batch: FetchedBatch, topic_partition: TopicPartition, start: int) -> list[Record]:
    """Return a batch's records from offset `start` on."""
    reading = Reading(batch, topic_partition, start)
    with uncollected():
        return reading.take(reading.left)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Make many records in this block. Python's garbage collector would look at them again and again; they hold no cycle."""
    collecting = gc.isenabled()
    try:
        gc.disable()
        yield
        if collecting:
            gc.enable()
    except BaseException:  # also an interrupt, in any of these lines
        if collecting:
            gc.enable()
        raise
