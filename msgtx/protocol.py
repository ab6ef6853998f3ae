"""The public face of the store: the calls for clients in other languages.

Each function takes a SQLAlchemy connection first, runs in the caller's SQL transaction (READ COMMITTED, else `ConfigError`;
`decide_sealed` at any level) and never commits. A refusal that writes nothing raises. An error with a decision
(`TransactionAborted`) leaves the SQL transaction good: commit it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy

from msgtx import errors
from msgtx.database.calls import clock, driver_of
from msgtx.database.connection import RawConnection
from msgtx.database.wire import BatchColumns
from msgtx.errors import MsgtxError
from msgtx.rules.record import as_bytes, as_headers, as_milliseconds
from msgtx.store.append import append as store_append
from msgtx.store.append.rows import OpenRow
from msgtx.store.fetch import fetch as store_fetch
from msgtx.store.fetch.records import records_of
from msgtx.store.groups.groups import NO_OFFSETS, OffsetColumns, offset_columns
from msgtx.store.operator.installation import describe_installation
from msgtx.store.sweeps import coordinators as store_coordinators
from msgtx.store.topics.topics import describe_topics, require_partitions
from msgtx.store.transactions import decide as store_decide
from msgtx.store.transactions import producers as store_producers
from msgtx.store.transactions import seal as store_seal
from msgtx.store.transactions.seal import Kind, Sealed
from msgtx.types import (
    Coordinator,
    GroupMetadata,
    Isolation,
    OffsetAndMetadata,
    Outcome,
    OutputRecord,
    PreparedTransaction,
    ProducerId,
    Record,
    TopicPartition,
    TransactionId,
)

Offsets = Mapping[GroupMetadata | str, Mapping[TopicPartition, int | OffsetAndMetadata]]
FETCH_BYTES: Final = 8 * 1024 * 1024
_WRITTEN: Final[dict[Outcome, store_decide.Ending]] = {Outcome.COMMITTED: "COMMIT", Outcome.ABORTED: "ABORT"}


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one producer for one partition. Without transaction number: outside a transaction."""

    topic_partition: TopicPartition
    producer_id: int | None
    epoch: int | None
    base_sequence: int | None
    records: Sequence[OutputRecord]
    transaction_number: int | None = None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The outcome of a batch. `timestamp`: milliseconds, when the row was appended."""

    error: MsgtxError | None
    base_offset: int
    timestamp: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class DecideResult:
    """How a transaction ended; after an ABORT, the last stored sequence of every partition named (−1: none)."""

    outcome: Outcome
    tails: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Seal:
    """A sealed transaction, named by its `token` (`PreparedTransaction`); the argument of `decide_sealed`.

    `deadline`: in milliseconds since 1970 UTC; None for one that waits for an outside party.
    """

    token: str
    deadline: int | None
    sealed: Sealed


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a fetch on a partition; `position` is the next one to fetch from."""

    records: list[Record]
    position: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    blocked_by: TransactionId | None


def _columns(batch: Batch, partition_id: int, now: int) -> BatchColumns:
    records = batch.records
    if not records:
        raise errors.InvalidRequest(f"the batch for {batch.topic_partition} is empty", name="batches")
    row = OpenRow(now)
    for record in records:
        stamp = None if record.timestamp is None else as_milliseconds(record.timestamp)
        value, key = as_bytes(record.value, "value"), as_bytes(record.key, "key")
        row.add(value, key, stamp, as_headers(record.headers), size=0)
    return row.stored_as(
        partition_id,
        (batch.producer_id, batch.epoch),
        transaction_number=batch.transaction_number,
        base_sequence=batch.base_sequence,
    )


def init_producer_id(
    connection: sqlalchemy.Connection,
    transactional_id: str | None,
    timeout_ms: int,
    expected: ProducerId | None = None,
) -> ProducerId:
    """Return a producer id and epoch, and fence older ones (I7; internals: producers)."""
    return store_producers.init_producer_id(
        driver_of(connection), transactional_id, timeout_ms=timeout_ms, expected=expected
    )


