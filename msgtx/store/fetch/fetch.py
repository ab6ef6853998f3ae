"""Fetch: rows of the log from a position on, and the ends of partitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array, TextArray
from msgtx.generated import calls
from msgtx.types import Isolation, TransactionId

MAX_ROWS: Final = 1_000  # rows of one partition in one answer; bounds the work on logs of one-record batches
EARLIEST: Final = -2
LATEST: Final = -1


@dataclass(slots=True)
class FetchedBatch:
    """A row of the log that may be delivered, as columns. Sparse rows carry `offset_deltas`.

    `identity`: distinguishes it from another row at the same offsets; `previous_identity`: of the row before it.
    """

    base_offset: int
    last_offset: int
    identity: str
    previous_identity: str | None
    max_timestamp: int
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    timestamps: Sequence[int] | None
    header_counts: Sequence[int] | None
    header_keys: Sequence[str] | None
    header_values: Sequence[bytes | None] | None
    offset_deltas: Sequence[int] | None

    def identity_before(self, offset: int) -> str | None:
        """Return the identity of the row that holds the offset before this one of this row."""
        return self.identity if offset > self.base_offset else self.previous_identity


@dataclass(slots=True)
class FetchedPartition:
    """The result of a fetch for one partition.

    `position` is the next one to fetch from (aborted data is passed), `token` goes with it. `blocked_by`: the undecided
    transaction that holds the last stable offset back; `blocked_overdue`: anyone may abort it now.
    """

    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    position: int
    token: str | None
    truncated: bool
    blocked_by: TransactionId | None
    blocked_overdue: bool
    batches: list[FetchedBatch]


@dataclass(frozen=True, slots=True)
class Position:
    """Where to read a partition, and the token of the fetch that led there (None after a seek)."""

    offset: int
    token: str | None = None

    @property
    def identity(self) -> str | None:
        """The identity of the row before the position, as it was fetched."""
        return None if self.token is None else self.token.partition(" ")[2]


def _partition(row: calls.FetchBatchesRow, offset: int) -> FetchedPartition:
    blocked_by = row[6:9]
    return FetchedPartition(
        log_start_offset=row.log_start_offset,
        last_stable_offset=row.last_stable_offset,
        log_end_offset=row.log_end_offset,
        position=offset,
        token=None,
        truncated=row.truncated,
        blocked_by=None if row.blocked_producer_id is None else TransactionId(*blocked_by),
        blocked_overdue=bool(row.blocked_overdue),
        batches=[],
    )


def _holds_records(row: calls.FetchBatchesRow, start: int) -> bool:
    """Return whether compaction has left records at or after this offset in a row."""
    deltas = row.offset_deltas
    return deltas is None or (len(deltas) > 0 and row.base_offset + deltas[-1] >= start)


def fetch(
    connection: RawConnection,
    positions: Mapping[int, Position],
    *,
    isolation: Isolation,
    max_bytes: int,
    max_rows: int = MAX_ROWS,
    total_bytes: int | None = None,
) -> dict[int, FetchedPartition]:
    """Read on from each position, all partitions on one snapshot (I5). Returns answers by partition id.

    A partition that does not exist (any more) is absent. `max_bytes` bounds the visible rows of each partition, but for one
    row. `total_bytes` bounds those of all, except the first row of all: partitions named first come first.
    """
    asked = positions.values()
    rows = call(
        connection,
        calls.FETCH_BATCHES,
        Int4Array(positions),
        Int8Array(position.offset for position in asked),
        TextArray(position.token for position in asked),
        isolation.value,
        max_bytes,
        max_rows,
        total_bytes,
    )
    answers: dict[int, FetchedPartition] = {}
    identities: dict[int, str | None] = {}
    for row in rows:
        partition_id = row.partition_id
        answer = answers.get(partition_id)
        if answer is None:
            answer = answers[partition_id] = _partition(row, positions[partition_id].offset)
            identities[partition_id] = row.previous_identity
        if row.base_offset is None:
            continue
        if row.visible and _holds_records(row, positions[partition_id].offset):
            answer.batches.append(
                FetchedBatch(row.base_offset, row.last_offset, row.identity, identities[partition_id], *row[14:])
            )
        answer.position = row.last_offset + 1
        identities[partition_id] = row.identity
    for partition_id, answer in answers.items():
        identity = identities[partition_id]
        if identity is not None and not answer.truncated:
            stable = answer.position <= answer.last_stable_offset
            answer.token = f"{'stable' if stable else 'seen'} {identity}"
    return answers


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """The three ends of a partition, and the offset that was asked for (None: there is none), with its timestamp."""

    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    offset: int | None
    timestamp: int | None


def list_offsets(connection: RawConnection, times: Mapping[int, int], isolation: Isolation) -> dict[int, ListedOffset]:
    """Look up offsets by time (milliseconds, `EARLIEST`, `LATEST`) by partition id; unknown partitions are absent."""
    rows = call(connection, calls.LIST_OFFSETS, Int4Array(times), Int8Array(times.values()), isolation.value)
    return {row[0]: ListedOffset(*row[1:]) for row in rows}
