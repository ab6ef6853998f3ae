"""A msgtx database as the source of a mirror: portions that divide no transaction (I15)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgtx import errors
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.mirror.ends import Lag, Portion, PortionLimits, Progress, SourcePlace, TopicShape
from msgtx.receiving.wakeup import Listener, Waiter
from msgtx.rules.boundary import lowered
from msgtx.store.fetch.cuts import CutPartition, spans_of_transactions
from msgtx.store.fetch.fetch import FetchedBatch, FetchedPartition, Position, fetch
from msgtx.store.fetch.holders import stable_cut
from msgtx.store.fetch.records import first_records, records_of
from msgtx.store.mirrors import flush_source
from msgtx.store.operator.installation import identify_server
from msgtx.store.topics.topics import Topic, describe_topics, partitions_of, topics_version, unknown_topic
from msgtx.types import Isolation, Record, TopicPartition

ANSWER_BYTES: Final = 8 * 1024 * 1024  # of one answer: bounds what a portion may have beyond its limit
MOST_HELD_BYTES: Final = 64 * 1024 * 1024  # of a portion in memory: a larger one is read again as it is written
# Python's share of a row of the log, and of a record or a header with a small key and value; measured with tracemalloc.
HELD_ROW_BYTES: Final = 400
HELD_RECORD_BYTES: Final = 130
MOST_LOOKS: Final = 100  # for a cut during which no topic changes

Batches = dict[int, list[FetchedBatch]]


class _Held:
    """The batches of a portion by partition id, unless they are too large for memory: then there are none."""

    def __init__(self) -> None:
        self.batches: Batches = {}
        self.fits = True
        self._bytes = 0

    def add(self, partition_id: int, batches: list[FetchedBatch]) -> None:
        """Keep batches that were read behind the others."""
        self._bytes += sum(map(_held_bytes, batches))
        self.fits = self.fits and self._bytes <= MOST_HELD_BYTES
        if self.fits:
            self.batches.setdefault(partition_id, []).extend(batches)
        else:
            self.batches.clear()


class DatabaseSource:
    """The records of some topics behind a progress, in portions that end where no transaction is divided.

    `chosen`: whether a topic of this name is copied, also a later one. `required`: topics that must be there.
    `skip_removed`: continue where the log starts when retention has removed records that were not copied.
    """

    def __init__(
        self,
        engine: Engine,
        listener: Listener,
        chosen: Callable[[str], bool],
        *,
        required: frozenset[str] = frozenset(),
        skip_removed: bool = False,
    ) -> None:
        self._engine = engine
        self._waiter = Waiter(listener)
        self._chosen = chosen
        self._required = required
        self._skip_removed = skip_removed
        self._topics: dict[str, Topic] = {}
        self._version: int | None = None  # of the topics at the last look

    def next(self, progress: Progress, limits: PortionLimits) -> Portion:
        """See `Source.next`."""
        self._waiter.clear()
        with self._engine.connection() as connection:
            partitions, positions, cut = self._cut(connection, progress)
            stable = self._require_history(connection, progress, partitions, positions, cut)
            ends, held = _portion(connection, positions, cut, limits)
            places = _places(connection, positions, ends, partitions)
            if places:
                flush_source(connection)
            lag = _lag(connection, stable, ends)
        read = _records(held.batches, partitions, positions, ends)
        return Portion(
            source=str(self._engine.incarnation),
            records=read if held.fits else self._read_again(partitions, positions, ends, places),
            places=places,
            topics={
                name: TopicShape(len(topic.partition_ids), topic.settings)
                for name, topic in self._topics.items()
                if any(partition.topic == name for partition in places)
            },
            lag=lag,
        )

    def _read_again(
        self,
        partitions: Mapping[int, TopicPartition],
        positions: Mapping[int, Position],
        ends: Mapping[int, int],
        places: Mapping[TopicPartition, SourcePlace],
    ) -> Iterator[Record]:
        """Yield the records of a portion that does not fit into memory, as it is written.

        Raise behind the last one if the source has another history by then than when the portion was made.
        """
        reached = dict(positions)
        while left := {each: at for each, at in reached.items() if at.offset < ends[each]}:
            with self._engine.connection() as connection:
                answers = _fetched(connection, left, ANSWER_BYTES)
            if not any(answers[each].position > at.offset for each, at in left.items()):
                raise _has_changed()
            batches = {each: answer.batches for each, answer in answers.items()}
            yield from _records(batches, partitions, positions, ends)
            reached |= {each: Position(answer.position, answer.token) for each, answer in answers.items()}
        with self._engine.connection() as connection:
            if _places(connection, positions, ends, partitions) != places:
                raise _has_changed()

    def wait(self, timeout: float) -> None:
        """See `Source.wait`."""
        self._waiter.wait(timeout)

    def close(self) -> None:
        """See `Source.close`. The connections are the client's."""
        self._waiter.watch(())

    def _cut(
        self, connection: RawConnection, progress: Progress
    ) -> tuple[dict[int, TopicPartition], dict[int, Position], dict[int, CutPartition]]:
        """Return the partitions that there are, the positions of a progress in them, and a cut of them.

        A transaction may have records in an older topic and in one that was made since the last look: a cut of the older one
        alone would divide it.
        """
        for _ in range(MOST_LOOKS):
            self._look_at_topics(connection)
            partitions = partitions_of(self._topics.values())
            positions = self._positions(progress, partitions)
            cut = stable_cut(connection, partitions, {each: at.offset for each, at in positions.items()})
            if topics_version(connection) == self._version:
                return partitions, positions, cut
        raise errors.RetriableError("the topics of the source change all the time", reason="topics change")

    def _look_at_topics(self, connection: RawConnection) -> None:
        """Look at the topics if they have changed. Raise `UnknownTopicOrPartition` for a missing one that was named."""
        version = topics_version(connection)
        if version == self._version:
            return
        found = describe_topics(connection, None)
        for name in sorted(self._required - found.keys()):
            raise unknown_topic(connection, name)
        self._topics = {name: topic for name, topic in found.items() if self._chosen(name)}
        self._waiter.watch(partitions_of(self._topics.values()))
        self._version = version

    def _positions(self, progress: Progress, partitions: Mapping[int, TopicPartition]) -> dict[int, Position]:
        """Return the positions of a progress. Raise `UnknownTopicOrPartition` for a topic that was made again."""
        positions = {}
        for partition_id, partition in partitions.items():
            place = progress.places.get(partition)
            if place is not None and place.topic_id != str(partition_id):
                raise errors.UnknownTopicOrPartition(
                    f"{partition}: the topic was deleted and made again on the source; compare, then `msgtx mirror reset`",
                    at=partition,
                    reason="made again",
                )
            if place is not None:
                positions[partition_id] = Position(place.offset, f"seen {place.identity}" if place.identity else None)
            else:
                positions[partition_id] = Position(0)
        return positions

    def _require_history(
        self,
        connection: RawConnection,
        progress: Progress,
        partitions: Mapping[int, TopicPartition],
        positions: dict[int, Position],
        cut: Mapping[int, CutPartition],
    ) -> dict[int, int]:
        """Raise if the source is not the one that was copied so far, or has lost a part of it. Move new positions up.

        Return the last stable offsets.
        """
        source = str(self._engine.incarnation)
        for partition_id, partition in partitions.items():
            position, start = positions[partition_id], cut[partition_id].log_start_offset
            if partition not in progress.places or (self._skip_removed and position.offset < start):
                positions[partition_id] = Position(max(position.offset, start))
            elif position.offset < start:
                raise errors.OffsetOutOfRange(
                    f"{partition}: offset {position.offset} was removed by retention before it was copied, the log starts at"
                    f" {start}; on_removed=skip continues there",
                    at=partition,
                    offset=position.offset,
                    limit=start,
                )
            elif progress.source != source and position.offset > start and position.token is None:
                raise errors.IncarnationChanged(
                    f"{partition}: the source has incarnation {source}, and was copied at {progress.source}; whether it has"
                    " lost records is not known: compare, then `msgtx mirror reset`"
                )
        answers = _ends(connection, positions)
        for partition_id, answer in answers.items():
            if answer.truncated:
                raise errors.LogTruncated(
                    f"{partitions[partition_id]}: the source has lost records that were copied, up to offset"
                    f" {positions[partition_id].offset}; its log ends at {answer.log_end_offset}: compare, then"
                    " `msgtx mirror reset`",
                    at=partitions[partition_id],
                    offset=positions[partition_id].offset,
                    limit=answer.log_end_offset,
                )
        return {partition_id: answer.last_stable_offset for partition_id, answer in answers.items()}


