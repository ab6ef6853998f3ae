"""The exactly-once sink: a DataFrame's rows as one transaction over all its tasks (architecture 5; P20)."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import sqlalchemy
from pyspark.sql import DataFrame
from pyspark.sql import types as spark_types

from msgtx import errors
from msgtx.client import open_engine
from msgtx.database.engine import Engine, driver_of
from msgtx.rules.partitioner import PARTITIONERS
from msgtx.spark_jobs.attempt import Target, explained, persevering, write_attempt
from msgtx.store.installation import describe_installation
from msgtx.store.spark import Attempt, BatchName, DecidedBatch, OffsetRange, abort_batch, decide_batch, is_batch_committed
from msgtx.store.topics import require_partitions, require_topics
from msgtx.store.transactions import transaction_outcome
from msgtx.types import Outcome, Snapshot, TransactionId

log = logging.getLogger("msgtx.spark")

TRANSACTION_TIMEOUT_MS: Final = 600_000
ANSWERS: Final = "producer_id long, partitions array<int>, sequences array<long>, records long"
_TEXT: Final = (spark_types.BinaryType, spark_types.StringType)
_HEADERS: Final = "array<struct<key:string,value:binary>>"
Statements = Callable[[sqlalchemy.Connection], object]


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What became of a batch. `skipped`: it was committed before, and nothing was written.

    `attempts`: tasks that wrote something; `aborted`: attempts that were not accepted (retries, speculation, earlier runs).
    """

    app_id: str
    batch_id: int
    skipped: bool
    records: int
    attempts: int
    aborted: int


def write_transactional(
    df: DataFrame,
    topic: str | None = None,
    *,
    app_id: str,
    batch_id: int,
    url: str | None = None,
    snapshot: Snapshot | None = None,
    start: Snapshot | None = None,
    group: str | None = None,
    statements: Statements | None = None,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    partitioner: str = "crc32",
) -> BatchReport:
    """Write a DataFrame exactly once: all its records, the group's offsets and `statements` in one commit, or none of it.

    Columns as of Spark's Kafka sink: `value` and, if they are there, `key`, `topic`, `partition`, `headers`; also
    `timestamp`; others are ignored. `topic` replaces the column. (`app_id`, `batch_id`) names the batch; the ids of an
    app rise. A batch that is committed, or lies before one that is, is skipped, and the report says so. `group` commits
    the ends of `snapshot` as its offsets; `start` is compared with where the group is (`BatchConflict`).
    `statements(connection)` runs the user's own SQL just before the decision, at READ COMMITTED; after a lost answer it
    runs again, and is taken back if the first time counted. A batch that takes longer than `transaction_timeout_ms` (at
    most `transaction_max_timeout_ms` of the installation) is aborted. Raise `InvalidRequest` for wrong columns,
    `UnknownTopicOrPartition`, `IncarnationChanged`.
    """
    batch = BatchName(app_id, "", batch_id)
    if not app_id or batch_id < 0:
        raise errors.InvalidRequest("a batch is named by an app_id that is not empty and a batch_id of 0 or more")
    if group is not None and snapshot is None:
        raise errors.InvalidRequest("the offsets of a group are the ends of a snapshot: give snapshot=, too")
    rows = df.select(*sink_columns(df.schema, topic))
    engine, _ = open_engine(url)
    try:
        target = make_target(
            engine, topic, transaction_timeout_ms=transaction_timeout_ms, partitioner=partitioner, snapshot=snapshot
        )
        ranges = None if group is None or snapshot is None else _ranges(engine, snapshot, start)
        if _begins_again(engine, batch):
            return BatchReport(app_id, batch_id, skipped=True, records=0, attempts=0, aborted=0)
        try:
            accepted = _run(rows, target, batch)
            return decide(
                engine, batch, accepted, group=group, ranges=ranges, statements=statements, timeout_ms=transaction_timeout_ms
            )
        except BaseException:
            abort(engine, batch)
            raise
    finally:
        engine.close()


def make_target(
    engine: Engine,
    topic: str | None,
    *,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    partitioner: str = "crc32",
    snapshot: Snapshot | None = None,
) -> Target:
    """Return what tasks need to know. Raise `InvalidRequest`, `UnknownTopicOrPartition`, `IncarnationChanged`."""
    if partitioner not in PARTITIONERS:
        raise errors.ConfigError(f"there is no partitioner {partitioner!r}; known are {', '.join(PARTITIONERS)}")
    with engine.connection() as connection:
        incarnation = str(describe_installation(connection).incarnation)
        if topic is not None:
            require_topics(connection, [topic])
    if snapshot is not None and snapshot.incarnation != incarnation:
        raise errors.IncarnationChanged(
            f"the snapshot is of incarnation {snapshot.incarnation}, the database has {incarnation} since a failover"
        )
    return Target(engine.url, incarnation, topic, transaction_timeout_ms, partitioner)


