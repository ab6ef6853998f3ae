"""Share groups: their members, and the records that these acquire one by one (internals: shares)."""

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from msgtx.database.calls import Function, call, call_and_flush
from msgtx.database.connection import RawConnection
from msgtx.database.translation import answered
from msgtx.database.wire import Int4Array, Int8Array, TextArray
from msgtx.store import sweeps, transactions
from msgtx.store.answers import NO_ANSWERS, AnswerColumns, OffsetRange, Refused
from msgtx.store.coordinators import led
from msgtx.store.transactions import Position
from msgtx.types import Acknowledgement, Headers, TopicPartition, TransactionId

JOIN: Final = Function(
    "join_share_group",
    {
        "group_name": "text",
        "in_member_id": "text",
        "in_client_host": "text",
        "in_client_process": "int4",
        "in_session_timeout_ms": "int4",
        "in_topics": "text[]",
        "in_member_number": "int8",
    },
)
ACQUIRE: Final = Function(
    "acquire_records",
    {
        "group_name": "text",
        "in_member_number": "int8",
        "in_call_number": "int8",
        "partition_ids": "int4[]",
        "max_records": "int4",
        "max_bytes": "int8",
        "answered_partitions": "int4[]",
        "first_offsets": "int8[]",
        "last_offsets": "int8[]",
        "answers": "text[]",
        "reasons": "text[]",
        "delays_ms": "int4[]",
        "flushes": "bool",
        "is_again": "bool",
    },
    flushed=False,
)
ACQUIRE_TOGETHER: Final = Function(
    "acquire_records_together",
    {
        "group_name": "text",
        "member_numbers": "int8[]",
        "call_numbers": "int8[]",
        "partition_ids": "int4[]",
        "mosts": "int4[]",
        "max_bytes": "int8",
        "first_offsets": "int8[]",
        "last_offsets": "int8[]",
    },
    flushed=False,
)
READ: Final = Function("read_records", {"partition_ids": "int4[]", "first_offsets": "int8[]", "last_offsets": "int8[]"})
FLUSH: Final = Function("flush_log", {})
ENSURE_DEAD_LETTERS: Final = Function("ensure_dead_letters", {"group_name": "text"})
CONFIGURE: Final = Function("configure_share_group", {"group_name": "text", "settings": "jsonb"})
NAMES: Final = Function("share_group_names", {})
DESCRIBE: Final = Function("describe_share_groups", {"names": "text[]"})
RESET: Final = Function("reset_share_offsets", {"group_name": "text", "partition_ids": "int4[]", "offsets": "int8[]"})
REDRIVE: Final = Function(
    "redrive_dead_letters",
    {"group_name": "text", "in_index": "int4", "in_upto": "int8", "most": "int4", "skip_missing": "bool"},
)
WAITING: Final = Function("waiting_shares", {"most": "int4"})
ACCEPT: Final = Acknowledgement.ACCEPT.value
NOTHING: Final = (-1, -1)  # that a member accepts
LEAST_NUMBER: Final = 1 << 60  # of a member: those of consumer groups are counted from 1 on
TIDIED_AT_ONCE: Final = 10  # calls of up to 10,000 rows: more than a member writes between two heartbeats


class ShareState(NamedTuple):
    """A row of `describe_share_groups`; without a partition the rest is None, too."""

    group: str
    settings: dict[str, object]
    members: int
    partition_id: int | None
    start_offset: int
    next_offset: int
    available: int
    acquired: int
    pending: int
    rejected: int
    lag: int
    parked: int
    lag_ms: int | None


class Redriven(NamedTuple):
    """What one call of `redrive_dead_letters` did. `upto`: where it ends, None: there is no such partition."""

    upto: int | None
    sent: int
    skipped: int
    is_over: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the first acquired record. `member_id` None: its row is gone."""

    member_id: str | None
    client_host: str | None
    client_process: int | None
    locked_until: datetime


@dataclass(frozen=True, slots=True)
class Pending:
    """The transaction in which the first pending record is answered; as it was opened, if it has its row."""

    transaction_id: TransactionId
    transactional_id: str | None
    opened_at: datetime | None
    timeout_ms: int | None
    client_host: str | None
    client_process: int | None
    database_backend: int | None
    seal_kind: str | None
    checked_at: datetime


@dataclass(frozen=True, slots=True)
class WaitingShare:
    """A share partition on which something waits; see `waiting_shares.sql`. Counts are of offsets."""

    group: str
    partition: TopicPartition
    members: int
    start_offset: int
    next_offset: int
    readable_end: int
    max_record_locks: int
    available: int
    acquired: int
    pending: int
    rejected: int
    delayed: int
    waiting: int
    due_at: datetime | None
    reason: str | None
    deliveries: int | None
    lock_ms: int
    holder: Holder | None
    transaction: Pending | None
    checked_at: datetime
    writes_letters: bool
    exhausted: int


class Membership(NamedTuple):
    """By which the group's tables know a member."""

    group_id: int
    number: int


