"""Records that wait for a user's COMMIT, and how they become rows of the log."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgtx.database.wire import BatchColumns
from msgtx.store.topics import Topic

# As the producer's batch_bytes and batch_records: rows of the log of this size are the fastest to write and to read.
ROW_BYTES: Final = 400 * 1024
ROW_RECORDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Published:
    """A record that waits for the user's COMMIT. `partition` None: it has no key, and goes where the others go."""

    topic: Topic
    partition: int | None
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]]


def calls_of(records: Iterable[Published]) -> Iterator[list[BatchColumns]]:
    """Yield what goes in one call: a row for each partition, ascending; further rows of a partition in further calls."""
    lanes: dict[int, list[Published]] = {}
    drawn: dict[str, int] = {}
    for record in records:
        ids = record.topic.partition_ids
        index = record.partition
        if index is None:
            index = drawn.setdefault(record.topic.name, random.randrange(len(ids)))  # noqa: S311 - spreads load
        lanes.setdefault(ids[index], []).append(record)
    rows = {partition_id: _rows(partition_id, lane) for partition_id, lane in sorted(lanes.items())}
    while rows:
        batches = {partition_id: next(left, None) for partition_id, left in rows.items()}
        if any(batches.values()):
            yield [batch for batch in batches.values() if batch is not None]
        rows = {partition_id: rows[partition_id] for partition_id, batch in batches.items() if batch is not None}


def _rows(partition_id: int, records: Sequence[Published]) -> Iterator[BatchColumns]:
    first, size = 0, 0
    for at, record in enumerate(records):
        added = len(record.key or b"") + len(record.value or b"")
        if at > first and (size + added > ROW_BYTES or at - first >= ROW_RECORDS):
            yield _row(partition_id, records[first:at])
            first, size = at, 0
        size += added
    yield _row(partition_id, records[first:])


def _row(partition_id: int, records: Sequence[Published]) -> BatchColumns:
    return BatchColumns.of(
        partition_id,
        (None, None, None, None),
        keys=[record.key for record in records],
        values=[record.value for record in records],
        timestamps=[record.timestamp for record in records],
        headers=[record.headers for record in records],
    )
