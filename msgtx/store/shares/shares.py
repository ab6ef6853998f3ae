"""Share groups: their members, and the records that these acquire one by one (internals: shares)."""

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgtx.database.calls import call, call_and_flush
from msgtx.database.connection import RawConnection
from msgtx.database.translation import answered
from msgtx.database.wire import Int4Array, Int8Array, TextArray
from msgtx.generated import calls
from msgtx.store.shares.answers import NO_ANSWERS, AnswerColumns, OffsetRange, Refused
from msgtx.store.sweeps.coordinators import led
from msgtx.store.transactions import transactions
from msgtx.store.transactions.transactions import Position
from msgtx.types import Acknowledgement, Headers

ACCEPT: Final = Acknowledgement.ACCEPT.value
NOTHING: Final = (-1, -1)  # that a member accepts
LEAST_NUMBER: Final = 1 << 60  # of a member: those of consumer groups are counted from 1 on
INLINE_BYTES: Final = 16_384  # of records in an answer: so much is on its way, read or not, before the locks are gone
TIDIED_AT_ONCE: Final = 10  # calls of up to 10,000 rows: more than a member writes between two heartbeats


# Without a partition the rest is None, too.
ShareState = calls.DescribeShareGroupsRow


class Redriven(NamedTuple):
    """The counts of one call of `redrive_dead_letters`. `upto`: where it ends, None: there is no such partition."""

    upto: int | None
    sent: int
    skipped: int
    is_over: bool


# A share partition on which something waits. Counts are of offsets. Without an acquired record its holder is None (the end
# of the lock, `locked_until`, too); without a pending one the transaction is, in which it is answered.
WaitingShare = calls.WaitingSharesRow


class ShareMembership(NamedTuple):
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
    """The acquired records of a call, and the refused answers. `has_passed`: nothing, but there may be some at once."""

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
    is_again: bool = False  # the same call was made before: perhaps it was done, and its answer was lost

    def accepted(self) -> tuple[int, int] | None:
        """Return the accepted range if it is the only answer: one whole range of the first partition."""
        return _accepted(self.answers, self.partition_ids[0])


class Acknowledging(NamedTuple):
    """A member's answers for its records, in a call without an acquisition.

    `is_whole`: the answers are for all that was acquired in one call, as far as the member knows.
    """

    group: str
    member_number: int
    call_number: int
    answers: AnswerColumns
    is_whole: bool

    @property
    def max_records(self) -> int:
        """It asks for none."""
        return 0

    @property
    def max_bytes(self) -> int:
        """It asks for none."""
        return 0

    @property
    def partition_ids(self) -> Sequence[int]:
        """The partition of the first answer."""
        return self.answers.partition_ids[:1]

    def accepted(self) -> tuple[int, int] | None:
        """As for an acquisition."""
        return _accepted(self.answers, self.partition_ids[0]) if self.is_whole else None


def _accepted(answers: AnswerColumns, partition_id: int) -> tuple[int, int] | None:
    if answers.partition_ids == (partition_id,) and answers.answers == (ACCEPT,):
        return answers.firsts[0], answers.lasts[0]
    return None


def new_member_number() -> int:
    """Draw the number of a member: a client that knows it can answer for that member, so it is shown to nobody."""
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
) -> ShareMembership:
    """Join; the same again changes nothing.

    `number`: of `new_member_number`, this member's key in the group, which is shown to nobody; None: the database draws
    it. Raise `ConfigError` if the name is a consumer group's, or if dead letters would go to a topic that the group
    reads; `InvalidSessionTimeout`, `GroupMaxSizeReached`, `InvalidRequest`.
    """
    who = (member_id, client_host, client_process, session_timeout_ms)
    ((error, detail, group_id, known),) = call(
        connection, calls.JOIN_SHARE_GROUP, group, *who, TextArray(sorted(set(topics))), number
    )
    if error is not None:
        raise answered(error, detail, group=group)
    return ShareMembership(group_id, known)


def acquire_records(connection: RawConnection, asked: Acquiring) -> Acquisition:
    """Acquire records for a member. The same call again, with `is_again`, has the same answer.

    Raise `UnknownMember` if it is not a member (any more), `GroupNotFound`.
    """
    rows, records, refused = _acquired(connection, [asked], asked.partition_ids, asked.answers, is_again=asked.is_again)
    return Acquisition(records[0], refused, has_passed=bool(rows) and rows[-1].asker == 0)


def acquire_records_together(
    connection: RawConnection, several: Sequence[Acquiring | Acknowledging]
) -> list[Acquisition | None]:
    """Acquire records for members of one group that ask for the same partition first, in one call and with one flush.

    None: it has to ask by itself. They accept one range of that partition, or nothing.
    """
    partition_ids = several[0].partition_ids
    if any(set(each.partition_ids) != set(partition_ids) for each in several):
        partition_ids = partition_ids[:1]
    rows, found, _ = _acquired(connection, several, partition_ids)
    if not rows:
        return [None] * len(several)
    # A member that got nothing looks for the general case by itself, unless there is none; what it accepts is accepted.
    is_empty = rows[-1].asker < 0
    has_all = [
        each.max_records == 0 or len(each.partition_ids) == (len(partition_ids) if is_empty else 1) for each in several
    ]
    has_more = any(found)  # perhaps, where one call's bytes were not enough for all
    return [
        Acquisition(records, [], has_passed=has_more and not records) if records or is_over else None
        for records, is_over in zip(found, has_all, strict=True)
    ]


