"""Partitions as an administrator sees them."""

import itertools
from collections.abc import Collection, Mapping
from typing import Final

from msgtx import arguments, errors
from msgtx.database.pool import Engine
from msgtx.store.append.append import epoch_ms, epoch_ms_or_none
from msgtx.store.fetch.fetch import LATEST, ListedOffset, list_offsets
from msgtx.store.fetch.rows import DescribedRow, describe_rows
from msgtx.store.monitoring import groups_on_partitions, measure_logs
from msgtx.store.topics.retention import delete_records
from msgtx.store.topics.topics import partitions_of, require_partitions, require_topics
from msgtx.types import (
    GroupProgress,
    Isolation,
    LogRow,
    PartitionDescription,
    PartitionProgress,
    PartitionRows,
    RowState,
    TopicPartition,
    TransactionId,
)

LISTED_AT_ONCE: Final = 1_000  # partitions of one call: some 50 ms
MOST_LOG_ROWS: Final = 10_000  # of one answer
MOST_MEASURED: Final = 10_000  # partitions of one answer
MOST_PAIRS: Final = 1_000_000  # of a group and a partition: some 5 s


class PartitionsAdmin:
    """`client.admin.partitions`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self, partition: TopicPartition) -> PartitionDescription:
        """Return log start, last stable offset and log end. Raise `UnknownTopicOrPartition`."""
        partition = arguments.partition(partition)
        at = self.offsets([partition.topic], LATEST, Isolation.READ_COMMITTED).get(partition)
        if at is None:
            raise errors.UnknownTopicOrPartition(f"there is no partition {partition}", at=partition)
        return PartitionDescription(at.log_start_offset, at.last_stable_offset, at.log_end_offset)

    def describe_all(self, topic: str) -> dict[TopicPartition, PartitionDescription]:
        """Return the description of each partition of a topic, in order. Raise `UnknownTopicOrPartition`."""
        found = self.offsets([arguments.topic(topic)], LATEST, Isolation.READ_COMMITTED)
        return {
            partition: PartitionDescription(at.log_start_offset, at.last_stable_offset, at.log_end_offset)
            for partition, at in found.items()
        }

    def offsets(self, topics: list[str] | None, timestamp: int, isolation: Isolation) -> dict[TopicPartition, ListedOffset]:
        """Return ends and the offset at a time (milliseconds, EARLIEST, LATEST) of all partitions of topics (None: all)."""
        names = None if topics is None else arguments.topics(topics)
        timestamp = arguments.whole("timestamp", timestamp, least=-arguments.LARGEST_INT8)
        isolation = Isolation(arguments.one_of("isolation", isolation, Isolation))
        with self._engine.connection() as connection:
            ids = partitions_of(require_topics(connection, names).values())
            listed: dict[int, ListedOffset] = {}
            asked = list(ids)
            for begin in range(0, len(asked), LISTED_AT_ONCE):
                some = asked[begin : begin + LISTED_AT_ONCE]
                listed |= list_offsets(connection, dict.fromkeys(some, timestamp), isolation)
        return {name: listed[partition_id] for partition_id, name in ids.items() if partition_id in listed}

    def rows(
        self,
        partition: TopicPartition,
        most: int = 1_000,
        *,
        from_offset: int | None = None,
        before_offset: int | None = None,
    ) -> PartitionRows:
        """Return rows of a partition's log: the last ones, at most `most` (1 to 10,000), and the ends of the log.

        `before_offset`: the last ones in front of it; `from_offset`: the first ones from the row that holds it on. Raise
        `UnknownTopicOrPartition`, `AuthorizationFailed` without the right to consume or observe the topic.
        """
        partition = arguments.partition(partition)
        most = arguments.whole("most", most, least=1, most=MOST_LOG_ROWS)
        if from_offset is not None:
            from_offset = arguments.whole("from_offset", from_offset)
        if before_offset is not None:
            before_offset = arguments.whole("before_offset", before_offset)
        with self._engine.connection() as connection:
            partition_id = require_partitions(connection, [partition])[partition]
            found = describe_rows(connection, partition_id, from_offset=from_offset, before_offset=before_offset, most=most)
        if not found:
            raise errors.UnknownTopicOrPartition(f"there is no partition {partition}", at=partition)
        return PartitionRows(
            partition.topic,
            partition.partition,
            found[0].log_start_offset,
            found[0].last_stable_offset,
            found[0].log_end_offset,
            [_row(one) for one in found if one.base_offset is not None],
        )

    def progress(
        self, topic: str, partitions: Collection[int] | None = None, *, most: int = 50, pairs: int = 20_000
    ) -> list[PartitionProgress]:
        """Return how full partitions of a topic are, and how far each group and share group is on them.

        `partitions`: these; None: the first `most`. Groups that the role may use, or all if it may observe the topic, on as
        many of the partitions as `pairs` of a group and a partition allow. Raise `UnknownTopicOrPartition`,
        `AuthorizationFailed` without the right to consume or observe the topic.
        """
        topic, most = arguments.topic(topic), arguments.whole("most", most, least=1, most=MOST_MEASURED)
        pairs = arguments.whole("pairs", pairs, least=0, most=MOST_PAIRS)
        asked = [] if partitions is None else arguments.listed("partitions", partitions)
        if len(asked) > MOST_MEASURED:
            raise errors.InvalidRequest(f"at most {MOST_MEASURED} partitions at once", name="partitions")
        with self._engine.connection() as connection:
            if partitions is None:
                known = partitions_of(require_topics(connection, [topic]).values())
                names = {name.partition: partition_id for partition_id, name in itertools.islice(known.items(), most)}
            else:
                places = [arguments.partition(TopicPartition(topic, each)) for each in asked]
                names = {place.partition: found for place, found in require_partitions(connection, places).items()}
            logs = {log.partition_id: log for log in measure_logs(connection, list(names.values()))}
            rows, searched = groups_on_partitions(connection, list(names.values()), pairs=pairs)
        groups: dict[int, list[GroupProgress]] = {}
        for row in rows:
            found_there = groups.setdefault(row.partition_id, [])
            found_there.append(
                GroupProgress(row.group_name, row.is_share_group, row.at, row.next_offset, row.records, row.age_ms)
            )
        return [
            PartitionProgress(
                partition=partition,
                log_start_offset=log.log_start_offset,
                last_stable_offset=log.last_stable_offset,
                log_end_offset=log.log_end_offset,
                bytes=log.bytes,
                groups=groups.get(partition_id, []),
                groups_searched=place < searched,
            )
            for place, (partition, partition_id) in enumerate(names.items())
            if (log := logs.get(partition_id)) is not None
        ]

    def delete_records(self, befores: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below these offsets (−1: all up to the log end). Returns the log starts, which move at once.

        An offset below the log start changes nothing. The space is given back by the sweep `retention`. Raise
        `UnknownTopicOrPartition`, `OffsetOutOfRange` beyond a log end: nothing is deleted then.
        """
        wanted = {
            arguments.partition(each): arguments.whole("an offset", before, least=-1)
            for each, before in arguments.mapping("befores", befores).items()
        }
        with self._engine.connection() as connection:
            ids = require_partitions(connection, wanted)
            starts = delete_records(connection, {ids[partition]: before for partition, before in wanted.items()})
        return {partition: starts[partition_id] for partition, partition_id in ids.items()}


def _row(one: DescribedRow) -> LogRow:
    return LogRow(
        base_offset=one.base_offset,
        last_offset=one.last_offset,
        records=one.record_count,
        compacted=one.last_offset + 1 - one.base_offset - one.record_count,
        bytes=one.byte_size,
        appended_at=epoch_ms(one.appended_at),
        producer_id=one.producer_id,
        transaction_id=None
        if one.transaction_number is None
        else TransactionId(one.producer_id, one.producer_epoch, one.transaction_number),
        transactional_id=one.transactional_id,
        state=RowState(one.state),
        decided_at=epoch_ms_or_none(one.decided_at),
    )
