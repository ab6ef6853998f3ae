"""A share group by hand: its members, and each step of the protocol."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from msgtx.store.append.append import append
from msgtx.store.groups.members import leave_group
from msgtx.store.shares.answers import AnswerColumns, OffsetRange, acknowledge_in_transaction, acknowledge_records
from msgtx.store.shares.shares import (
    Acquiring,
    ShareMembership,
    acquire_records,
    configure_share_group,
    join_share_group,
)
from msgtx.store.topics.retention import delete_records
from msgtx.types import TransactionId
from tests.databases import Connection
from tests.store.steps import batch, count, new_partition, unique

ANYTHING: Final = 1 << 30
MINUTE: Final = 60_000


def four_records(connection: Connection) -> int:
    """Return a partition of four records, in one row."""
    made = new_partition(connection)
    append(connection, [batch(made, b"0", b"1", b"2", b"3")])
    return made


def fill(connection: Connection, partition: int, keys: str, *, delays: Sequence[int | None] = ()) -> None:
    """Append a row with a record for each letter, its key, "-" for none; `delays` in milliseconds."""
    now = int(time.time() * 1000)
    delays = [*delays, *[None] * (len(keys) - len(delays))]
    headers = [[("a", b"b")] if delay is None else [("msgtx.deliver-at", b"%d" % (now + delay))] for delay in delays]
    row = batch(
        partition,
        *[b"%d" % place for place in range(len(keys))],
        keys=[None if key == "-" else key.encode() for key in keys],
        headers=headers if any(delay is not None for delay in delays) else None,
    )
    append(connection, [row])


def join(
    connection: Connection,
    group: str,
    *topics: str,
    member: str = "a",
    number: int | None = None,
    session_timeout_ms: int = 1_000_000,
) -> ShareMembership:
    """Join a share group as a member that reads these topics."""
    return join_share_group(
        connection,
        group,
        member_id=member,
        client_host=None,
        client_process=None,
        session_timeout_ms=session_timeout_ms,
        topics=topics,
        number=number,
    )


def answers_of(
    group: str,
    number: int,
    *answers: tuple[int, int, int, str],
    reason: str | None = None,
    delay: int | None = None,
) -> AnswerColumns:
    """Return a member's answers for ranges: partition, first and last offset, kind."""
    size = len(answers)
    partitions, firsts, lasts, kinds = zip(*answers, strict=True) if answers else ((),) * 4
    return AnswerColumns(
        (group,) * size, (number,) * size, partitions, firsts, lasts, kinds, (reason,) * size, (delay,) * size
    )