def append(connection: sqlalchemy.Connection, batches: Sequence[Batch]) -> list[AppendResult]:
    """Store batches. Returns one result per batch, in their order; one refused batch does not undo the others (I1).

    Several batches for one partition go in calls of their own, in order.
    """
    raw = driver_of(connection)
    topics = describe_topics(raw, sorted({batch.topic_partition[0] for batch in batches})) if batches else {}
    now = store_append.epoch_ms(clock(raw)) if batches else 0
    results: dict[int, AppendResult] = {}
    rounds: list[dict[int, int]] = []  # of batch indexes by partition id: each round is one call
    for index, batch in enumerate(batches):
        try:
            topic = topics.get(batch.topic_partition[0])
            if topic is None:
                raise errors.UnknownTopicOrPartition(
                    f"there is no partition {TopicPartition(*batch.topic_partition)}", at=batch.topic_partition
                )
            partition_id = topic.partition_id(batch.topic_partition[1])
        except errors.UnknownTopicOrPartition as error:
            results[index] = AppendResult(error, -1, -1, duplicate=False)
            continue
        free = next((calls for calls in rounds if partition_id not in calls), None)
        if free is None:
            rounds.append({partition_id: index})
        else:
            free[partition_id] = index
    for calls in rounds:
        ordered = sorted(calls.items())
        columns = [_columns(batches[index], partition_id, now) for partition_id, index in ordered]
        for (_, index), answer in zip(ordered, store_append.append(raw, columns), strict=True):
            results[index] = AppendResult(answer.error, answer.base_offset, answer.timestamp, answer.duplicate)
    return [results[index] for index in range(len(batches))]


def _offset_columns(raw: RawConnection, offsets: Offsets) -> OffsetColumns:
    if not offsets:
        return NO_OFFSETS
    ids = require_partitions(raw, (partition for positions in offsets.values() for partition in positions))
    return offset_columns(
        {
            GroupMetadata(group) if isinstance(group, str) else group: {
                ids[TopicPartition(*partition)]: at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
                for partition, at in positions.items()
            }
            for group, positions in offsets.items()
        }
    )


def decide(
    connection: sqlalchemy.Connection,
    transaction_id: TransactionId,
    outcome: Outcome,
    tails: Mapping[TopicPartition, int] | None = None,
    offsets: Offsets | None = None,
) -> DecideResult:
    """End a transaction by its name: phase one, idempotent (I4, I8, I10). `tails`: the last sequence sent per partition.

    Raise the refusal. `TransactionAborted` says that ABORT is decided: commit the SQL transaction.
    """
    if outcome not in _WRITTEN:
        raise errors.InvalidRequest(f"a transaction is decided COMMITTED or ABORTED, not {outcome}", name="outcome")
    raw = driver_of(connection)
    ids = require_partitions(raw, tails or ())
    by_id = {ids[TopicPartition(*partition)]: last for partition, last in (tails or {}).items()}
    answer = store_decide.decide(
        raw, transaction_id, _WRITTEN[outcome], tails=by_id, offsets=_offset_columns(raw, offsets or {})
    )
    if answer.error is not None:
        raise answer.error
    names = {partition_id: partition for partition, partition_id in ids.items()}
    stored = {names[pid]: last for pid, last in answer.last_sequences.items() if last is not None}
    return DecideResult(outcome, stored if outcome is Outcome.ABORTED else {})


