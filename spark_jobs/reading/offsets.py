"""The plan of a read, made on the driver: options become ranges of offsets below the last stable offset (I14, I15).

A batch is `plan`. A stream is `begin` for its first offset, `latest` for how far it may go, and `between` for the ranges of
two offsets, which are snapshots. Ends that are not named are a consistent cut.
"""

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgtx import errors
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.rules.ranges import PartitionRange, limit, ordered, split
from msgtx.spark_jobs.reading.read_options import EARLIEST, LATEST, AtTime, ReadOptions, log
from msgtx.spark_jobs.runtime.outage import REPLICA, patient
from msgtx.store.fetch import fetch
from msgtx.store.fetch.cuts import NO_POSITIONS, CutPartition
from msgtx.store.fetch.fetch import ListedOffset, list_offsets
from msgtx.store.fetch.holders import stable_cut, stable_ends, stable_offsets
from msgtx.store.operator.installation import require_incarnation
from msgtx.store.topics.topics import describe_topics, partitions_of, require_partitions, require_topics
from msgtx.types import Isolation, Snapshot, TopicPartition

REPLICA_LOOK_SECONDS: Final = 0.05  # between two looks at a replica: a tenth of the least duration of a batch
Places = dict[TopicPartition, int]  # partition ids by name


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a read: one range per partition, also the empty ones, and the incarnation of their database."""

    ranges: tuple[PartitionRange, ...]
    incarnation: str

    @property
    def start(self) -> Snapshot:
        """Where it begins."""
        return Snapshot({each.topic_partition: each.start for each in self.ranges}, self.incarnation)

    @property
    def end(self) -> Snapshot:
        """Its end, from which a stream continues."""
        return Snapshot({each.topic_partition: each.end for each in self.ranges}, self.incarnation)

    @property
    def size(self) -> int:
        """How many offsets it holds: at least as many as records."""
        return sum(each.size for each in self.ranges)

    def limited(self, most: int) -> "Plan":
        """Return its front of about so many offsets, each partition in proportion to its range."""
        return Plan(tuple(limit(self.ranges, most)), self.incarnation)

    def split(self, options: ReadOptions) -> list[PartitionRange]:
        """Return the tasks' ranges, none empty, as `minPartitions` and `maxRecordsPerPartition` say."""
        return split(self.ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)


def plan(engine: Engine, options: ReadOptions) -> Plan:
    """Return the plan of a batch.

    Raise `IncarnationChanged`, `UnknownTopicOrPartition`, `OffsetOutOfRange` for offsets that were removed or are not
    committed yet, `LogTruncated` for a snapshot beyond the log's end, `UnstableOffset`, `ConfigError`.
    """
    with engine.connection() as connection:
        incarnation = require_incarnation(connection, options.snapshot, options.start)
        look = _Look(connection, options, _chosen(connection, options))
        ends = {partition: look.end(partition) for partition in look.places}
        starts = {partition: look.start(partition, ends[partition]) for partition in look.places}
        return look.ranges(starts, ends, incarnation)


def begin(engine: Engine, options: ReadOptions) -> Snapshot:
    """Return where a new stream begins. Raise what `plan` does."""
    with engine.connection() as connection:
        incarnation = require_incarnation(connection, options.start)
        look = _Look(connection, options, _chosen(connection, options))
        ends = {partition: look.cut(partition) for partition in look.places}
        starts = {partition: look.start(partition, ends[partition]) for partition in look.places}
        return look.ranges(starts, ends, incarnation).start


def latest(engine: Engine, options: ReadOptions, positions: Mapping[int, int] = NO_POSITIONS) -> Snapshot:
    """Return how far a stream may read now: a consistent cut. Raise `UnknownTopicOrPartition`.

    `positions`: where it stands, by partition id. It may have read a part of a transaction; the rest is not divided. With
    `failOnDataLoss=false` a topic that is not there (any more) is left out, and so may all be: it can be made again.
    """
    with engine.connection() as connection:
        incarnation = require_incarnation(connection)
        places = _chosen(connection, options, running=True)
        names = {partition_id: partition for partition, partition_id in places.items()}
        cut = stable_cut(connection, names, {each: at for each, at in positions.items() if each in names})
    return Snapshot({names[partition_id]: at.end for partition_id, at in cut.items()}, incarnation)


