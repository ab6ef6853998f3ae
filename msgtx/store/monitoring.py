"""The figures of topics and groups for monitoring, read in steps of bounded cost, and without a lock."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array
from msgtx.declared.function import Function, Row
from msgtx.generated import calls

GROUPS_AT_ONCE: Final = 250  # in one call: some 5 ms
MEASURED_AT_ONCE: Final = 1_000  # in one call: some 100 ms
LAGS_AT_ONCE: Final = 250  # pairs of a group and a partition; in a call each is compared with each partition
SHARES_AT_ONCE: Final = 50  # the same of share groups; up to 10,000 rows of each are counted


# A consumer group: living members, those whose session is over, and whether each partition is with its target.
MeasuredGroup = calls.MeasureGroupsRow


# A partition: the ends of its log, and about how many bytes its records have.
MeasuredPartition = calls.MeasurePartitionsRow


# How far a group is behind on some partitions of a topic; `age_ms`: of the oldest batch with unread records.
MeasuredLag = calls.MeasureLagsRow


# How far a share group is on some partitions of a topic; `records`: all that it has not done.
MeasuredShare = calls.MeasureSharesRow


# What was stored and decided in a piece of time.
MeasuredPiece = calls.MeasureActivityRow


def measure_logs(connection: RawConnection, partition_ids: Sequence[int]) -> list[calls.MeasureLogsRow]:
    """Return the ends of these logs, and about how many bytes their records have."""
    found: list[calls.MeasureLogsRow] = []
    for begin in range(0, len(partition_ids), MEASURED_AT_ONCE):
        found += call(connection, calls.MEASURE_LOGS, Int4Array(partition_ids[begin : begin + MEASURED_AT_ONCE]))
    return found


def groups_on_partitions(
    connection: RawConnection, partition_ids: Sequence[int], *, pairs: int
) -> tuple[list[calls.GroupsOnPartitionsRow], int]:
    """Return how far groups are on these partitions; and on how many of them, the first ones, they were looked for.

    `pairs`: of a group and a partition that are looked at, about.
    """
    if not partition_ids:
        return [], 0
    rows = call(connection, calls.GROUPS_ON_PARTITIONS, Int4Array(partition_ids), pairs)
    return [row for row in rows if row.group_name is not None], rows[0].searched


def measure_partitions(
    connection: RawConnection, *, most: int, deadline: float = math.inf
) -> Iterator[MeasuredPartition | None]:
    """Yield partitions. None at the end: there may be more.

    `most`: rounded up to `MEASURED_AT_ONCE`; `deadline`: by `time.monotonic`, when no further call is begun.
    """
    after: int | None = None
    for _ in range(0, most, MEASURED_AT_ONCE):
        if time.monotonic() >= deadline:
            break
        rows = call(connection, calls.MEASURE_PARTITIONS, after, MEASURED_AT_ONCE)
        yield from rows
        if len(rows) < MEASURED_AT_ONCE:
            return
        after = max(row.partition_id for row in rows)
    yield None


def measure_lags(connection: RawConnection, *, most: int, deadline: float = math.inf) -> Iterator[MeasuredLag | None]:
    """Yield how far groups are behind; one of a topic may come in several parts. None at the end: there may be more.

    `most`: pairs of a group and a partition that are looked at, rounded up to `LAGS_AT_ONCE`; `deadline`: as above.
    """
    return _pages(connection, calls.MEASURE_LAGS, LAGS_AT_ONCE, most=most, deadline=deadline)


def measure_groups(connection: RawConnection, *, most: int, deadline: float = math.inf) -> Iterator[MeasuredGroup | None]:
    """Yield consumer groups; `most` counts share groups, too. Otherwise as `measure_lags`."""
    return _pages(connection, calls.MEASURE_GROUPS, GROUPS_AT_ONCE, most=most, deadline=deadline)


def measure_shares(connection: RawConnection, *, most: int, deadline: float = math.inf) -> Iterator[MeasuredShare | None]:
    """Yield how far share groups are; otherwise as `measure_lags`."""
    return _pages(connection, calls.MEASURE_SHARES, SHARES_AT_ONCE, most=most, deadline=deadline)


def measure_dead_letters(
    connection: RawConnection, *, most: int, deadline: float = math.inf
) -> Iterator[calls.MeasureDeadLettersRow | None]:
    """Yield each share group and its dead letters that were not sent back; otherwise as `measure_lags`."""
    return _pages(connection, calls.MEASURE_DEAD_LETTERS, SHARES_AT_ONCE, most=most, deadline=deadline)


def measure_activity(connection: RawConnection, topic: str | None, *, pieces: int, piece_ms: int) -> list[MeasuredPiece]:
    """Return what was stored and decided in the last pieces of time, the oldest first, of a topic or of all that are seen.

    Raise `AuthorizationFailed` for a topic that the role may neither consume nor observe.
    """
    return call(connection, calls.MEASURE_ACTIVITY, topic, pieces, piece_ms)


def _pages(
    connection: RawConnection, function: Function[Row], at_once: int, *, most: int, deadline: float
) -> Iterator[Row | None]:
    """Yield rows; the last column of each says where the next call goes on, and the first one is null if it is all."""
    after: list[int] | None = None
    for _ in range(0, most, at_once):
        if time.monotonic() >= deadline:
            break
        rows = call(connection, function, None if after is None else Int4Array(after), at_once)
        yield from (row for row in rows if row[0] is not None)
        after = rows[0][-1] if rows else None
        if after is None:
            return
    yield None
