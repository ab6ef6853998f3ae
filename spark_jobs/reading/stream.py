"""The streaming source: offsets are consistent cuts, a planned range reads the same after a restart (I14, I15).

Spark's questions to the driver are repeated while the database is away (`again`): the answers change this object last.
"""

import itertools
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from msgtx import errors
from msgtx.database.pool import Engine
from msgtx.rules.boundary import Span
from msgtx.rules.ranges import PartitionRange
from msgtx.spark_jobs.reading import offsets, read_options
from msgtx.spark_jobs.reading.ends import Ends
from msgtx.spark_jobs.reading.idle import Idle
from msgtx.spark_jobs.runtime.outage import again
from msgtx.spark_jobs.runtime.primary import driver_engine, primary_of
from msgtx.spark_jobs.source import Noted, ReadPartition, checked, read, tasks, timestamp_types
from msgtx.store.fetch import fetch
from msgtx.store.fetch.cuts import spans_of_transactions
from msgtx.store.fetch.fetch import list_offsets
from msgtx.store.spark import follow_batch, noted_begins
from msgtx.store.topics.topics import describe_topics, partitions_of
from msgtx.types import Isolation, Snapshot, TopicPartition

LOOK_SECONDS: Final = 0.05  # between two looks for a cut with all records of a run's begin: half a short transaction
BEGUN: Final = "begun"  # in the end of a stream's first batch: where it began, which its checkpoint tells nowhere else
Offset = dict[
    str, Any
]  # as Spark logs it: {"incarnation": "…", "topics": {"orders": {"0": 42}}, "ids": {"orders": {"0": 7}}}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches. Its driver's half lives as long as the query; the executors' is made anew for each task."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self.options = read_options.parse(given, streaming=True)
        self.schema = checked(schema)
        self._ends = Ends(self._spans, self.options.cut_delay_ms)
        self._engine: Engine | None = None
        self._target: Snapshot | None = None  # where an AvailableNow run ends
        self._latest: Offset | None = None
        self._source_id = str(uuid.uuid4())  # of this run: another source of the same partitions has another
        self._plans = itertools.count()
        self._begin: Offset | None = None  # where the query begins, if its checkpoint does not say so
        self._followed: Offset | None = None  # up to which the group has followed; None: it is not known in this run
        self._few_since: float | None = None
        self._idle = Idle()

    # ── calls of Spark on the driver ──

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint begins: the group's offsets, else startingOffsets."""
        self._begin = self._followed = again(self._database(), self._initial_offset)
        return self._begin

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return `maxOffsetsPerTrigger`."""
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return where the next batch ends: a consistent cut if there is one in time; `start` when there is nothing."""
        return again(self._database(), lambda: self._latest_offset(start, limit))

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Return the newest cut, for the progress of the query; `lag`: how many offsets no batch has taken yet."""
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the end: the committed records of now, in whole transactions if a cut with them comes in time."""
        self._target = again(self._database(), self._whole_target)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the plan of a batch's tasks. Asked again after a restart, it is the same."""
        if start == self._begin and self._latest is None:
            # Spark repeats the first batch. `start`: where the query would begin by now.
            start = self._followed = end.get(BEGUN, end)
        if start == end:
            return []
        if self._followed is None:
            self._followed = start  # Spark repeats the last batch of the run before
        return again(self._database(), lambda: self._planned(start, end))

    def commit(self, end: Offset) -> None:
        """Do nothing: `latestOffset` learns of the end sooner, and at the end of an AvailableNow run, too."""

    def stop(self) -> None:
        """Close the connections."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    # ── calls of Spark on the executors ──

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task's range."""
        return read(partition, self.schema)

    # ──

    def _database(self) -> Engine:
        if self._engine is None:
            asked = self.options
            self._engine = driver_engine(
                asked.url, outage_timeout=asked.outage_timeout, on_failover=asked.on_failover, pool_size=1
            )
        return self._engine

    def _initial_offset(self) -> Offset:
        found = offsets.begin(self._database(), self.options)
        seen = offsets.seen(self._database(), self.options, found.ends)
        ends = {each: found.ends[each] for each in seen}
        return offset_of(replace(found, ends=ends), {each: partition_id for each, (partition_id, _) in seen.items()})

    def _latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        if self._target is None and self._idle.goes_on(start, self._stable):
            return start
        begun, ids = parsed(start)
        self._follow(start)
        positions = {ids[partition]: end for partition, end in begun.ends.items() if partition in ids}
        target = self._target or offsets.latest(self._database(), self.options, positions)
        if begun.incarnation != target.incarnation:
            raise errors.IncarnationChanged(
                f"the stream has read incarnation {begun.incarnation}, the database has {target.incarnation} since a"
                " failover or a restore: begin with a new checkpoint"
            )
        seen = offsets.seen(self._database(), self.options, target.ends)
        begun = self._without_remade(begun, ids, {each: partition_id for each, (partition_id, _) in seen.items()})
        ranges, stable = [], {}
        for partition, (partition_id, listed) in sorted(seen.items()):
            first = begun.ends.get(partition, listed.log_start_offset)
            # A topic that was made anew since the target was looked up may be shorter.
            end = min(target.ends[partition], listed.last_stable_offset)
            ranges.append(PartitionRange(partition_id, *partition, first, max(first, end)))
            stable[partition_id] = listed.last_stable_offset
        self._latest = {**_offset(ranges, target.incarnation), "lag": sum(each.size for each in ranges)}
        if self._are_few(ranges):
            return start
        if self._target is not None:
            stable = {each.partition_id: each.end for each in ranges}
        chosen = self._ends.choose(ranges, stable, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        self._latest["lag"] -= sum(each.size for each in chosen)
        reached = _offset(chosen, target.incarnation)
        if parsed(reached) == parsed(start):
            reached = start
        elif start == self._begin:
            reached[BEGUN] = start
        if reached == start and all(stable[each.partition_id] == each.start for each in ranges):
            self._idle.begin(start, stable)
        else:
            self._idle.end()
        return reached

    def _stable(self, partitions: Collection[int]) -> dict[int, int]:
        with self._database().connection() as connection:
            found = list_offsets(connection, dict.fromkeys(partitions, fetch.LATEST), Isolation.READ_COMMITTED)
        return {partition_id: at.last_stable_offset for partition_id, at in found.items()}

    def _whole_target(self) -> Snapshot:
        engine = self._database()
        cut = offsets.latest(engine, self.options)
        seen = offsets.seen(engine, self.options, cut.ends)
        stable = {partition: listed.last_stable_offset for partition, (_, listed) in seen.items()}
        deadline = time.monotonic() + self._ends.delay_ms / 1_000
        while any(cut.ends.get(partition, 0) < end for partition, end in stable.items()) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            cut = offsets.latest(engine, self.options)
        return Snapshot(
            {partition: max(cut.ends.get(partition, 0), end) for partition, end in stable.items()}, cut.incarnation
        )

    def _spans(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Span]:
        with self._database().connection() as connection:
            return spans_of_transactions(connection, starts, ends)

    def _are_few(self, ranges: Sequence[PartitionRange]) -> bool:
        """Return whether to wait for `minOffsetsPerTrigger`; an AvailableNow run waits for nothing."""
        least = self.options.min_offsets_per_trigger
        if least is None or self._target is not None or sum(each.size for each in ranges) >= least:
            self._few_since = None
            return False
        now = time.monotonic()
        if self._few_since is None:
            self._few_since = now
        if (now - self._few_since) * 1_000 < self.options.max_trigger_delay_ms:
            return True
        self._few_since = None
        return False

    def _without_remade(
        self, begun: Snapshot, ids: Mapping[TopicPartition, int], places: Mapping[TopicPartition, int]
    ) -> Snapshot:
        """Leave out partitions whose topic was deleted and made anew: they are read from their beginning."""
        remade = sorted(each for each in begun.ends if each in places and ids.get(each, places[each]) != places[each])
        if remade and self.options.fail_on_data_loss:
            names = ", ".join(map(str, remade))
            raise errors.UnknownTopicOrPartition(
                f"{names}: deleted and made anew since it was read; failOnDataLoss=false reads it from its beginning"
            )
        if remade:
            read_options.log.warning("%s: made anew, read from the beginning", ", ".join(map(str, remade)))
        return replace(begun, ends={each: end for each, end in begun.ends.items() if each not in remade})

    def _planned(self, start: Offset, end: Offset) -> list[ReadPartition]:
        engine, options = self._database(), self.options
        (begun, ids), (reached, ids_reached) = parsed(start), parsed(end)
        begun = self._without_remade(begun, ids, ids_reached)
        new = [each for each in reached.ends if each not in begun.ends]
        with engine.connection() as connection:
            topics = describe_topics(connection, sorted({each.topic for each in reached.ends}))
            places = {place: each for each, place in partitions_of(topics.values()).items()}
            asked = {places[each]: fetch.EARLIEST for each in new if each in places}
            listed = list_offsets(connection, asked, Isolation.READ_COMMITTED)
        firsts = {each: listed[places[each]].log_start_offset for each in new if places.get(each) in listed}
        reached = self._without_remade(reached, ids_reached, places)
        plan = offsets.between(engine, options, replace(begun, ends={**begun.ends, **firsts}), reached)
        with offsets.reader(engine, options, plan) as reader:
            url, primary = reader.url, primary_of(reader)
        types = timestamp_types(engine, plan.ranges)
        bounds = {
            each.partition_id: (begun.ends.get(each.topic_partition, 0), reached.ends[each.topic_partition])
            for each in plan.ranges
        }
        noted = Noted(
            options.group,
            self._source_id,
            next(self._plans),
            {partition_id: (first, last) for partition_id, (first, last) in bounds.items() if first < last},
            engine.url,
            primary_of(engine),
        )
        parts = tasks(plan, options, types, url, primary, noted)
        if not parts and noted.ranges:
            # A range that was removed before it was read has no records, and still moves the group's offset.
            parts = [
                ReadPartition(
                    (), plan.incarnation, {}, options.fail_on_data_loss, url, options.outage_timeout, primary, noted
                )
            ]
        return parts

    def _follow(self, start: Offset) -> None:
        """Have the group at `start`: Spark asks for what is behind it when all batches before it are complete.

        A sink of msgtx has committed the group's offsets with its outputs. Behind any other sink they follow here.
        """
        group = self.options.group
        if group is None or start == self._followed:
            return
        done, ids = parsed(start)
        if self._followed is None:
            ranges = self._resumed(group, done, ids)
        else:
            begun = self._without_remade(*parsed(self._followed), ids)
            ranges = {ids[each]: (begun.ends.get(each, 0), end) for each, end in done.ends.items()}
            ranges = {each: (first, end) for each, (first, end) in ranges.items() if first < end}
        if ranges:
            with self._database().connection() as connection:
                follow_batch(connection, group, ranges, source_id=self._source_id)
        self._followed = start

    def _resumed(self, group: str, done: Snapshot, ids: Mapping[TopicPartition, int]) -> dict[int, tuple[int, int]]:
        """Return the ranges of the last batch of an earlier run by which the group is behind its checkpoint.

        Raise `BatchConflict` if the group is elsewhere.
        """
        with self._database().connection() as connection:
            noted = noted_begins(connection, group, {ids[each]: end for each, end in done.ends.items()})
        ranges = {}
        for partition, end in sorted(done.ends.items()):
            at = noted[ids[partition]]
            if at.repeats or at.committed == end or at.committed == at.start is None:
                continue
            if at.start is None:
                raise errors.BatchConflict(
                    f"group {group} is at offset {at.committed} of {partition}, and the checkpoint of the query at {end}:"
                    " start with a new checkpoint, from the group's offsets, or reset these to where the checkpoint is",
                    group=group,
                    at=partition,
                )
            ranges[ids[partition]] = (at.start, end)
        return ranges


def offset_of(snapshot: Snapshot, ids: Mapping[TopicPartition, int]) -> Offset:
    """Return a snapshot as Spark logs it, with the partitions' ids: a topic that is made anew under its name has others."""
    found: Offset = {"incarnation": snapshot.incarnation, "topics": {}, "ids": {}}
    for partition in sorted(snapshot.ends):
        for key, number in (("topics", snapshot.ends[partition]), ("ids", ids[partition])):
            found[key].setdefault(partition.topic, {})[str(partition.partition)] = number
    return found


def _offset(ranges: Sequence[PartitionRange], incarnation: str) -> Offset:
    return offset_of(
        Snapshot({each.topic_partition: each.end for each in ranges}, incarnation),
        {each.topic_partition: each.partition_id for each in ranges},
    )


def parsed(offset: Offset) -> tuple[Snapshot, dict[TopicPartition, int]]:
    """Return the arguments of `offset_of`."""
    ends, ids = (
        {TopicPartition(topic, int(index)): number for topic, each in offset[key].items() for index, number in each.items()}
        for key in ("topics", "ids")
    )
    return Snapshot(ends, offset["incarnation"]), ids
