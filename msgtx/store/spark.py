"""Batches of Spark: attempts of their tasks, and the one decision over all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgtx.arguments import check_name
from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.translation import answered
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.errors import MsgtxError
from msgtx.generated import calls

# A query of an application: its newest committed batch, and its undecided attempts.
DescribedQuery = calls.DescribeQueriesRow

_BATCH: Final = {"in_app_id": "text", "in_query_id": "text", "in_batch_id": "int8"}

# Attempts that one SQL transaction aborts, each with a place of the lock table; also in decide_batch.sql.
AT_ONCE: Final = 250
ANYWHERE: Final = -1  # a start that is not compared


class BatchName(NamedTuple):
    """A batch of an application. `query_id`: Spark's, which lives in the checkpoint; '' where a program counts them."""

    app_id: str
    query_id: str
    batch_id: int

    def __str__(self) -> str:
        """Return it for people."""
        return f"batch {self.batch_id} of {self.app_id}"


class StreamBatch(NamedTuple):
    """A micro-batch of a streaming query. `run_id`: of the query's present run, in which each batch runs once."""

    query_id: str
    run_id: str
    batch_id: int


class NotedBegin(NamedTuple):
    """Where the batch of a stream began that ended where its checkpoint is; None: nothing is noted that fits the group.

    `committed`: the group's offset. `repeats`: the group is where a batch ended that the checkpoint may repeat.
    """

    committed: int | None
    start: int | None
    repeats: bool


class BatchRange(NamedTuple):
    """The range that a batch read of a partition: from `start` (None: the group's offset) to before `end`."""

    start: int | None
    end: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """The records of one attempt of a task, under transaction (producer_id, 0, 0): the last sequence by partition id."""

    producer_id: int
    tails: Mapping[int, int]
    records: int


@dataclass(frozen=True, slots=True)
class DecidedBatch:
    """How a decision went. `skipped`: the batch was committed before. `aborted`: attempts that were not accepted.

    As many as `AT_ONCE`: there may be more, which `abort_batch` ends.
    """

    skipped: bool
    aborted: int
    error: MsgtxError | None


def begin_attempt(connection: RawConnection, batch: BatchName, *, timeout_ms: int) -> int | None:
    """Register an attempt of a task. Returns its producer id; None: the batch is committed already (P20).

    Raise `InvalidRequest` for a text that is no name.
    """
    check_name("an application", batch.app_id)
    ((producer_id,),) = call(connection, calls.BEGIN_ATTEMPT, *batch, timeout_ms)
    return None if producer_id is None else int(producer_id)


def is_batch_committed(connection: RawConnection, batch: BatchName) -> bool:
    """Return whether this batch, or a later one of its query, is committed."""
    ((committed,),) = call(connection, calls.IS_BATCH_COMMITTED, *batch)
    return bool(committed)


def flush_committed(connection: RawConnection) -> None:
    """Flush what `is_batch_committed` has found: the wait of its COMMIT for a standby may have been cancelled."""
    call(connection, calls.FLUSH_LOG)


def last_batch(connection: RawConnection, app_id: str, query_id: str = "") -> int | None:
    """Return the newest committed batch of an application's query; None: there is none."""
    ((batch_id,),) = call(connection, calls.LAST_BATCH, app_id, query_id)
    return None if batch_id is None else int(batch_id)


