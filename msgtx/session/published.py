"""Records that wait for a user's COMMIT, and how they become rows of the log."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgtx.database.wire import BatchColumns
from msgtx.store.rows import Headers, OpenRow, record_bytes
from msgtx.store.topics import Topic


@dataclass(frozen=True, slots=True)
class Published:
    """A record that waits for the user's COMMIT. `partition` None: it has no key, and goes where the others go."""

    topic: Topic
    partition: int | None
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


def calls_of(records: Iterable[Published]) -> Iterator[list[BatchColumns]]:
    """Yield what goes in one call: a row for each partition, ascending; further rows of a partition in further calls."""
    rows: dict[int, list[OpenRow]] = {}
    drawn: dict[str, int] = {}
    for record in records:
        ids = record.topic.partition_ids
        index = record.partition
        if index is None:
            index = drawn.setdefault(record.topic.name, random.randrange(len(ids)))  # noqa: S311 - spreads load
        size = record_bytes(record.value, record.key)
        of_partition = rows.setdefault(ids[index], [])
        if not of_partition or not of_partition[-1].takes(size):
            of_partition.append(OpenRow())
        of_partition[-1].add(record.value, record.key, record.timestamp, record.headers, size=size)
    for at in range(max(map(len, rows.values()), default=0)):
        yield [left[at].stored_as(partition_id) for partition_id, left in sorted(rows.items()) if at < len(left)]
