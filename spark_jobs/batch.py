"""A batch on the driver: the arguments of its tasks, and the one decision over all of them (P20). Knows no Spark."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import sqlalchemy

from msgtx import errors, units
from msgtx.database.calls import driver_of
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.declared.spark import TRANSACTION_TIMEOUT
from msgtx.rules.partitioner import PARTITIONERS
from msgtx.spark_jobs.runtime.outage import again, persevering
from msgtx.spark_jobs.runtime.primary import primary_of
from msgtx.spark_jobs.writing.attempt import Target, explained
from msgtx.store.operator.installation import require_incarnation
from msgtx.store.spark import (
    AT_ONCE,
    Attempt,
    BatchName,
    BatchRange,
    DecidedBatch,
    abort_batch,
    decide_batch,
    is_batch_committed,
)
from msgtx.store.topics.topics import require_topics
from msgtx.store.transactions.transactions import transaction_outcome
from msgtx.types import Outcome, Snapshot, TransactionId

log = logging.getLogger("msgtx.spark")

TRANSACTION_TIMEOUT_MS: Final = units.milliseconds("transaction_timeout_ms", TRANSACTION_TIMEOUT)
Statements = Callable[[sqlalchemy.Connection], object]


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The outcome of a batch. `skipped`: it was committed before, and nothing was written.

    `attempts`: tasks that wrote records; `aborted`: attempts not accepted (retries, speculation, earlier runs).
    """

    app_id: str
    batch_id: int
    skipped: bool
    records: int
    attempts: int
    aborted: int


def make_target(
    engine: Engine,
    topic: str | None,
    *,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    partitioner: str = "crc32",
    snapshot: Snapshot | None = None,
) -> Target:
    """Return the arguments of the tasks. Raise `InvalidRequest`, `UnknownTopicOrPartition`, `IncarnationChanged`."""
    if partitioner not in PARTITIONERS:
        raise errors.ConfigError(f"there is no partitioner {partitioner!r}; known are {', '.join(PARTITIONERS)}")

    def look(connection: RawConnection) -> str:
        if topic is not None:
            require_topics(connection, [topic])
        return require_incarnation(connection, snapshot)

    incarnation = persevering(engine, look)
    return Target(
        engine.url, incarnation, topic, transaction_timeout_ms, partitioner, engine.outage_timeout, primary_of(engine)
    )


def begins_again(engine: Engine, batch: BatchName, *, run_id: str = "") -> bool:
    """Say whether the batch is committed.

    If not, abort the attempts of an earlier run of it, so that they hold no reader back.

    Raise `BatchConflict` for a stream's batch that is committed and can be no repetition.
    """

    def look(connection: RawConnection) -> bool:
        committed = is_batch_committed(connection, batch)
        if not committed:
            abort_batch(connection, batch)
        return committed

    committed = persevering(engine, look)
    if committed and batch.query_id:
        decide(engine, batch, [], run_id=run_id)
    elif committed:
        log.info("%s is committed already: skipped", batch)
    return committed


class _SkippedError(Exception):
    """Takes the user's statements back: the batch was committed before."""


def decide(
    engine: Engine,
    batch: BatchName,
    accepted: list[Attempt],
    *,
    group: str | None = None,
    ranges: dict[int, BatchRange] | None = None,
    statements: Statements | None = None,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    run_id: str = "",
    whole_query: bool = False,
) -> BatchReport:
    """Decide a batch, with the user's statements in the same SQL transaction. Repeated after a lost answer, it is skipped.

    `run_id`, `whole_query`: of a stream's batch, as `decide_batch` takes them. Raise why it cannot be committed; nothing is
    decided then.
    """
    asked = 0

    def ask() -> DecidedBatch:
        nonlocal asked
        asked += 1
        with engine.transaction() as connection:
            if statements is not None:
                statements(connection)
            # A batch without attempts whose answer was lost looks like one that is written twice in a run.
            run = run_id if accepted or asked == 1 else ""
            decided = decide_batch(
                driver_of(connection), batch, accepted, group=group, ranges=ranges, run_id=run, whole_query=whole_query
            )
            if decided.error is not None:
                raise explained(decided.error, timeout_ms)
            if decided.skipped and statements is not None:
                raise _SkippedError
        return decided

    try:
        decided = again(engine, ask)
    except _SkippedError:
        decided = DecidedBatch(skipped=True, aborted=abort(engine, batch), error=None)
    aborted = decided.aborted + (abort(engine, batch) if decided.aborted == AT_ONCE else 0)
    if decided.skipped and not (asked > 1 and _were_accepted(engine, accepted)):
        log.info("%s is committed already: skipped", batch)
        return BatchReport(batch.app_id, batch.batch_id, skipped=True, records=0, attempts=0, aborted=aborted)
    return BatchReport(
        batch.app_id,
        batch.batch_id,
        skipped=False,
        records=sum(attempt.records for attempt in accepted),
        attempts=len(accepted),
        aborted=aborted,
    )


def _were_accepted(engine: Engine, accepted: list[Attempt]) -> bool:
    """Say whether a decision whose answer was lost was ours."""
    if not accepted:
        return True
    name = TransactionId(accepted[0].producer_id, 0, 0)
    return persevering(engine, lambda connection: transaction_outcome(connection, name).outcome is Outcome.COMMITTED)


def abort(engine: Engine, batch: BatchName, *, of_any_query: bool = False) -> int:
    """Abort the undecided attempts of a batch; nothing of a committed one. If that fails, timeouts will do it.

    `of_any_query`: for a caller that does not know its query.
    """
    try:
        with engine.connection() as connection:
            return abort_batch(connection, batch, of_any_query=of_any_query)
    except (errors.RetriableError, errors.FailedOver) as error:
        log.warning("%s: its transactions could not be aborted, their timeouts will end them: %s", batch, error)
        return 0