def decide_batch(
    connection: RawConnection,
    batch: BatchName,
    accepted: Sequence[Attempt],
    *,
    group: str | None = None,
    ranges: Mapping[int, BatchRange] | None = None,
    run_id: str = "",
    whole_query: bool = False,
) -> DecidedBatch:
    """Commit the accepted attempts, abort others, commit the group's offsets, insert the fence row: all or nothing.

    `ranges` by partition id; None: as the source of the query recorded them. `run_id`: of the query, which writes each batch
    once; `whole_query`: it writes nothing else. An error is an answer: nothing is decided. Raise `InvalidRequest` for more
    accepted attempts than half of PostgreSQL's lock table.
    """
    tails = [(attempt.producer_id, *tail) for attempt in accepted for tail in attempt.tails.items()]
    known = None if ranges is None else sorted(ranges.items())
    ((skipped, aborted, name, detail),) = call(
        connection,
        calls.DECIDE_BATCH,
        *batch,
        Int8Array(attempt.producer_id for attempt in accepted),
        Int8Array(owner for owner, _, _ in tails),
        Int4Array(partition for _, partition, _ in tails),
        Int8Array(sequence for _, _, sequence in tails),
        group,
        None if known is None else Int4Array(partition for partition, _ in known),
        None if known is None else Int8Array(ANYWHERE if at.start is None else at.start for _, at in known),
        None if known is None else Int8Array(at.end for _, at in known),
        run_id,
        whole_query,
    )
    return DecidedBatch(skipped, aborted, None if name is None else answered(name, detail, group=group))


def abort_batch(connection: RawConnection, batch: BatchName, *, of_any_query: bool = False) -> int:
    """Abort undecided attempts of this batch and of earlier ones, in steps. Returns how many there were."""
    query_id = None if of_any_query else batch.query_id
    total = 0
    while True:
        ((aborted,),) = call(connection, calls.ABORT_BATCH, batch.app_id, query_id, batch.batch_id, AT_ONCE)
        total += int(aborted)
        if aborted < AT_ONCE:
            return total


def renew_attempts(connection: RawConnection, batch: BatchName, *, session_ms: int, timeout_ms: int) -> int:
    """Give the open attempts of a batch so much time from now on, at most `timeout_ms` in all (I12). Returns how many."""
    ((renewed,),) = call(connection, calls.RENEW_ATTEMPTS, *batch, session_ms, timeout_ms)
    return int(renewed)


def record_range(
    connection: RawConnection,
    query_id: str,
    batch_id: int,
    *,
    group: str | None,
    ranges: Mapping[int, tuple[int, int]],
    run_id: str = "",
    source_id: str = "",
) -> None:
    """Note all that a source of a stream reads in a batch (start and end by partition id), for the sink of its query.

    Raise `BatchConflict` for a checkpoint that fell behind, `ConfigError` if two sources (`source_id`) of a run read
    one partition for one group.
    """
    known = sorted(ranges.items())
    ((name, detail),) = call(
        connection,
        calls.RECORD_RANGE,
        query_id,
        batch_id,
        group or "",
        Int4Array(partition for partition, _ in known),
        Int8Array(start for _, (start, _) in known),
        Int8Array(end for _, (_, end) in known),
        run_id,
        source_id,
    )
    if name is not None:
        raise answered(name, detail, group=group)


def noted_begins(connection: RawConnection, group: str, offsets: Mapping[int, int]) -> dict[int, NotedBegin]:
    """Return where batches of a group's streams began that ended at these offsets, by partition id."""
    rows = call(connection, calls.NOTED_BEGINS, group, Int4Array(offsets), Int8Array(offsets.values()))
    return {partition_id: NotedBegin(committed, start, repeats) for partition_id, committed, start, repeats in rows}


def follow_batch(connection: RawConnection, group: str, ranges: Mapping[int, tuple[int, int]], *, source_id: str) -> None:
    """Commit a group's offsets behind a stream's batch (start and end by partition id), unless its sink has.

    `source_id`: as in `record_range`. Raise `BatchConflict` if another query has moved the group.
    """
    known = sorted(ranges.items())
    ((name, detail),) = call(
        connection,
        calls.FOLLOW_BATCH,
        group,
        Int4Array(partition for partition, _ in known),
        Int8Array(start for _, (start, _) in known),
        Int8Array(end for _, (_, end) in known),
        source_id,
    )
    if name is not None:
        raise answered(name, detail, group=group)


def describe_queries(connection: RawConnection, most: int) -> list[DescribedQuery]:
    """Return the queries of all applications, in order of their names, at most `most`. Raise `AuthorizationFailed`."""
    return call(connection, calls.DESCRIBE_QUERIES, most)
