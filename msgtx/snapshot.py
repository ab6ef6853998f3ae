"""Snapshots: consistent cuts as values, taken, kept under names, measured and read (internals: visibility)."""

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from msgtx import arguments, errors
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.database.standby import once_shown
from msgtx.store.append.append import epoch_ms
from msgtx.store.fetch.fetch import EARLIEST, ListedOffset, Position, fetch, list_offsets
from msgtx.store.fetch.holders import expire_holders, stable_cut
from msgtx.store.fetch.ranges import Range, count_transactions, measure_ranges
from msgtx.store.fetch.records import records_of
from msgtx.store.fetch.snapshots import SavedText, delete_snapshot, save_snapshot, saved_snapshots
from msgtx.store.operator.installation import require_incarnation
from msgtx.store.topics.topics import partitions_of, require_partitions, require_topics
from msgtx.types import (
    CommittedRange,
    Isolation,
    PartitionEnds,
    Record,
    SavedSnapshot,
    Snapshot,
    TakenSnapshot,
    TopicPartition,
    TransactionId,
)

READ_BYTES: Final = 8 * 1024 * 1024  # of one fetch


def take(engine: Engine, topics: Iterable[str] | None) -> TakenSnapshot:
    """Return the greatest consistent cut of these topics (None: of all), now. Raise `UnknownTopicOrPartition`."""
    names = None if topics is None else arguments.topics(topics)
    if engine.standby is not None:
        with engine.connection() as connection:
            expire_holders(connection, partitions_of(require_topics(connection, names).values()))
    return once_shown(engine, lambda connection: _taken(connection, names))


def _taken(connection: RawConnection, names: Sequence[str] | None) -> TakenSnapshot:
    places = partitions_of(require_topics(connection, names).values())
    cut = stable_cut(connection, places)
    # Only reported: the blocking transaction is looked up after the cut, and may have ended in between.
    ends = fetch(
        connection,
        {partition: Position(at.end) for partition, at in cut.items()},
        isolation=Isolation.READ_COMMITTED,
        max_bytes=0,
        max_rows=0,
    )
    incarnation = require_incarnation(connection)
    held: dict[TopicPartition, TransactionId] = {}
    for partition, at in cut.items():
        holder = at.held_by or (ends[partition].blocked_by if partition in ends else None)
        if holder is not None:
            held[places[partition]] = holder
    ids = {places[partition]: partition for partition in cut}
    known = PartitionEnds({places[partition]: at.end for partition, at in cut.items()}, ids)
    return TakenSnapshot(Snapshot(known, incarnation), held)


def read(engine: Engine, snapshot: Snapshot, start: Snapshot | None = None) -> Iterator[Record]:
    """Yield each committed record below the cut once, from `start` (None: the log starts), partition by partition.

    Reading it again gives the same, until retention or compaction removes something. Raise `IncarnationChanged` for a
    snapshot of another database, `UnknownTopicOrPartition` if a topic was deleted since the cut, also if it was made
    again, `OffsetOutOfRange` if retention has removed records behind `start`, `LogTruncated`.
    """
    return _records(engine, _cut("cut", snapshot), None if start is None else _cut("start", start))


def _cut(name: str, value: object) -> Snapshot:
    return arguments.an_instance(name, value, Snapshot, "a Snapshot")


def _records(engine: Engine, snapshot: Snapshot, start: Snapshot | None) -> Iterator[Record]:
    ids, starts = once_shown(engine, lambda connection: _places(connection, snapshot, start))
    for partition, end in sorted(snapshot.ends.items()):
        if ids[partition] not in starts:
            raise errors.UnknownTopicOrPartition(f"{partition} does not exist (any more)", at=partition)
        first = starts[ids[partition]].log_start_offset
        if start is not None and start.is_of(partition, ids[partition]):
            first = start.ends[partition]
        yield from _read(engine, partition, ids[partition], first, end)


def _places(
    connection: RawConnection, snapshot: Snapshot, start: Snapshot | None
) -> tuple[dict[TopicPartition, int], dict[int, ListedOffset]]:
    """Return the ids of a cut's partitions, and the ends of those that exist."""
    require_incarnation(connection, snapshot, start)
    ids = _require_same(connection, snapshot, snapshot.ends)
    return ids, list_offsets(connection, dict.fromkeys(ids.values(), EARLIEST), Isolation.READ_COMMITTED)