def decide_all(
    connection: sqlalchemy.Connection,
    decisions: Mapping[TransactionId, tuple[Outcome, Mapping[TopicPartition, int]]],
    offsets: Offsets | None = None,
) -> dict[TransactionId, DecideResult]:
    """Decide several transactions together; if one commit cannot be, nothing is decided and the call raises.

    `offsets` are committed with the last one that commits.
    """
    ordered = sorted(decisions)
    commits = [name for name in ordered if decisions[name][0] is Outcome.COMMITTED]
    if offsets and not commits:
        raise errors.InvalidRequest("offsets are committed with a transaction that commits, and there is none")
    results: dict[TransactionId, DecideResult] = {}
    with connection.begin_nested():
        # Locks ascend: all producers, then the groups with the last decision.
        store_producers.lock_producers(driver_of(connection), {name.producer_id for name in ordered})
        for name in ordered:
            outcome, tails = decisions[name]
            results[name] = decide(connection, name, outcome, tails, offsets if commits and name == commits[-1] else None)
    return results


def seal(
    connection: sqlalchemy.Connection,
    transaction_id: TransactionId,
    tails: Mapping[TopicPartition, int],
    offsets: Offsets | None = None,
    kind: Kind = "session",
) -> Seal:
    """End the writing of a transaction that is decided elsewhere: verified, and repeatable.

    `session`: by `decide_sealed` in another SQL transaction, until the deadline; `external`: by `decide`, whenever, so it is
    flushed with this SQL transaction.
    Raise the refusal. `TransactionAborted` says that ABORT is decided: commit the SQL transaction.
    """
    raw = driver_of(connection)
    ids = require_partitions(raw, tails)
    by_id = {ids[TopicPartition(*partition)]: last for partition, last in tails.items()}
    columns = _offset_columns(raw, offsets or {})
    answer = store_seal.seal(raw, transaction_id, kind, tails=by_id, offsets=columns, is_alone=False)
    if answer.error is not None:
        raise answer.error
    assert answer.sealed is not None
    deadline = answer.sealed.deadline
    token = PreparedTransaction(transaction_id, str(describe_installation(raw).incarnation))
    return Seal(str(token), None if deadline is None else store_append.epoch_ms(deadline), answer.sealed)


def decide_sealed(connection: sqlalchemy.Connection, sealed: Seal) -> None:
    """Commit a transaction that was sealed for a session with this SQL transaction, at any isolation level (I6).

    Call it last, just before the COMMIT: producers ascending, and ahead of other locks of msgtx. Raise
    `TransactionAborted` past the deadline or decided meanwhile, `IncarnationChanged`.
    """
    store_seal.decide_sealed(driver_of(connection), sealed.sealed)


def find_coordinator(connection: sqlalchemy.Connection, transactional_id: str) -> Coordinator:
    """Return which coordinator leads the shard of a transactional id. Raise `CoordinatorNotAvailable` if none does.

    Source: internals: coordinator#shards-and-leases.
    """
    return store_coordinators.find_coordinator(driver_of(connection), transactional_id)


def fetch(
    connection: sqlalchemy.Connection,
    positions: Mapping[TopicPartition, int],
    isolation: Isolation = Isolation.READ_COMMITTED,
    max_bytes: int = FETCH_BYTES,
) -> dict[TopicPartition, Fetched]:
    """Read on from each position, all partitions on one snapshot (I5). `max_bytes` in all, more only for one row each."""
    raw = driver_of(connection)
    ids = require_partitions(raw, positions)
    asked = {ids[TopicPartition(*partition)]: store_fetch.Position(at) for partition, at in positions.items()}
    answers = store_fetch.fetch(raw, asked, isolation=isolation, max_bytes=max(1, max_bytes // max(1, len(asked))))
    fetched: dict[TopicPartition, Fetched] = {}
    for partition, partition_id in ids.items():
        answer = answers[partition_id]
        start = asked[partition_id].offset
        if answer.truncated or start < answer.log_start_offset:
            raise errors.OffsetOutOfRange(
                f"{partition}: offset {start} is not in the log ({answer.log_start_offset} to {answer.log_end_offset})",
                at=partition,
                offset=start,
            )
        records = [record for batch in answer.batches for record in records_of(batch, partition, start)]
        fetched[partition] = Fetched(
            records,
            answer.position,
            answer.log_start_offset,
            answer.last_stable_offset,
            answer.log_end_offset,
            answer.blocked_by,
        )
    return fetched
