"""`report`: rates over time, how far groups are behind, and how large topics are; as values, for a chart and a page.

All of it is counted between two consistent cuts, by the records' times: the database sums up buckets of ranges of the
log, each range a task of Spark, and no value of a record leaves it.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from msgtx import errors
from msgtx.client import Client, connect
from msgtx.database.calls import clock
from msgtx.database.connection import RawConnection
from msgtx.spark_jobs.runtime.outage import BATCH_OUTAGE_SECONDS, again, patient, persevering
from msgtx.spark_jobs.runtime.parts import Database, divided, on_executors
from msgtx.store.append.append import epoch_ms
from msgtx.store.fetch.fetch import EARLIEST, list_offsets
from msgtx.store.fetch.ranges import measure_ranges
from msgtx.store.topics.topics import require_partitions
from msgtx.types import Isolation, Snapshot, TopicPartition

RECORDS_OF_A_TASK: Final = 20_000_000  # less than a second of a log in large rows, minutes of one-record transactions
WANTED_BUCKETS: Final = 120  # a curve that can be read; of an automatic width
MOST_BUCKETS: Final = 2_000  # more than a chart has dots
SECOND: Final = 1_000
WIDTHS: Final = tuple(
    SECOND * seconds
    for seconds in (
        *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800),
        *(3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 604_800),
    )
)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Records with a timestamp in [at, at + width), and their bytes as stored, about; milliseconds since 1970 UTC."""

    at: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TopicRates:
    """The committed records of a topic. Rates are of the time between its first and its last bucket, both included."""

    topic: str
    partitions: int
    records: int
    bytes: int
    first_at: int | None
    last_at: int | None
    records_per_second: float
    bytes_per_second: float
    peak_records_per_second: float
    buckets: list[Bucket]


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The records that a group has still to read of these topics, up to the cut, by their time.

    `oldest_at`: when the bucket of the oldest of them begins, None when caught up.
    """

    group: str
    state: str
    partitions: int
    lag: int
    oldest_at: int | None
    buckets: list[Bucket]


@dataclass(frozen=True, slots=True)
class RatesReport:
    """Topics by name and groups by lag, in buckets of `bucket_ms`; made of the records from `start` up to `end`."""

    topics: list[TopicRates]
    groups: list[GroupLag]
    bucket_ms: int
    start: Snapshot | None
    end: Snapshot
    made_at: int
    seconds: float = field(default=0.0, compare=False)


class Part(NamedTuple):
    """A range to be measured: of a topic's log (group None), or the part that a group has not read yet."""

    group: str | None
    partition_id: int
    start: int
    end: int


class Sum(NamedTuple):
    """A bucket of a part."""

    group: str | None
    partition_id: int
    at: int
    records: int
    bytes: int


def run(
    spark: SparkSession,
    topics: Iterable[str] | None = None,
    *,
    url: str | None = None,
    start: Snapshot | None = None,
    end: Snapshot | None = None,
    bucket_ms: int | None = None,
    groups: bool = True,
) -> RatesReport:
    """Measure these topics (None: those of `end`, else all) from a cut (None: the log starts) to another (None: now's).

    `bucket_ms`: None: as suits the span. `groups`: whether to look at groups, for which the role must administer every
    topic. Raise `UnknownTopicOrPartition`, `IncarnationChanged`, and `InvalidRequest` for cuts that do not fit and for
    too many buckets.
    """
    if bucket_ms is not None and bucket_ms < 1:
        raise errors.InvalidRequest(f"a bucket has at least a millisecond, not {bucket_ms}")
    began = time.monotonic()
    with connect(url) as client:
        engine = patient(client.runtime.engine, BATCH_OUTAGE_SECONDS)
        asked = None if topics is None else [*dict.fromkeys(topics)]
        until = again(engine, lambda: client.snapshots.take(asked).snapshot) if end is None else end
        ranges = again(engine, lambda: client.snapshots.ranges(asked, start=start, end=until))
        ids = persevering(engine, lambda connection: require_partitions(connection, ranges))
        logs = {ids[name]: (each.start, each.end) for name, each in ranges.items()}
        made_at = epoch_ms(persevering(engine, clock))
        width = bucket_ms or width_of(persevering(engine, lambda connection: _span(connection, logs)))
        positions = again(engine, lambda: _positions(client, ids)) if groups else {}
        database = Database.of(client, until)
    parts = [Part(None, *piece) for piece in divided(logs, RECORDS_OF_A_TASK)]
    for group, unread in positions.items():
        behind = {pid: (max(at, logs[pid][0]), logs[pid][1]) for pid, at in unread.offsets.items() if at < logs[pid][1]}
        parts += [Part(group, *piece) for piece in divided(behind, RECORDS_OF_A_TASK)]
    tasks = math.ceil(sum(part.end - part.start for part in parts) / RECORDS_OF_A_TASK)
    answers = on_executors(spark, partial(measure, width), parts, database=database, tasks=tasks)
    sums = [each for answer in answers for each in answer]
    width, sums = _fitted(sums, width, asked=bucket_ms is not None)
    names = {partition_id: name for name, partition_id in ids.items()}
    return RatesReport(
        topics=_topics(names, sums, width),
        groups=_groups(positions, sums),
        bucket_ms=width,
        start=start,
        end=until,
        made_at=made_at,
        seconds=time.monotonic() - began,
    )


