"""How much lies in ranges of the log, committed, by time: counted in the database."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array
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
    left = {partition_id: piece for partition_id, piece in ranges.items() if piece[0] < piece[1]}
    while left:
        asked = dict(list(left.items())[:MAX_PARTITIONS])
        rows = call(
            connection,
            calls.MEASURE_RANGES,
            Int4Array(asked),
            Int8Array(start for start, _ in asked.values()),
            Int8Array(end for _, end in asked.values()),
            bucket_ms,
            RANGE_ROWS,
        )
        for partition_id in asked:
            del left[partition_id]
        for partition_id, came_to, *columns in rows:
            if came_to < asked[partition_id][1]:
                left[partition_id] = (came_to, asked[partition_id][1])
            for bucket, records, size in zip(*columns, strict=True):
                yield MeasuredRange(partition_id, bucket, records, size)
