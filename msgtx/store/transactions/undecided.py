"""Undecided transactions, as an operator looks for them: per partition, and prepared ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array
from msgtx.generated import calls
from msgtx.types import TopicPartition, TransactionId


@dataclass(frozen=True, slots=True)
class Undecided:
    """A transaction without a decision on one partition. If it lacks a row, `opened_at` or `current_epoch` is None."""

    partition: TopicPartition
    first_offset: int
    log_end_offset: int | None
    transaction_id: TransactionId
    transactional_id: str | None
    current_epoch: int | None
    opened_at: datetime | None
    timeout_ms: int | None
    client_host: str | None
    client_process: int | None
    database_backend: int | None
    seal_kind: str | None
    sealed_at: datetime | None
    seal_deadline: datetime | None
    coordinator_epoch: int
    last_appended_at: datetime | None
    checked_at: datetime


@dataclass(frozen=True, slots=True)
class UndecidedSeal:
    """A prepared transaction: sealed for a SQL session or an outside party, and not decided."""

    transaction_id: TransactionId
    transactional_id: str | None
    kind: str
    sealed_at: datetime
    deadline: datetime | None
    opened_at: datetime | None
    timeout_ms: int | None
    client_host: str | None
    client_process: int | None
    database_backend: int | None
    partitions: int
    checked_at: datetime


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A decided transaction whose markers are missing on some partitions."""

    transaction_id: TransactionId
    outcome: str
    decided_at: datetime
    decided_by: str
    partitions_missing: int
    checked_at: datetime


def undecided_transactions(
    connection: RawConnection,
    partition_ids: Sequence[int] | None = None,
    *,
    each_partition: int,
    most: int,
    overdue_only: bool = False,
    limit_ms: int | None = None,
) -> tuple[list[Undecided], int]:
    """Return undecided transactions per partition, the oldest first, at most `most`; and how many there are.

    `overdue_only`: older than `limit_ms` (None: than their own timeout), or without transaction or producer row.
    """
    asked = None if partition_ids is None else Int4Array(partition_ids)
    rows = call(connection, calls.UNDECIDED_TRANSACTIONS, asked, each_partition, overdue_only, limit_ms, most)
    return [_undecided(row) for row in rows], rows[0].found if rows else 0


def _undecided(row: tuple[Any, ...]) -> Undecided:
    topic, index, first, end, producer_id, epoch, number, *rest, _ = row
    return Undecided(TopicPartition(topic, index), first, end, TransactionId(producer_id, epoch, number), *rest)


def undecided_seals(connection: RawConnection, *, most: int) -> tuple[list[UndecidedSeal], int]:
    """Return prepared transactions, the oldest first, at most `most`; and how many there are."""
    rows = call(connection, calls.UNDECIDED_SEALS, most)
    return [UndecidedSeal(TransactionId(*row[:3]), *row[3:-1]) for row in rows], rows[0].found if rows else 0


def unfinished_decisions(connection: RawConnection, *, older_than_ms: int, most: int) -> tuple[list[Unfinished], int]:
    """Return decided transactions that are not complete, the oldest first, at most `most`; and how many there are."""
    rows = call(connection, calls.UNFINISHED_DECISIONS, older_than_ms, most)
    return [Unfinished(TransactionId(*row[:3]), *row[3:-1]) for row in rows], rows[0].found if rows else 0
