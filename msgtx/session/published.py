"""Records that wait for a user's COMMIT, and how they become rows of the log."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgtx.database.wire import BatchColumns
from msgtx.rules.record import HeaderPairs, record_bytes
from msgtx.store.append.append import CALL_BYTES, PARTITIONS_AT_ONCE
from msgtx.store.append.rows import OpenRow
from msgtx.store.topics.topics import Topic


@dataclass(frozen=True, slots=True)
class Published:
    """A record that waits for the user's COMMIT. `partition` None: it has no key, and goes where the others go."""

    topic: Topic
    partition: int | None
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: HeaderPairs


def calls_of(records: Iterable[Published]) -> Iterator[list[BatchColumns]]:
    """Yield the rows of one call: one for each of some partitions, ascending; further rows of them in further calls.

    Beside the session each call is a SQL transaction of its own; in the session, no call locks anything before the COMMIT.
    """
    rows: dict[int, list[OpenRow]] = {}
    drawn: dict[str, int] = {}
    for record in records:
        ids = record.topic.partition_ids
        index = record.partition
        if index is None:
            index = drawn.setdefault(record.topic.name, random.randrange(len(ids)))  # noqa: S311 - spreads load
        size = record_bytes(record.value, record.key, record.headers)
        of_partition = rows.setdefault(ids[index], [])
        if not of_partition or not of_partition[-1].takes(size):
            of_partition.append(OpenRow())
        of_partition[-1].add(record.value, record.key, record.timestamp, record.headers, size=size)
    for at in range(max(map(len, rows.values()), default=0)):
        call: list[BatchColumns] = []
        size = 0
        for partition_id, row in sorted((partition_id, left[at]) for partition_id, left in rows.items() if at < len(left)):
            if call and (size + row.size > CALL_BYTES or len(call) == PARTITIONS_AT_ONCE):
                yield call
                call, size = [], 0
            call.append(row.stored_as(partition_id))
            size += row.size
        yield call
