"""What monitoring reads of topics and groups: in steps of bounded cost, and without a lock."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from msgtx.database.calls import Function, call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array

GROUPS: Final = Function("measure_groups", {"in_after": "int4[]", "most": "int4"})
PARTITIONS: Final = Function("measure_partitions", {"in_after": "int4", "most": "int4"})
LAGS: Final = Function("measure_lags", {"in_after": "int4[]", "most": "int4"})
SHARES: Final = Function("measure_shares", {"in_after": "int4[]", "most": "int4"})
DEAD_LETTERS: Final = Function("measure_dead_letters", {"in_after": "int4[]", "most": "int4"})
GROUPS_AT_ONCE: Final = 250  # in one call: some 5 ms
PARTITIONS_AT_ONCE: Final = 1_000  # in one call: some 100 ms
LAGS_AT_ONCE: Final = 250  # pairs of a group and a partition; in a call each is compared with each partition
SHARES_AT_ONCE: Final = 50  # the same of share groups; up to 10,000 rows of each are counted


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """A consumer group: living members, those whose session is over, and whether each partition is where it belongs."""

    name: str
    members: int
    overdue: int
    settled: bool


@dataclass(frozen=True, slots=True)
class MeasuredPartition:
    """A partition: the ends of its log, and about how many bytes its records have."""

    partition_id: int
    topic: str
    index: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MeasuredLag:
    """How far a group is behind on some partitions of a topic; `age_ms`: of the oldest batch with unread records."""

    group: str
    topic: str
    records: int
    age_ms: int | None


@dataclass(frozen=True, slots=True)
class MeasuredShare:
    """How far a share group is on some partitions of a topic; `records`: all that it has not done."""

    group: str
    topic: str
    records: int
    in_flight: int
    parked: int
    age_ms: int | None
    members: int


def measure_partitions(
    connection: RawConnection, *, most: int, deadline: float = math.inf
) -> Iterator[MeasuredPartition | None]:
    """Yield partitions. None at the end: there may be more.

    `most`: rounded up to `PARTITIONS_AT_ONCE`; `deadline`: by `time.monotonic`, when no further call is begun.
    """
    after: int | None = None
    for _ in range(0, most, PARTITIONS_AT_ONCE):
        if time.monotonic() >= deadline:
            break
        rows: list[tuple[Any, ...]] = call(connection, PARTITIONS, after, PARTITIONS_AT_ONCE)
        yield from (MeasuredPartition(*row) for row in rows)
        if len(rows) < PARTITIONS_AT_ONCE:
            return
        after = max(row[0] for row in rows)
    yield None


def measure_lags(connection: RawConnection, *, most: int, deadline: float = math.inf) -> Iterator[MeasuredLag | None]:
    """Yield how far groups are behind; one of a topic may come in several parts. None at the end: there may be more.

    `most`: pairs of a group and a partition that are looked at, rounded up to `LAGS_AT_ONCE`; `deadline`: as above.
    """
    for row in _pages(connection, LAGS, LAGS_AT_ONCE, most=most, deadline=deadline):
        yield None if row is None else MeasuredLag(*row)


def measure_groups(connection: RawConnection, *, most: int, deadline: float = math.inf) -> Iterator[MeasuredGroup | None]:
    """Yield consumer groups; `most` counts share groups, too. Otherwise as `measure_lags`."""
    for row in _pages(connection, GROUPS, GROUPS_AT_ONCE, most=most, deadline=deadline):
        yield None if row is None else MeasuredGroup(*row)


def measure_shares(connection: RawConnection, *, most: int, deadline: float = math.inf) -> Iterator[MeasuredShare | None]:
    """Yield how far share groups are; otherwise as `measure_lags`."""
    for row in _pages(connection, SHARES, SHARES_AT_ONCE, most=most, deadline=deadline):
        yield None if row is None else MeasuredShare(*row)


def measure_dead_letters(
    connection: RawConnection, *, most: int, deadline: float = math.inf
) -> Iterator[tuple[str, int] | None]:
    """Yield each share group and its dead letters that were not sent back; otherwise as `measure_lags`."""
    for row in _pages(connection, DEAD_LETTERS, SHARES_AT_ONCE, most=most, deadline=deadline):
        yield None if row is None else (row[0], row[1])


def _pages(
    connection: RawConnection, function: Function, at_once: int, *, most: int, deadline: float
) -> Iterator[tuple[Any, ...] | None]:
    """Yield rows without the last column, which says where the next call goes on."""
    after: list[int] | None = None
    for _ in range(0, most, at_once):
        if time.monotonic() >= deadline:
            break
        rows: list[tuple[Any, ...]] = call(connection, function, None if after is None else Int4Array(after), at_once)
        yield from (row[:-1] for row in rows if row[0] is not None)
        after = rows[0][-1] if rows else None
        if after is None:
            return
    yield None