def seen(
    engine: Engine, options: ReadOptions, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, ListedOffset]]:
    """Return the ids of partitions and the ends of their logs: one that was deleted in this moment is left out.

    Raise `UnknownTopicOrPartition` for that, unless `failOnDataLoss` is false.
    """
    with engine.connection() as connection:
        places = _still_there(connection, options, partitions)
        listed = list_offsets(connection, dict.fromkeys(places.values(), fetch.LATEST), Isolation.READ_COMMITTED)
    _tell_gone(options, [each for each, partition_id in places.items() if partition_id not in listed])
    return {each: (partition_id, listed[partition_id]) for each, partition_id in places.items() if partition_id in listed}


def between(engine: Engine, options: ReadOptions, start: Snapshot, end: Snapshot) -> Plan:
    """Return the plan between two offsets of a stream. A partition that `start` does not name is read from its beginning.

    Partitions that `end` does not name have gone. Raise what `plan` does.
    """
    with engine.connection() as connection:
        incarnation = require_incarnation(connection, start, end)
        _tell_gone(options, start.ends.keys() - end.ends.keys())
        look = _Look(connection, options, _still_there(connection, options, end.ends))
        ends = {partition: look.reached(partition, end.ends[partition]) for partition in look.places}
        starts = {partition: start.ends.get(partition, 0) for partition in look.places}
        return look.ranges(starts, ends, incarnation)


@contextlib.contextmanager
def reader(engine: Engine, options: ReadOptions, plan: Plan) -> Iterator[Engine]:
    """Check out the engine of the tasks' database: a replica that has replayed the whole plan, or the given one.

    Raise the errors of `await_replica`.
    """
    if options.read_url is None:
        yield engine
        return
    with patient(Engine(options.read_url, pool_size=1), options.outage_timeout) as replica:
        await_replica(replica, plan, timeout_ms=options.replica_timeout_ms)
        yield replica


def await_replica(engine: Engine, plan: Plan, *, timeout_ms: int) -> None:
    """Wait until a replica has replayed all that is planned, decisions included. Raise `DatabaseUnavailable`."""
    wanted = {each.partition_id: each for each in plan.ranges if each.size > 0}
    deadline = time.monotonic() + timeout_ms / 1_000
    while True:
        with engine.connection() as connection:
            incarnation = require_incarnation(connection)
            found = list_offsets(connection, dict.fromkeys(wanted, fetch.LATEST), Isolation.READ_COMMITTED)
        if incarnation != plan.incarnation:
            raise errors.IncarnationChanged(
                f"url is of incarnation {plan.incarnation}, read_url of {incarnation}: they are not one database"
            )
        behind = [
            each
            for partition_id, each in wanted.items()
            if partition_id not in found or found[partition_id].last_stable_offset < each.end
        ]
        if not behind:
            return
        if time.monotonic() > deadline:
            first = behind[0]
            at = found[first.partition_id].last_stable_offset if first.partition_id in found else "nothing"
            raise errors.DatabaseUnavailable(
                f"the replica of read_url has not replayed {first.topic_partition} up to {first.end} within"
                f" replica_timeout_ms={timeout_ms}: it is at {at}; {len(behind)} partitions are behind",
                reason=REPLICA,
            )
        time.sleep(REPLICA_LOOK_SECONDS)


# Which partitions


def _chosen(connection: RawConnection, options: ReadOptions, *, running: bool = False) -> Places:
    """Return the partitions that are asked for. With a snapshot: only its partitions.

    A named topic must be there when reading begins; a stream that is `running` may lose it.
    """
    if options.snapshot is not None:
        return _still_there(connection, options, _in_snapshot(connection, options, options.snapshot))
    if options.pattern is None and running:
        return _left(connection, options)
    if options.assigned is not None:
        return require_partitions(connection, options.assigned)
    if options.pattern is not None:
        topics = describe_topics(connection, None)
        matching = [topic for name, topic in topics.items() if re.fullmatch(options.pattern, name)]
        return {partition: partition_id for partition_id, partition in partitions_of(matching).items()}
    found = require_topics(connection, options.topics or ())
    return {partition: partition_id for partition_id, partition in partitions_of(found.values()).items()}


def _left(connection: RawConnection, options: ReadOptions) -> Places:
    """Return the remaining ones of the named topics or partitions."""
    names = options.topics or sorted({partition.topic for partition in options.assigned or ()})
    topics = describe_topics(connection, names)
    places = {partition: partition_id for partition_id, partition in partitions_of(topics.values()).items()}
    found = {each: place for each, place in places.items() if options.assigned is None or each in options.assigned}
    if options.fail_on_data_loss:
        _tell_gone(options, [each for each in options.assigned or () if each not in found])
        _tell_gone(options, [name for name in names if name not in topics])
    return found