def database_of(engine: Engine) -> tuple[object, str]:
    """Return what a database shares with no other: its server and its name. A copy may have its incarnation."""
    with engine.connection() as connection:
        return identify_server(connection) or (connection.info.host, connection.info.port), connection.info.dbname


def _ends(connection: RawConnection, positions: Mapping[int, Position]) -> dict[int, FetchedPartition]:
    if not positions:
        return {}
    return fetch(connection, positions, isolation=Isolation.READ_COMMITTED, max_bytes=0, max_rows=0)


def _portion(
    connection: RawConnection, positions: Mapping[int, Position], cut: Mapping[int, CutPartition], limits: PortionLimits
) -> tuple[dict[int, int], _Held]:
    """Return ends that divide no transaction, and the batches below.

    Batches are read until there are such ends. They are those of the cut at the latest. Each round reads twice as much: all
    that was read is gone through again.
    """
    starts = {partition_id: at.offset for partition_id, at in positions.items()}
    reached, held = dict(positions), _Held()
    while True:
        _read_on(connection, reached, held, cut, limits)
        ends = {each: min(at.offset, max(cut[each].end, starts[each])) for each, at in reached.items()}
        if any(ends[each] < cut[each].end for each in ends):
            ends = lowered(starts, ends, spans_of_transactions(connection, starts, ends))
            if ends == starts:
                limits = PortionLimits(2 * limits.records, 2 * limits.bytes)
                continue
        return ends, held