class ShareGroup:
    """A share group that begins at the start of a partition. Members join when they are first named."""

    def __init__(self, connection: Connection, partition: int, *, name: str | None = None, **settings: object) -> None:
        self.connection = connection
        self.partition = partition
        self.name = name or unique("share")
        self.numbers: dict[str, int] = {}
        self.calls = 0
        self.group_id = -1
        self.join("a")
        for setting, value in {"auto_offset_reset": "earliest", **settings}.items():
            self.connection.execute(
                f"update msgtx.share_group set {setting} = %s where group_id = %s", [value, self.group_id]
            )
        self.connection.execute(
            "update msgtx.share_group set longest_lock_ms = greatest(longest_lock_ms, record_lock_duration_ms)"
            " where group_id = %s",
            [self.group_id],
        )

    def join(self, member: str) -> int:
        """Return the number of a member."""
        if member not in self.numbers:
            self.group_id, self.numbers[member] = join(self.connection, self.name, member=member)
        return self.numbers[member]

    def leave(self, *members: str) -> None:
        """Have members leave."""
        for member in members:
            leave_group(self.connection, self.name, member)

    def configure(self, **settings: object) -> None:
        """Change settings, as an administrator does."""
        configure_share_group(self.connection, self.name, settings)

    def fill(self, keys: str, *, delays: Sequence[int | None] = ()) -> None:
        """Append a row to the partition; see `fill`."""
        fill(self.connection, self.partition, keys, delays=delays)

    def remove_below(self, offset: int) -> None:
        """Remove the records in front of an offset, as retention does."""
        delete_records(self.connection, {self.partition: offset})

    def call(self) -> int:
        """Return the number of the next call."""
        self.calls += 1
        return self.calls

    def asking(self, member: str, most: int = 500, *, bytes_at_most: int = ANYTHING, call: int | None = None) -> Acquiring:
        """Return what a member asks for in a call, by default the next one."""
        number = self.join(member)
        return Acquiring(self.name, number, call or self.call(), [self.partition], most, bytes_at_most)

    def acquired(self, asked: Acquiring) -> dict[int, int]:
        """Acquire. Returns the delivery count of each record, by offset."""
        return {
            offset: each.delivery_count
            for each in acquire_records(self.connection, asked).records
            for offset in each.offsets or range(each.range.first, each.range.last + 1)
        }

    def acquire(self, member: str, most: int = 500, *, call: int | None = None) -> dict[int, int]:
        """Return the delivery count of each record that a member acquires, by offset."""
        return self.acquired(self.asking(member, most, call=call))

    def answers(
        self, member: str, answers: Mapping[int, str], *, reason: str | None = None, delay: int | None = None
    ) -> AnswerColumns:
        """Return a member's answers by offset, each a range of its own."""
        ranges = [(self.partition, offset, offset, kind) for offset, kind in answers.items()]
        return answers_of(self.name, self.join(member), *ranges, reason=reason, delay=delay)

    def answer(self, member: str, answers: Mapping[int, str], *, delay: int | None = None) -> list[tuple[str, OffsetRange]]:
        """Answer at once. Returns what is refused."""
        return acknowledge_records(self.connection, self.answers(member, answers, delay=delay), call_number=self.call())

    def accept(self, member: str, *offsets: int) -> None:
        """Accept records that the member has."""
        assert self.answer(member, dict.fromkeys(offsets, "accept")) == []

    def answer_in(
        self,
        name: TransactionId,
        member: str,
        answers: Mapping[int, str],
        *,
        call: int | None = None,
        delay: int | None = None,
    ) -> None:
        """Answer in a transaction. Raise what is refused."""
        columns = self.answers(member, answers, delay=delay)
        acknowledge_in_transaction(self.connection, name, columns, call_number=call or self.call())

    @property
    def letters(self) -> list[tuple[bytes | None, int, int, str]]:
        """What became dead letters: value, offset, deliveries, reason."""
        return [
            (value, *(int(headers[f"msgtx.dead-letter.{name}"]) for name in ("offset", "deliveries")),
             headers["msgtx.dead-letter.reason"].decode())
            for _, value, _, headers in self.whole_letters
        ]  # fmt: skip

    @property
    def whole_letters(self) -> list[tuple[bytes | None, bytes | None, int, dict[str, bytes]]]:
        """What became dead letters: key, value, timestamp, headers."""
        rows = self.connection.execute(
            "select b.keys[1], b.values[1], b.max_timestamp, b.header_keys, b.header_values from msgtx.record_batch b"
            " join msgtx.partition using (partition_id) join msgtx.topic t using (topic_id)"
            " where t.name = %s order by b.base_offset",
            [f"{self.name}-dead-letters"],
        ).fetchall()
        return [(*row[:3], dict(zip(*row[3:], strict=True))) for row in rows]

    @property
    def spans(self) -> list[tuple[int, int, str, int]]:
        """What is in flight, as it is stored: first and last offset, status, delivery count."""
        return self.connection.execute(
            "select u.first_offset, u.last_offset, u.status, u.delivery_count from ("
            " select s.spans from msgtx.share_state s where s.group_id = %s and s.partition_id = %s"
            " order by s.version desc limit 1) newest cross join lateral unnest(newest.spans) u order by 1",
            [self.group_id, self.partition],
        ).fetchall()

    @property
    def parked(self) -> int:
        """How many rows of records are delayed, or wait for an earlier one with their key, in all partitions."""
        return count(self.connection, "share_parked", "group_id = %s", self.group_id)

    @property
    def waits(self) -> tuple[bool, int]:
        """Whether each poll looks at the clock for what is delayed, and for how many keys it looks."""
        row = self.connection.execute(
            "select next_due is not null, cardinality(waiting_keys) from msgtx.share_state"
            " where group_id = %s and partition_id = %s order by version desc limit 1",
            [self.group_id, self.partition],
        ).fetchone()
        assert row is not None
        return row

    @property
    def versions(self) -> int:
        """How many states were written."""
        row = self.connection.execute(
            "select max(version) from msgtx.share_state where group_id = %s", [self.group_id]
        ).fetchone()
        return row[0] if row else 0

    def expire_locks(self, *members: str, offset: int | None = None) -> None:
        """Let the locks of these members be over; `offset`: only those that begin there."""
        self.connection.execute(
            "update msgtx.share_state s set spans = array(select row(u.first_offset, u.last_offset, u.status,"
            " u.delivery_count, u.member_number, u.call_number, u.locked_until - case when u.member_number = any(%s)"
            " and u.first_offset = coalesce(%s::bigint, u.first_offset)"
            " then interval '1 hour' else interval '0' end, u.producer_id, u.producer_epoch, u.transaction_number,"
            " u.answer, u.reason)::msgtx.share_span from unnest(s.spans) u) where s.group_id = %s",
            [[self.numbers[member] for member in members], offset, self.group_id],
        )