def _in_snapshot(connection: RawConnection, options: ReadOptions, snapshot: Snapshot) -> list[TopicPartition]:
    if options.assigned is not None:
        wanted: Iterable[TopicPartition] = options.assigned
    elif options.pattern is not None:
        wanted = [partition for partition in snapshot.ends if re.fullmatch(options.pattern, partition.topic)]
    elif options.topics is not None:
        held = {partition.topic for partition in snapshot.ends}
        if absent := [topic for topic in options.topics if topic not in held]:
            require_topics(connection, absent)
            raise errors.ConfigError(
                f"the snapshot holds nothing of topic {absent[0]!r}: take one of all that is read",
                name="snapshot",
                topic=absent[0],
            )
        wanted = [partition for partition in snapshot.ends if partition.topic in options.topics]
    else:
        wanted = snapshot.ends
    for partition in wanted:
        if partition not in snapshot.ends:
            raise errors.ConfigError(
                f"the snapshot holds nothing of {partition}: take one of all that is read", name="snapshot", at=partition
            )
    return list(wanted)


def _still_there(connection: RawConnection, options: ReadOptions, wanted: Iterable[TopicPartition]) -> Places:
    partitions = list(wanted)
    topics = describe_topics(connection, sorted({partition.topic for partition in partitions})) if partitions else {}
    known = {partition: partition_id for partition_id, partition in partitions_of(topics.values()).items()}
    _tell_gone(options, [partition for partition in partitions if partition not in known])
    return {partition: known[partition] for partition in partitions if partition in known}


def _tell_gone(options: ReadOptions, gone: Iterable[TopicPartition] | Iterable[str]) -> None:
    names = ", ".join(map(str, sorted(gone)))
    if names and options.fail_on_data_loss:
        raise errors.UnknownTopicOrPartition(f"{names}: not there any more; failOnDataLoss=false reads without them")
    if names:
        log.warning("%s: not there any more, left out", names)


# Offsets