def _acquired(
    connection: RawConnection,
    several: Sequence[Acquiring | Acknowledging],
    partition_ids: Sequence[int],
    answers: AnswerColumns = NO_ANSWERS,
    *,
    is_again: bool = False,
) -> tuple[list[calls.AcquireRecordsRow], list[list[Acquired]], list[Refused]]:
    """Make the call. Return its rows, the records of each member, and the answers that were refused."""
    asked = [(each.member_number, each.call_number, each.max_records, *(each.accepted() or NOTHING)) for each in several]
    members, numbers, most, firsts, lasts = zip(*asked, strict=True)
    arguments = (
        several[0].group,
        Int8Array(members),
        Int8Array(numbers),
        Int4Array(partition_ids),
        Int4Array(most),
        max([each.max_bytes for each in several]),
        Int8Array(firsts),
        Int8Array(lasts),
        *answers.arguments()[2:],  # without the columns of groups and members
        is_again,
        INLINE_BYTES,
    )
    if all(each.answers is NO_ANSWERS for each in several):
        rows = call(connection, calls.ACQUIRE_RECORDS, *arguments)
    else:  # others have the locks while this is flushed
        rows = call_and_flush(connection, calls.ACQUIRE_RECORDS, *arguments, flush=calls.FLUSH_LOG)
    found: list[list[Acquired]] = [[] for _ in several]
    refused: list[Refused] = []
    for row in rows:
        if row.error is not None:
            refused.append((row.error, OffsetRange(*row[2:5])))
        elif row.asker > 0:
            found[row.asker - 1].append(Acquired(OffsetRange(*row[2:5]), *row[5:]))
    _read_rest(connection, [each for records in found for each in records])
    return rows, found, refused


def _read_rest(connection: RawConnection, records: Sequence[Acquired]) -> None:
    """Read the records that an acquisition left out of its answer, now that it holds no locks."""
    left_out = [each for each in records if each.values is None]
    if not left_out:
        return
    ids, firsts, lasts = zip(*(each.range for each in left_out), strict=True)
    for each in left_out:  # records that compaction has removed since have no row
        each.values = ()
    for row in call(connection, calls.READ_RECORDS, Int4Array(ids), Int8Array(firsts), Int8Array(lasts)):
        each = left_out[row.place - 1]
        each.max_timestamp, each.offsets, each.keys, each.values, each.timestamps = row[3:8]
        each.header_counts, each.header_keys, each.header_values = row[8:]


def tidy(connection: RawConnection, membership: ShareMembership) -> None:
    """Remove superseded states of the group, and earlier calls of this member; a bounded part of it.

    Of a member that has left, all calls.
    """
    most = transactions.LOOKED_AT_ONCE
    for start, looked_at in (((1, membership.group_id, -1), most), ((2, membership.number - 1), 1)):
        after: Position = start
        for _ in range(TIDIED_AT_ONCE):
            ((_, next_after),) = call(connection, calls.REMOVE_SUPERSEDED_SHARES, Int8Array(after), looked_at, *led(None))
            if next_after is None or tuple(next_after[:2]) != start[:2]:
                break
            after = tuple(next_after)


def ensure_dead_letters(connection: RawConnection, group: str) -> str:
    """Make the group's topic of dead letters, if there is none. Return its name."""
    ((topic,),) = call(connection, calls.ENSURE_DEAD_LETTERS, group)
    return str(topic)


def configure_share_group(connection: RawConnection, group: str, settings: Mapping[str, object]) -> None:
    """Change settings of a share group, which is made if need be. Raise `ConfigError`, `GroupNotEmpty`."""
    ((error, detail),) = call(connection, calls.CONFIGURE_SHARE_GROUP, group, json.dumps(settings))
    if error is not None:
        raise answered(error, detail, group=group)


def share_group_names(connection: RawConnection) -> list[str]:
    """Return the names of all share groups."""
    return [name for (name,) in call(connection, calls.SHARE_GROUP_NAMES)]


def describe_share_groups(connection: RawConnection, groups: Collection[str] | None) -> list[ShareState]:
    """Return the descriptions of share groups (None: of all), by partition."""
    return call(connection, calls.DESCRIBE_SHARE_GROUPS, None if groups is None else TextArray(groups))


def reset_share_offsets(connection: RawConnection, group: str, offsets: Mapping[int, int]) -> None:
    """Reset the position of a share group. Raise `GroupNotFound`, `GroupNotEmpty`, `UnknownTopicOrPartition`."""
    ((error, detail),) = call(connection, calls.RESET_SHARE_OFFSETS, group, Int4Array(offsets), Int8Array(offsets.values()))
    if error is not None:
        raise answered(error, detail, group=group)


def redrive_dead_letters(
    connection: RawConnection, group: str, partition: int, *, upto: int | None, most: int, skip_missing: bool
) -> Redriven:
    """Send dead letters of one partition back to where they came from, a bounded part of those below `upto`, each once.

    Raise `GroupNotFound`, `UnknownTopicOrPartition` if the topic of the next one is gone, and the errors of a refused
    record.
    """
    (row,) = call(connection, calls.REDRIVE_DEAD_LETTERS, group, partition, upto, most, skip_missing)
    if row.error is not None:
        raise answered(row.error, row.detail, group=group)
    return Redriven(*row[2:])


def waiting_shares(connection: RawConnection, *, most: int) -> tuple[list[WaitingShare], int]:
    """Return share partitions on which something waits, at most `most`; and how many there are."""
    rows = call(connection, calls.WAITING_SHARES, most)
    return rows, rows[0].found if rows else 0