def _read_on(
    connection: RawConnection,
    reached: dict[int, Position],
    held: _Held,
    cut: Mapping[int, CutPartition],
    limits: PortionLimits,
) -> None:
    """Read a portion's worth behind what was reached, below the cut."""
    size = count = 0
    while (left := {each: at for each, at in reached.items() if at.offset < cut[each].end}) and size < limits.bytes:
        answers = _fetched(connection, left, min(limits.bytes - size, ANSWER_BYTES))
        if not any(answers[each].position > at.offset for each, at in left.items()):
            raise _has_changed()
        for partition_id, answer in answers.items():
            reached[partition_id] = Position(answer.position, answer.token)
            held.add(partition_id, answer.batches)
            size += sum(map(_bytes_of, answer.batches))
            count += sum(len(batch.values) for batch in answer.batches)
        if count >= limits.records:
            return


def _fetched(connection: RawConnection, positions: Mapping[int, Position], most: int) -> dict[int, FetchedPartition]:
    """Read on from positions. Raise `RetriableError` if something there is gone since the last look at the history."""
    answers = fetch(connection, positions, isolation=Isolation.READ_COMMITTED, max_bytes=most, total_bytes=most)
    for each, at in positions.items():
        if each not in answers or answers[each].truncated or answers[each].log_start_offset > at.offset:
            raise _has_changed()
    return answers


def _has_changed() -> errors.RetriableError:
    """Return an error after which the next look at the history says what has happened."""
    return errors.RetriableError("records of the source were removed while they were read", reason="removed")


def _bytes_of(batch: FetchedBatch) -> int:
    return sum(len(value) for column in (batch.keys, batch.values, batch.header_values) for value in column or () if value)


def _held_bytes(batch: FetchedBatch) -> int:
    """Return about how much memory a batch takes."""
    return HELD_ROW_BYTES + HELD_RECORD_BYTES * (len(batch.values) + len(batch.header_keys or ())) + _bytes_of(batch)


def _places(
    connection: RawConnection,
    positions: Mapping[int, Position],
    ends: Mapping[int, int],
    partitions: Mapping[int, TopicPartition],
) -> dict[TopicPartition, SourcePlace]:
    """Return the places that change, each with the identity of the row before it."""
    moved = {each: Position(end) for each, end in ends.items() if end > positions[each].offset}
    return {
        partitions[each]: SourcePlace(ends[each], str(each), "" if answer.token is None else answer.token.partition(" ")[2])
        for each, answer in _ends(connection, moved).items()
    }


def _lag(connection: RawConnection, stable: Mapping[int, int], ends: Mapping[int, int]) -> Lag:
    behind = {each: end for each, end in ends.items() if end < stable.get(each, end)}
    if not behind:
        return Lag(0, 0)
    oldest = max((row.age_ms for row in first_records(connection, behind).values()), default=0)
    return Lag(sum(stable[each] - end for each, end in behind.items()), max(int(oldest), 0))


def _records(
    batches: Batches, partitions: Mapping[int, TopicPartition], positions: Mapping[int, Position], ends: Mapping[int, int]
) -> Iterator[Record]:
    for partition_id, read in batches.items():
        for batch in read:
            if batch.base_offset >= ends[partition_id]:
                break
            for record in records_of(batch, partitions[partition_id], positions[partition_id].offset):
                if record.offset < ends[partition_id]:
                    yield record