def width_of(span_ms: int) -> int:
    """Return the width of buckets that suits a span of time: a round one, for about a hundred buckets."""
    return next((width for width in WIDTHS if width * WANTED_BUCKETS >= span_ms), WIDTHS[-1])


def measure(width: int, connection: RawConnection, parts: Sequence[Part]) -> list[Sum]:
    """Measure parts, on an executor."""
    return [
        Sum(part.group, part.partition_id, piece.bucket, piece.records, piece.bytes)
        for part in parts
        for piece in measure_ranges(connection, {part.partition_id: (part.start, part.end)}, width)
    ]


# ── the measurement ──


@dataclass(frozen=True, slots=True)
class _Unread:
    """Where a group is, by partition id."""

    state: str
    offsets: dict[int, int]


def _positions(client: Client, ids: Mapping[TopicPartition, int]) -> dict[str, _Unread]:
    """Return the groups that have committed something on these partitions."""
    found = {}
    for listed in client.admin.groups.list():
        offsets = {ids[name]: at.offset for name, at in client.admin.groups.offsets(listed.group).items() if name in ids}
        if offsets:
            found[listed.group] = _Unread(listed.state, offsets)
    return found


def _span(connection: RawConnection, logs: Mapping[int, tuple[int, int]]) -> int:
    """Return how far the timestamps of the first and the last records of the logs are apart: a guess at all of them."""
    starts = list_offsets(connection, dict.fromkeys(logs, EARLIEST), Isolation.READ_COMMITTED)
    firsts = {pid: max(start, starts[pid].log_start_offset) for pid, (start, _) in logs.items() if pid in starts}
    ends = [
        *measure_ranges(connection, {pid: (at, min(at + 1, logs[pid][1])) for pid, at in firsts.items()}, 1),
        *measure_ranges(connection, {pid: (max(end - 1, start), end) for pid, (start, end) in logs.items()}, 1),
    ]
    times = [each.bucket for each in ends]
    return max(times) - min(times) if times else 0


# ── its results ──


def _fitted(sums: list[Sum], width: int, *, asked: bool) -> tuple[int, list[Sum]]:
    """Widen buckets of an automatic width where there are too many: times were not in order, or not guessed."""
    if not sums:
        return width, sums
    first, last = min(each.at for each in sums), max(each.at for each in sums)
    count = (last - first) // width + 1
    if count <= MOST_BUCKETS:
        return width, sums
    if asked:
        raise errors.InvalidRequest(f"that would be {count} buckets; {MOST_BUCKETS} is the most: take wider ones")
    wider = width * math.ceil(count / (MOST_BUCKETS - 1))
    return wider, [each._replace(at=each.at - each.at % wider) for each in sums]


def _buckets(sums: Iterable[Sum]) -> list[Bucket]:
    found: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for each in sums:
        found[each.at][0] += each.records
        found[each.at][1] += each.bytes
    return [Bucket(at, *found[at]) for at in sorted(found)]


def _topics(names: Mapping[int, TopicPartition], sums: Iterable[Sum], width: int) -> list[TopicRates]:
    by_topic: dict[str, list[Sum]] = {topic: [] for topic in sorted({topic for topic, _ in names.values()})}
    for each in sums:
        if each.group is None:
            by_topic[names[each.partition_id].topic].append(each)
    partitions = [topic for topic, _ in names.values()]
    return [_topic(topic, partitions.count(topic), _buckets(own), width) for topic, own in by_topic.items()]


def _topic(topic: str, partitions: int, buckets: list[Bucket], width: int) -> TopicRates:
    records, size = sum(each.records for each in buckets), sum(each.bytes for each in buckets)
    seconds = (buckets[-1].at + width - buckets[0].at) / SECOND if buckets else math.inf
    return TopicRates(
        topic=topic,
        partitions=partitions,
        records=records,
        bytes=size,
        first_at=buckets[0].at if buckets else None,
        last_at=buckets[-1].at if buckets else None,
        records_per_second=records / seconds,
        bytes_per_second=size / seconds,
        peak_records_per_second=max((each.records for each in buckets), default=0) * SECOND / width,
        buckets=buckets,
    )


def _groups(positions: Mapping[str, _Unread], sums: Iterable[Sum]) -> list[GroupLag]:
    by_group: dict[str, list[Sum]] = {group: [] for group in positions}
    for each in sums:
        if each.group is not None:
            by_group[each.group].append(each)
    found = []
    for group, own in by_group.items():
        buckets = _buckets(own)
        lag = sum(each.records for each in buckets)
        unread = positions[group]
        found.append(GroupLag(group, unread.state, len(unread.offsets), lag, buckets[0].at if buckets else None, buckets))
    return sorted(found, key=lambda each: (-each.lag, each.group))


if __name__ == "__main__":
    from msgtx.spark_jobs.runtime.launch import launch

    launch("report")