def _require_same(
    connection: RawConnection, snapshot: Snapshot, wanted: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return partition ids. Raise `UnknownTopicOrPartition` for a partition that is not the one of the cut any more."""
    ids = require_partitions(connection, wanted)
    for partition, partition_id in ids.items():
        if not snapshot.is_of(partition, partition_id):
            raise errors.UnknownTopicOrPartition(
                f"{partition}: the topic was deleted and made again since the cut was taken; take a new one",
                at=partition,
                reason="made again",
            )
    return ids


def _read(engine: Engine, partition: TopicPartition, partition_id: int, first: int, end: int) -> Iterator[Record]:
    position = Position(first)
    while position.offset < end:
        position, records = once_shown(engine, partial(_next, partition, partition_id, position, end))
        yield from records


def _next(
    partition: TopicPartition, partition_id: int, position: Position, end: int, connection: RawConnection
) -> tuple[Position, list[Record]]:
    answer = fetch(connection, {partition_id: position}, isolation=Isolation.READ_COMMITTED, max_bytes=READ_BYTES).get(
        partition_id
    )
    if answer is None:
        raise errors.UnknownTopicOrPartition(f"{partition} does not exist (any more)", at=partition)
    if position.offset < answer.log_start_offset:
        raise errors.OffsetOutOfRange(
            f"{partition}: offset {position.offset} was removed by retention, the log starts at {answer.log_start_offset}",
            at=partition,
            offset=position.offset,
            limit=answer.log_start_offset,
        )
    if answer.truncated or answer.position == position.offset:
        raise _truncated(partition, end, answer.log_end_offset)
    records = [
        record for batch in answer.batches for record in records_of(batch, partition, position.offset) if record.offset < end
    ]
    return Position(answer.position, answer.token), records


class Snapshots:
    """`client.snapshots`: consistent cuts, the transactions that hold them back, saved cuts, and the records between two."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def take(self, topics: Iterable[str] | None = None) -> TakenSnapshot:
        """Return a consistent cut of these topics (None: of all), and the transactions that hold it back.

        Raise `UnknownTopicOrPartition`.
        """
        return take(self._engine, topics)

    def save(self, name: str, cut: Snapshot, *, replace: bool = False) -> SavedSnapshot:
        """Keep a cut under a name, for all roles that may consume. A snapshot holds nothing back: retention does not wait.

        The same cut again changes nothing. Raise `SnapshotExists` for another one without `replace`, `IncarnationChanged`
        for one of another database, `InvalidRequest` for a name that is not 1 to 249 of a-z A-Z 0-9 . _ -
        """
        name, cut, replace = arguments.text("name", name), _cut("cut", cut), arguments.flag("replace", replace)
        with self._engine.connection() as connection:
            save_snapshot(connection, name, str(cut), replace=replace)
        return self.describe(name)

    def get(self, name: str) -> Snapshot:
        """Return the cut of a name, also one from before a failover: reading that is refused. Raise `SnapshotNotFound`.

        Of topics that the role may neither consume nor observe it has nothing.
        """
        return self.describe(name).snapshot

    def describe(self, name: str) -> SavedSnapshot:
        """Return the saved snapshot of a name. Raise `SnapshotNotFound`."""
        name = arguments.text("name", name)
        found = self._saved(name) if name else []
        if not found:
            raise errors.SnapshotNotFound(f"there is no snapshot {name!r}", name=name)
        return found[0]

    def list(self) -> "builtins.list[SavedSnapshot]":
        """Return the saved snapshots, by name, with what the role may see of them."""
        return self._saved(None)

    def _saved(self, name: str | None) -> "builtins.list[SavedSnapshot]":
        with self._engine.connection() as connection:
            found = saved_snapshots(connection, name)
            incarnation = require_incarnation(connection)
        return [_saved(one, incarnation) for one in found]

    def delete(self, name: str) -> None:
        """Forget the cut of a name. Raise `SnapshotNotFound`."""
        name = arguments.text("name", name)
        with self._engine.connection() as connection:
            if not delete_snapshot(connection, name):
                raise errors.SnapshotNotFound(f"there is no snapshot {name!r}", name=name)

    def ranges(
        self, topics: Iterable[str] | None = None, *, start: Snapshot | None = None, end: Snapshot | None = None
    ) -> dict[TopicPartition, CommittedRange]:
        """Return the difference of two cuts, by partition, in order: the committed records and transactions between them.

        `start`: None, or without a partition: from its log start. `end`: None: now's cut. `topics`: only these; None: those
        of `end`, else of `start`, else all. Raise `IncarnationChanged`, `UnknownTopicOrPartition`, and `InvalidRequest`
        for a start behind its end, and for a topic that `end` lacks.
        """
        asked = None if topics is None else [*dict.fromkeys(arguments.topics(topics))]
        start, end = (None if each is None else _cut(name, each) for name, each in (("start", start), ("end", end)))
        with self._engine.connection() as connection:
            require_incarnation(connection, start, end)
        if end is None:
            end = self.take(asked if asked is not None or start is None else {topic for topic, _ in start.ends}).snapshot
        wanted = sorted(partition for partition in end.ends if asked is None or partition.topic in asked)
        missing = {*(asked or ())} - {partition.topic for partition in wanted}
        if missing:
            raise errors.InvalidRequest(f"the snapshot has nothing of topic {min(missing)!r}", topic=min(missing))
        return once_shown(self._engine, partial(_ranges, start, end, wanted))


def _ranges(
    start: Snapshot | None, end: Snapshot, wanted: Iterable[TopicPartition], connection: RawConnection
) -> dict[TopicPartition, CommittedRange]:
    ids = _require_same(connection, end, wanted)
    listed = list_offsets(connection, dict.fromkeys(ids.values(), EARLIEST), Isolation.READ_COMMITTED)
    starts = {partition: listed[ids[partition]].log_start_offset for partition in wanted if ids[partition] in listed}
    for partition in starts:
        stable = listed[ids[partition]].last_stable_offset
        if stable < end.ends[partition]:
            raise _truncated(partition, end.ends[partition], stable)
    ranges = {
        partition: (
            start.ends[partition] if start is not None and start.is_of(partition, ids[partition]) else at,
            end.ends[partition],
        )
        for partition, at in starts.items()
    }
    return _measured(connection, ids, starts, ranges)


def _truncated(partition: TopicPartition, end: int, log_end: int) -> errors.LogTruncated:
    return errors.LogTruncated(
        f"{partition}: the cut ends at {end}, the log at {log_end}: a crash took records back",
        at=partition,
        offset=end,
        limit=log_end,
    )


def _measured(
    connection: RawConnection,
    ids: Mapping[TopicPartition, int],
    log_starts: Mapping[TopicPartition, int],
    ranges: Mapping[TopicPartition, Range],
) -> dict[TopicPartition, CommittedRange]:
    sizes = {ids[partition]: [0, 0] for partition in ranges}
    by_id = {ids[partition]: each for partition, each in ranges.items()}
    transactions = count_transactions(connection, by_id)
    for piece in measure_ranges(connection, by_id, None):
        sizes[piece.partition_id][0] += piece.records
        sizes[piece.partition_id][1] += piece.bytes
    found = {}
    for partition, (first, last) in ranges.items():
        log_start = log_starts[partition]
        if first > max(last, log_start):
            raise errors.InvalidRequest(
                f"{partition}: the start, {first}, lies behind the end, {last}", at=partition, offset=first, limit=last
            )
        found[partition] = CommittedRange(
            start=min(first, last),
            end=last,
            removed=max(min(log_start, last) - first, 0),
            records=sizes[ids[partition]][0],
            bytes=sizes[ids[partition]][1],
            transactions=transactions[ids[partition]],
        )
    return found


def _saved(one: SavedText, incarnation: str) -> SavedSnapshot:
    cut = Snapshot.parse(one.snapshot)
    return SavedSnapshot(one.name, cut, epoch_ms(one.taken_at), one.role_name, cut.incarnation == incarnation)