@dataclass(slots=True)
class Acquired:
    """Records of one row of the log, as columns. `range`: all that is acquired; `offsets`: of the records (None: all)."""

    range: OffsetRange
    delivery_count: int
    lock_ms: int
    max_timestamp: int
    offsets: Sequence[int] | None
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None] | None  # None until it is read
    timestamps: Sequence[int] | None
    header_counts: Sequence[int] | None
    header_keys: Sequence[str] | None
    header_values: Sequence[bytes | None] | None

    def headers(self) -> list[Headers] | None:
        """Return the headers of each record; None: none has any."""
        if self.header_counts is None:
            return None
        pairs = iter(zip(self.header_keys or (), self.header_values or (), strict=True))
        return [tuple(next(pairs) for _ in range(count)) for count in self.header_counts]


class Acquisition(NamedTuple):
    """What a call acquired, and which answers it refused. `has_passed`: nothing, but there may be some at once."""

    records: list[Acquired]
    refused: list[Refused]
    has_passed: bool


class Acquiring(NamedTuple):
    """A call of a member: up to `max_records` of these partitions, those named first first.

    `answers`: of this member, which hold first. If any is refused, nothing is done but to find out which.
    """

    group: str
    member_number: int
    call_number: int
    partition_ids: Sequence[int]
    max_records: int
    max_bytes: int
    answers: AnswerColumns = NO_ANSWERS
    is_whole: bool = True  # the answers are for all that was acquired in one call, as far as the member knows
    is_again: bool = False  # the same call was made before: perhaps it was done, and its answer was lost

    def accepted(self) -> tuple[int, int] | None:
        """Return what it accepts if that is one whole range of the first partition, and there is no other answer."""
        answers = self.answers
        if self.is_whole and answers.partition_ids == (self.partition_ids[0],) and answers.answers == (ACCEPT,):
            return answers.firsts[0], answers.lasts[0]
        return None


def new_member_number() -> int:
    """Draw the number of a member: whoever knows it can answer for that member, so it is told to nobody."""
    return LEAST_NUMBER | secrets.randbits(62)


def join_share_group(
    connection: RawConnection,
    group: str,
    *,
    member_id: str,
    client_host: str | None,
    client_process: int | None,
    session_timeout_ms: int,
    topics: Collection[str],
    number: int | None = None,
) -> Membership:
    """Join; the same again changes nothing.

    `number`: of `new_member_number`, by which the group knows this member, and which it tells nobody; None: the database
    draws it. Raise `ConfigError` if the name is a consumer group's, or if dead letters would go to a topic that the group
    reads; `InvalidSessionTimeout`, `GroupMaxSizeReached`, `InvalidRequest`.
    """
    who = (member_id, client_host, client_process, session_timeout_ms)
    ((error, detail, group_id, known),) = call(connection, JOIN, group, *who, TextArray(sorted(set(topics))), number)
    if error is not None:
        raise answered(error, detail, group=group)
    return Membership(group_id, known)


def acquire_records(connection: RawConnection, asked: Acquiring) -> Acquisition:
    """Acquire records for a member. The same call again, with `is_again`, has the same answer.

    Raise `UnknownMember` if it is not a member (any more), `GroupNotFound`.
    """
    arguments = (
        asked.group,
        asked.member_number,
        asked.call_number,
        Int4Array(asked.partition_ids),
        asked.max_records,
        asked.max_bytes,
        *asked.answers.arguments()[2:],  # without the columns of groups and members
        False,
        asked.is_again,
    )
    if asked.answers is NO_ANSWERS:
        rows = call(connection, ACQUIRE, *arguments)
    else:  # others have the locks while this is flushed
        rows = call_and_flush(connection, ACQUIRE, *arguments, flush=FLUSH)
    if rows and rows[0][0] is not None:
        return Acquisition([], [(row[0], OffsetRange(*row[1:4])) for row in rows], has_passed=False)
    if rows and rows[0][1] is None:
        return Acquisition([], [], has_passed=True)
    records = [Acquired(OffsetRange(*row[1:4]), *row[4:]) for row in rows]
    _read_rest(connection, records)
    return Acquisition(records, [], has_passed=False)


def acquire_records_together(connection: RawConnection, several: Sequence[Acquiring]) -> list[Acquisition | None]:
    """Acquire records for members of one group that ask for the same partition first, in one call and with one flush.

    None: it has to ask by itself. They accept one range of that partition, or nothing.
    """
    group, partition_ids = several[0].group, several[0].partition_ids
    if any(set(each.partition_ids) != set(partition_ids) for each in several):
        partition_ids = partition_ids[:1]
    accepted = [each.accepted() or NOTHING for each in several]
    arguments = (
        group,
        Int8Array(each.member_number for each in several),
        Int8Array(each.call_number for each in several),
        Int4Array(partition_ids),
        Int4Array(each.max_records for each in several),
        max(each.max_bytes for each in several),
        Int8Array(first for first, _ in accepted),
        Int8Array(last for _, last in accepted),
    )
    if any(each is not NOTHING for each in accepted):
        rows = call_and_flush(connection, ACQUIRE_TOGETHER, *arguments, flush=FLUSH)
    else:
        rows = call(connection, ACQUIRE_TOGETHER, *arguments)
    if not rows:
        return [None] * len(several)
    found: list[list[Acquired]] = [[] for _ in several]
    for asker, partition_id, first, last, lock_ms, max_timestamp, *columns in rows:
        if asker > 0:
            acquired = Acquired(OffsetRange(partition_id, first, last), 1, lock_ms, max_timestamp, None, *columns)
            found[asker - 1].append(acquired)
    _read_rest(connection, [each for records in found for each in records])
    # Who got nothing looks for what is not usual by itself, unless there is none; what it accepts is accepted.
    is_empty = rows[-1][0] < 0
    has_all = [
        each.max_records == 0 or len(each.partition_ids) == (len(partition_ids) if is_empty else 1) for each in several
    ]
    has_more = any(found)  # perhaps, where one call's bytes were not enough for all
    return [
        Acquisition(records, [], has_passed=has_more and not records) if records or is_over else None
        for records, is_over in zip(found, has_all, strict=True)
    ]


