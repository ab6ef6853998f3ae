"""Snapshots: consistent cuts as values, taken and read (semantics 6)."""

from collections.abc import Iterable, Iterator
from typing import Final

from msgtx import errors
from msgtx.database.engine import Engine, RawConnection
from msgtx.store.cuts import consistent_cut
from msgtx.store.fetch import EARLIEST, Position, fetch, list_offsets
from msgtx.store.installation import describe_installation
from msgtx.store.records import records_of
from msgtx.store.topics import partitions_of, require_partitions, require_topics
from msgtx.types import Isolation, Record, Snapshot, TopicPartition

READ_BYTES: Final = 8 * 1024 * 1024  # of one fetch


def take(engine: Engine, topics: Iterable[str]) -> Snapshot:
    """Return the greatest consistent cut of these topics, now. Raise `UnknownTopicOrPartition`."""
    with engine.connection() as connection:
        places = partitions_of(require_topics(connection, list(topics)).values())
        cut = consistent_cut(connection, places)
        incarnation = str(describe_installation(connection).incarnation)
    return Snapshot({places[partition]: at.end for partition, at in cut.items()}, incarnation)


def read(engine: Engine, snapshot: Snapshot, start: Snapshot | None = None) -> Iterator[Record]:
    """Yield each committed record below the cut once, from `start` (None: the log starts), partition by partition.

    Reading it again gives the same, until retention or compaction removes something. Raise `IncarnationChanged` for a
    snapshot of another database, `OffsetOutOfRange` if retention has removed what lies behind `start`, `LogTruncated`.
    """
    with engine.connection() as connection:
        incarnation = str(describe_installation(connection).incarnation)
        for each in (snapshot, *([] if start is None else [start])):
            if each.incarnation != incarnation:
                raise errors.IncarnationChanged(
                    f"the snapshot is of incarnation {each.incarnation}, the database has {incarnation} since a failover"
                )
        ids = require_partitions(connection, snapshot.ends)
        starts = list_offsets(connection, dict.fromkeys(ids.values(), EARLIEST), Isolation.READ_COMMITTED)
    for partition, end in sorted(snapshot.ends.items()):
        log_start = starts[ids[partition]].log_start_offset
        first = log_start if start is None else start.ends.get(partition, log_start)
        yield from _read(engine, partition, ids[partition], first, end)


def _read(engine: Engine, partition: TopicPartition, partition_id: int, first: int, end: int) -> Iterator[Record]:
    position = Position(first)
    while position.offset < end:
        with engine.connection() as connection:
            position, records = _next(connection, partition, partition_id, position, end)
        yield from records


def _next(
    connection: RawConnection, partition: TopicPartition, partition_id: int, position: Position, end: int
) -> tuple[Position, list[Record]]:
    answer = fetch(connection, {partition_id: position}, isolation=Isolation.READ_COMMITTED, max_bytes=READ_BYTES).get(
        partition_id
    )
    if answer is None:
        raise errors.UnknownTopicOrPartition(f"{partition} does not exist (any more)")
    if position.offset < answer.log_start_offset:
        raise errors.OffsetOutOfRange(
            f"{partition}: offset {position.offset} was removed by retention, the log starts at {answer.log_start_offset}"
        )
    if answer.truncated or answer.position == position.offset:
        raise errors.LogTruncated(
            f"{partition}: the cut ends at {end}, the log at {answer.log_end_offset}: a crash took records back"
        )
    records = [
        record for batch in answer.batches for record in records_of(batch, partition, position.offset) if record.offset < end
    ]
    return Position(answer.position, answer.token), records
