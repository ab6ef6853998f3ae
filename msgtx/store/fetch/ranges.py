"""How much lies in ranges of the log, committed, by time: counted in the database."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.declared.function import Function, Row
from msgtx.generated import calls

RANGE_ROWS: Final = 2_000  # of a partition's log in one answer, so that each takes milliseconds
MAX_PARTITIONS: Final = 500  # in one call: bounds what one answer holds

Range = tuple[int, int]  # start, end


@dataclass(frozen=True, slots=True)
class MeasuredRange:
    """Records of a partition whose timestamps are in [bucket, bucket + bucket_ms), and their bytes as stored, about."""

    partition_id: int
    bucket: int
    records: int
    bytes: int


def measure_ranges(connection: RawConnection, ranges: Mapping[int, Range], bucket_ms: int | None) -> Iterator[MeasuredRange]:
    """Yield the committed records of ranges by partition id, to their ends; a bucket may come more than once.

    `bucket_ms`: None: all of a range is one bucket, 0.
    """
    for partition_id, _, *columns in _pages(connection, calls.MEASURE_RANGES, ranges, bucket_ms):
        for bucket, records, size in zip(*columns, strict=True):
            yield MeasuredRange(partition_id, bucket, records, size)


def count_transactions(connection: RawConnection, ranges: Mapping[int, Range]) -> dict[int, int]:
    """Return how many committed transactions begin in ranges, by partition id."""
    found = dict.fromkeys(ranges, 0)
    for row in _pages(connection, calls.COUNT_TRANSACTIONS, ranges):
        found[row.partition_id] += row.transactions
    return found


def _pages(
    connection: RawConnection, function: Function[Row], ranges: Mapping[int, Range], *arguments: int | None
) -> Iterator[Row]:
    """Yield the answers about ranges, to their ends. A row begins with its partition, and where to continue there."""
    left = {partition_id: piece for partition_id, piece in ranges.items() if piece[0] < piece[1]}
    while left:
        asked = dict(list(left.items())[:MAX_PARTITIONS])
        starts, ends = (Int8Array(piece[at] for piece in asked.values()) for at in (0, 1))
        rows = call(connection, function, Int4Array(asked), starts, ends, *arguments, RANGE_ROWS)
        for partition_id in asked:
            del left[partition_id]
        for row in rows:
            partition_id, came_to = row[0], row[1]
            if came_to < asked[partition_id][1]:
                left[partition_id] = (came_to, asked[partition_id][1])
            yield row