def _read_rest(connection: RawConnection, records: Sequence[Acquired]) -> None:
    """Read what an acquisition left out of its answer, now that it holds no locks."""
    left_out = [each for each in records if each.values is None]
    if not left_out:
        return
    ids, firsts, lasts = zip(*(each.range for each in left_out), strict=True)
    for each in left_out:  # what compaction has removed since has no row
        each.values = ()
    for place, _, _, *columns in call(connection, READ, Int4Array(ids), Int8Array(firsts), Int8Array(lasts)):
        each = left_out[place - 1]
        each.max_timestamp, each.offsets, each.keys, each.values, each.timestamps, *headers = columns
        each.header_counts, each.header_keys, each.header_values = headers


def tidy(connection: RawConnection, membership: Membership) -> None:
    """Remove what newer states of the group supersede, and earlier calls of this member; a bounded part of it.

    Of a member that has left, all calls.
    """
    most = transactions.LOOKED_AT_ONCE
    for start, looked_at in (((1, membership.group_id, -1), most), ((2, membership.number - 1), 1)):
        after: Position = start
        for _ in range(TIDIED_AT_ONCE):
            ((_, next_after),) = call(connection, sweeps.REMOVE_SHARES, Int8Array(after), looked_at, *led(None))
            if next_after is None or tuple(next_after[:2]) != start[:2]:
                break
            after = tuple(next_after)


def ensure_dead_letters(connection: RawConnection, group: str) -> str:
    """Make the group's topic of dead letters, if there is none. Return its name."""
    ((topic,),) = call(connection, ENSURE_DEAD_LETTERS, group)
    return str(topic)


def configure_share_group(connection: RawConnection, group: str, settings: Mapping[str, object]) -> None:
    """Change settings of a share group, which is made if need be. Raise `ConfigError`, `GroupNotEmpty`."""
    ((error, detail),) = call(connection, CONFIGURE, group, json.dumps(settings))
    if error is not None:
        raise answered(error, detail, group=group)


def share_group_names(connection: RawConnection) -> list[str]:
    """Return the names of all share groups."""
    return [name for (name,) in call(connection, NAMES)]


def describe_share_groups(connection: RawConnection, groups: Collection[str] | None) -> list[ShareState]:
    """Return what there is to know of share groups (None: of all), by partition."""
    return [ShareState(*row) for row in call(connection, DESCRIBE, None if groups is None else TextArray(groups))]


def reset_share_offsets(connection: RawConnection, group: str, offsets: Mapping[int, int]) -> None:
    """Have a share group go on elsewhere. Raise `GroupNotFound`, `GroupNotEmpty`, `UnknownTopicOrPartition`."""
    ((error, detail),) = call(connection, RESET, group, Int4Array(offsets), Int8Array(offsets.values()))
    if error is not None:
        raise answered(error, detail, group=group)


def redrive_dead_letters(
    connection: RawConnection, group: str, partition: int, *, upto: int | None, most: int, skip_missing: bool
) -> Redriven:
    """Send dead letters of one partition back to where they came from, a bounded part of those below `upto`, each once.

    Raise `GroupNotFound`, `UnknownTopicOrPartition` if the topic of the next one is gone, and what refuses a record.
    """
    ((error, detail, *done),) = call(connection, REDRIVE, group, partition, upto, most, skip_missing)
    if error is not None:
        raise answered(error, detail, group=group)
    return Redriven(*done)


def waiting_shares(connection: RawConnection, *, most: int) -> tuple[list[WaitingShare], int]:
    """Return share partitions on which something waits, at most `most`; and how many there are."""
    found, total = [], 0
    for row in call(connection, WAITING, most):
        holder, lock_ms, opened, checked_at, total = row[17:21], row[21], row[22:32], row[32], row[33]
        columns = (
            row[0],
            TopicPartition(row[1], row[2]),
            *row[3:17],
            lock_ms,
            None if holder[-1] is None else Holder(*holder),
            None if opened[0] is None else Pending(*(TransactionId(*opened[:3]), *opened[3:], checked_at)),
            checked_at,
            *row[34:],
        )
        found.append(WaitingShare(*columns))
    return found, total