def sink_columns(schema: spark_types.StructType, topic: str | None) -> list[str]:
    """Return the columns of a DataFrame that a sink writes. Raise `InvalidRequest` for a missing one or a wrong type."""
    found = {each.name.lower(): each for each in schema.fields}
    if "value" not in found:
        raise errors.InvalidRequest(
            f"the DataFrame has no column value; it has {', '.join(schema.names) or 'none'}: rename one, or make one"
        )
    if topic is None and "topic" not in found:
        raise errors.InvalidRequest("where to write? Give a topic, or each row one in a column topic")
    wanted = ["value", "key", "partition", "headers", "timestamp", *([] if topic is not None else ["topic"])]
    allowed: dict[str, tuple[Callable[[spark_types.DataType], bool], str]] = {
        "value": (lambda kind: isinstance(kind, _TEXT), "binary or string"),
        "key": (lambda kind: isinstance(kind, _TEXT), "binary or string"),
        "topic": (lambda kind: isinstance(kind, spark_types.StringType), "string"),
        "partition": (lambda kind: isinstance(kind, spark_types.IntegerType), "int"),
        "headers": (lambda kind: kind.simpleString() == _HEADERS, _HEADERS),
        "timestamp": (lambda kind: isinstance(kind, spark_types.TimestampType), "timestamp"),
    }
    for name in wanted:
        if name in found:
            fits, expected = allowed[name]
            kind = found[name].dataType
            if not fits(kind):
                raise errors.InvalidRequest(f"column {name} is {kind.simpleString()}; a sink takes {expected}: cast it")
    return [found[name].name for name in wanted if name in found]


def _begins_again(engine: Engine, batch: BatchName) -> bool:
    """Say whether the batch is committed; if not, abort what an earlier run of it left, so that it holds nobody up."""
    with engine.connection() as connection:
        if is_batch_committed(connection, batch):
            log.info("%s is committed already: skipped", batch)
            return True
        abort_batch(connection, batch)
    return False


def _ranges(engine: Engine, snapshot: Snapshot, start: Snapshot | None) -> dict[int, OffsetRange]:
    with engine.connection() as connection:
        ids = require_partitions(connection, snapshot.ends)
    return {
        ids[partition]: OffsetRange(None if start is None else start.ends.get(partition), end)
        for partition, end in snapshot.ends.items()
    }


def _run(rows: DataFrame, target: Target, batch: BatchName) -> list[Attempt]:
    """Have the tasks write. Spark takes one answer per task, so the attempts that are in it are the accepted ones."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = write_attempt(batches, target, batch)
        if attempt is not None:
            yield pa.RecordBatch.from_pydict(
                {
                    "producer_id": [attempt.producer_id],
                    "partitions": pa.array([list(attempt.tails)], pa.list_(pa.int32())),
                    "sequences": pa.array([list(attempt.tails.values())], pa.list_(pa.int64())),
                    "records": [attempt.records],
                }
            )

    return [
        Attempt(answer.producer_id, dict(zip(answer.partitions, answer.sequences, strict=True)), answer.records)
        for answer in rows.mapInArrow(write, ANSWERS).collect()
    ]


class _SkippedError(Exception):
    """Takes the user's statements back: the batch was committed before."""


def decide(
    engine: Engine,
    batch: BatchName,
    accepted: list[Attempt],
    *,
    group: str | None = None,
    ranges: dict[int, OffsetRange] | None = None,
    statements: Statements | None = None,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> BatchReport:
    """Decide a batch, with the user's statements in the same SQL transaction. Repeated after a lost answer, it is skipped.

    Raise why it cannot be committed; nothing is decided then.
    """
    asked = 0

    def once() -> DecidedBatch:
        nonlocal asked
        asked += 1
        with engine.transaction() as connection:
            if statements is not None:
                statements(connection)
            decided = decide_batch(driver_of(connection), batch, accepted, group=group, ranges=ranges)
            if decided.error is not None:
                raise explained(decided.error, timeout_ms)
            if decided.skipped and statements is not None:
                raise _SkippedError
        return decided

    try:
        decided = persevering(once)
    except _SkippedError:
        decided = DecidedBatch(skipped=True, aborted=abort(engine, batch), error=None)
    if decided.skipped and not (asked > 1 and _were_accepted(engine, accepted)):
        log.info("%s is committed already: skipped", batch)
        return BatchReport(batch.app_id, batch.batch_id, skipped=True, records=0, attempts=0, aborted=decided.aborted)
    return BatchReport(
        batch.app_id,
        batch.batch_id,
        skipped=False,
        records=sum(attempt.records for attempt in accepted),
        attempts=len(accepted),
        aborted=decided.aborted,
    )


def _were_accepted(engine: Engine, accepted: list[Attempt]) -> bool:
    """Say whether a decision whose answer was lost was ours."""
    if not accepted:
        return True
    with engine.connection() as connection:
        name = TransactionId(accepted[0].producer_id, 0, 0)
        return transaction_outcome(connection, name).outcome is Outcome.COMMITTED


def abort(engine: Engine, batch: BatchName) -> int:
    """Abort what a batch left undecided; nothing of a committed one. If the database is away, timeouts will do it."""
    try:
        with engine.connection() as connection:
            return abort_batch(connection, batch)
    except errors.RetriableError as error:
        log.warning("%s: its transactions could not be aborted, their timeouts will end them: %s", batch, error)
        return 0