class _Look:
    """The database's answer about the chosen partitions; each thing is asked once, for all of them, when it is needed."""

    def __init__(self, connection: RawConnection, options: ReadOptions, places: Places) -> None:
        self.options = options
        self._connection = connection
        self._listed = self._offsets(places, dict.fromkeys(places, fetch.LATEST))
        self.places = {partition: places[partition] for partition in self._listed}
        self._cut: dict[int, CutPartition] | None = None
        self._at: dict[int, dict[TopicPartition, ListedOffset]] = {}
        self._committed: dict[int, int] | None = None

    def cut(self, partition: TopicPartition) -> int:
        """Return the end of a consistent cut of all chosen partitions; of a group's, from where it stands."""
        if self._cut is None:
            group = None if self.options.start is not None else self.options.group
            positions = NO_POSITIONS if group is None else self._of_group(group)
            self._cut = stable_cut(self._connection, self.places.values(), positions)
        found = self._cut.get(self.places[partition])
        if found is None:
            _tell_gone(self.options, [partition])
            return self._listed[partition].log_start_offset
        return found.end

    def end(self, partition: TopicPartition) -> int:
        """Return where a batch ends."""
        if self.options.snapshot is not None:
            return self.reached(partition, self.options.snapshot.ends[partition])
        match self.options.ending:
            case AtTime() as time:
                found = self._found(time, partition)
                return self.cut(partition) if found is None else min(found, self.cut(partition))
            case Mapping() as offsets:
                wanted = self._named(offsets, partition, "endingOffsets")
                return self.cut(partition) if wanted == LATEST else self._committed_by_now(partition, wanted)
            case _:
                return self.cut(partition)

    def start(self, partition: TopicPartition, end: int) -> int:
        """Return where a batch or a new stream begins. `end`: the offsets that count as latest."""
        options = self.options
        if options.start is not None:
            return options.start.ends.get(partition, self._listed[partition].log_start_offset)
        if options.group is not None:
            committed = self._of_group(options.group).get(self.places[partition])
            if committed is not None:
                return committed
        match options.starting:
            case AtTime() as time:
                found = self._found(time, partition)
                if found is None and options.without_match == "error":
                    raise errors.OffsetOutOfRange(
                        f"{partition} has no committed record at or after {time.of(partition)};"
                        " startingOffsetsByTimestampStrategy=latest begins at the end then",
                        at=partition,
                    )
                return end if found is None else found
            case Mapping() as offsets:
                wanted = self._named(offsets, partition, "startingOffsets")
                words = {EARLIEST: self._listed[partition].log_start_offset, LATEST: end}
                return words.get(wanted, wanted)
            case "latest":
                return end
            case _:
                return self._listed[partition].log_start_offset

    def reached(self, partition: TopicPartition, end: int) -> int:
        """Return an end that was committed once. Raise `LogTruncated` if the log does not reach it any more."""
        listed = self._listed[partition]
        if end <= listed.last_stable_offset:
            return end
        text = (
            f"{partition}: offset {end} was committed, and the log is committed up to {listed.last_stable_offset} now:"
            " the topic was made anew, or a crash took records back"
        )
        if self.options.fail_on_data_loss:
            raise errors.LogTruncated(f"{text}; failOnDataLoss=false reads what is there")
        log.warning("%s", text)
        return listed.last_stable_offset

    def ranges(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], incarnation: str) -> Plan:
        """Return the ranges between starts and ends, with starts that are still there."""
        found = [
            PartitionRange(partition_id, *partition, *self._bounds(partition, starts[partition], ends[partition]))
            for partition, partition_id in self.places.items()
        ]
        return Plan(tuple(ordered(found)), incarnation)

    def _bounds(self, partition: TopicPartition, start: int, end: int) -> tuple[int, int]:
        listed = self._listed[partition]
        if start < listed.log_start_offset:
            self._tell_loss(f"{partition}: offset {start} was removed, the log starts at {listed.log_start_offset}")
            start = listed.log_start_offset
            return start, max(start, end)
        if start > max(listed.log_end_offset, end):  # a cut is taken later than the log's end
            self._tell_loss(f"{partition}: offset {start} is to be read next, and the log ends at {listed.log_end_offset}")
            return end, end
        if start > end and isinstance(self.options.ending, Mapping):
            raise errors.ConfigError(
                f"{partition}: endingOffsets {end} lies before {start}, where reading begins",
                name="endingOffsets",
                at=partition,
                offset=end,
                limit=start,
            )
        return start, max(start, end)

    def _tell_loss(self, text: str) -> None:
        if self.options.fail_on_data_loss:
            raise errors.OffsetOutOfRange(f"{text}; failOnDataLoss=false goes on with what is there")
        log.warning("%s: left out", text)

    def _committed_by_now(self, partition: TopicPartition, end: int) -> int:
        listed = self._listed[partition]
        if end > listed.last_stable_offset:
            why = "the rest is of open transactions" if end <= listed.log_end_offset else "the log ends before it"
            raise errors.OffsetOutOfRange(
                f"{partition}: endingOffsets is {end}, and it is committed up to {listed.last_stable_offset}; {why}"
                f" (log end {listed.log_end_offset})",
                at=partition,
                offset=end,
                limit=listed.last_stable_offset,
            )
        return end

    def _named(self, offsets: Mapping[TopicPartition, int], partition: TopicPartition, name: str) -> int:
        if offsets.keys() != self.places.keys():
            lacking = sorted(self.places.keys() - offsets.keys())
            foreign = sorted(offsets.keys() - self.places.keys())
            said = f"{lacking[0]} is read, and not in it" if lacking else f"{foreign[0]} is in it, and not read"
            raise errors.ConfigError(f"{name} names every partition (-1: latest, -2: earliest): {said}")
        return offsets[partition]

    def _of_group(self, group: str) -> dict[int, int]:
        if self._committed is None:
            rows, holders = stable_offsets(self._connection, group, list(self.places.values()))
            for name, partition_id in self.places.items():
                if partition_id in rows and rows[partition_id].pending:
                    holder = holders.get(partition_id, "an undecided transaction")
                    raise errors.UnstableOffset(
                        f"the offset of group {group!r} on {name} is part of {holder}: wait, or end it"
                    )
            self._committed = {partition_id: row.at.offset for partition_id, row in rows.items() if row.at is not None}
        return self._committed

    def _found(self, time: AtTime, partition: TopicPartition) -> int | None:
        if id(time) not in self._at:
            if isinstance(time.times, Mapping):
                self._named(time.times, partition, "what is given by time")
            self._at[id(time)] = self._offsets(self.places, {each: time.of(each) for each in self.places})
        found = self._at[id(time)].get(partition)
        return self._listed[partition].log_end_offset if found is None else found.offset

    def _offsets(self, places: Places, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        """Look up offsets. A partition that was deleted in this moment is reported."""
        asked = {places[partition]: time for partition, time in times.items()}
        found = stable_ends(self._connection, asked, Isolation.READ_COMMITTED)
        _tell_gone(self.options, [partition for partition, partition_id in places.items() if partition_id not in found])
        return {partition: found[partition_id] for partition, partition_id in places.items() if partition_id in found}
