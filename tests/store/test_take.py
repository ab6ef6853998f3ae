"""`msgtx.take`: a consumer group whose member is a SQL transaction (I5, I10, I11)."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import msgtx
from msgtx import errors
from msgtx.database.calls import query
from msgtx.store.append.append import append
from msgtx.store.groups.groups import delete_group, reset_offsets
from msgtx.store.monitoring import measure_lags
from msgtx.store.topics.retention import delete_records
from msgtx.store.transactions.seal import seal
from tests.databases import Clock, Connection, Server, Sessions, backend, wait_until
from tests.refusals import refuses
from tests.roles import consumer_and_others
from tests.store.conftest import Blocked
from tests.store.roster import Roster, join
from tests.store.sharing import ShareGroup
from tests.store.steps import Writer, batch, committed_at, named_topic, offsets_of, plain, unique
from tests.store.test_compaction import compact, compacted_topic

pytestmark = pytest.mark.slow

Taken = list[tuple[int, int, bytes | None]]


class Taking:
    """A topic, and a group that takes from it with SQL."""

    def __init__(self, connection: Connection, partitions: int = 1) -> None:
        self.connection = connection
        self.topic, self.partitions = named_topic(connection, partitions, retention_ms=-1)
        self.group = unique("takers")

    def fill(self, *values: bytes, at: int = 0) -> None:
        """Append each value as a batch of its own."""
        for value in values:
            plain(self.connection, self.partitions[at], value)

    def take(self, session: Connection | None = None, **named: Any) -> Taken:
        """Take, and return partition, offset and value of each record."""
        arguments = "".join(f", {name} => %s" for name in named)
        return query(
            session or self.connection,
            f'select partition, "offset", value from msgtx.take(%s, %s{arguments})',
            self.topic,
            self.group,
            *named.values(),
        )

    def values(self, session: Connection | None = None, **named: Any) -> list[bytes | None]:
        """Take, and return the values."""
        return [value for _, _, value in self.take(session, **named)]

    def at(self, place: int = 0) -> int | None:
        """Return the group's offset of a partition."""
        return committed_at(self.connection, self.group, self.partitions[place])[0]


@pytest.fixture
def taking(connection: Connection) -> Taking:
    return Taking(connection)


# ── what is returned ──


def test_a_record_is_taken_as_it_was_published(connection: Connection, taking: Taking) -> None:
    query(
        connection,
        "select msgtx.publish(%s, value => %s, key => 'ключ', headers => %s, \"timestamp\" => '2024-05-06 07:08:09.123+00')",
        taking.topic,
        '{"id": 1}',
        '{"a": "é", "b": null}',
    )
    query(connection, "select msgtx.publish(%s, value_bytes => %s)", taking.topic, b"\x00\xff")
    query(connection, "select msgtx.publish(%s, key => 'gone')", taking.topic)
    rows = query(
        connection,
        'select topic, partition, "offset", extract(epoch from "timestamp")::text, msgtx.value_text(key),'
        " msgtx.value_json(value)::text, msgtx.value_text(value), value, headers::text from msgtx.take(%s, %s)",
        taking.topic,
        taking.group,
    )
    assert rows[0][:7] == (taking.topic, 0, 0, "1714979289.123000", "ключ", '{"id": 1}', '{"id": 1}')
    assert json.loads(rows[0][8]) == {"a": "é", "b": None}
    assert [row[4:] for row in rows[1:]] == [(None, None, None, b"\x00\xff", None), ("gone", None, None, None, None)]


def test_records_of_one_batch_keep_their_own_columns(connection: Connection, taking: Taking) -> None:
    """Also if a call begins in the middle of a batch."""
    headers = [[(f"h{i}", b"%d" % i)] * (i % 3) for i in range(10)]
    row = batch(
        taking.partitions[0],
        *[b"%d" % i for i in range(10)],
        keys=[b"k%d" % i for i in range(10)],
        timestamps=[1_000 * i for i in range(10)],
        headers=headers,
    )
    append(connection, [row])
    found = []
    for most in (1, 3, 4, 100):
        found += query(
            connection,
            'select "offset", key, value, extract(epoch from "timestamp")::int, headers::text'
            " from msgtx.take(%s, %s, max_records => %s)",
            taking.topic,
            taking.group,
            most,
        )
    assert [row[:4] for row in found] == [(i, b"k%d" % i, b"%d" % i, i) for i in range(10)]
    assert [json.loads(row[4] or "null") for row in found] == [{f"h{i}": str(i)} if i % 3 else None for i in range(10)]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({}, [b"aaaa", b"bb", b"c", b"d"]),
        ({"max_records": 2}, [b"aaaa", b"bb"]),
        ({"max_bytes": 6}, [b"aaaa", b"bb"]),
        ({"max_bytes": 5}, [b"aaaa"]),
        ({"max_bytes": 1}, [b"aaaa"]),
    ],
    ids=str,
)
def test_a_call_has_limits_in_records_and_bytes(taking: Taking, named: dict[str, int], expected: list[bytes]) -> None:
    """The first record comes however large it is, lest the group stands still."""
    plain(taking.connection, taking.partitions[0], b"aaaa", b"bb", b"c", b"d")
    assert taking.values(**named) == expected
    rest = []
    while more := taking.values(**named):
        rest += more
    assert expected + rest == [b"aaaa", b"bb", b"c", b"d"]


def test_bytes_are_those_of_the_records_of_all_partitions(connection: Connection) -> None:
    """Only the bytes of the records that are taken count, not those of the others in their rows of the log."""
    taking = Taking(connection, 2)
    sent = [[b"%d" % at * size for size in (900, *[10] * 20, 300)] for at in range(2)]
    for partition, values in zip(taking.partitions, sent, strict=True):
        plain(connection, partition, *values)
    calls = [taking.take(max_bytes=1000) for _ in range(6)]
    assert [[len(value or b"") for _, _, value in call] for call in calls] == [
        [900, *[10] * 10],
        [900, *[10] * 10],
        [*[10] * 10, 300, *[10] * 10, 300],
        [],
        [],
        [],
    ]
    assert [[value for call in calls for place, _, value in call if place == at] for at in range(2)] == sent


def test_bytes_are_those_of_keys_and_values_alone(connection: Connection) -> None:
    taking = Taking(connection, 16)
    for partition in taking.partitions:
        plain(connection, partition, *[b"a"] * 50)
    assert len(taking.take(max_bytes=800, max_records=1000)) == 800


@pytest.mark.usefixtures("bare")
def test_a_call_passes_the_gap_behind_the_records_that_fit(connection: Connection, taking: Taking) -> None:
    """Else the next one finds nothing, and a reader stops that reads until there is nothing."""
    partition = compacted_topic(connection)
    plain(connection, partition, b"x" * 2000, b"y", keys=[b"a", b"b"])
    for key in (b"b", b"c", b"d"):
        plain(connection, partition, b"z", keys=[key])
    assert compact(connection) == 1
    ((taking.topic,),) = query(
        connection,
        "select t.name from msgtx.topic t join msgtx.partition p on p.topic_id = t.topic_id where p.partition_id = %s",
        partition,
    )
    calls = [[offset for _, offset, _ in taking.take(max_bytes=1000)] for _ in range(3)]
    assert calls == [[0], [2, 3, 4], []]


def test_what_is_not_committed_is_not_taken(connection: Connection, taking: Taking) -> None:
    """I5: in order, aborted records are passed by, and nothing behind an open transaction comes."""
    writer, open_one = Writer(connection), Writer(connection)
    writer.send_and_abort(taking.partitions[0], b"aborted")
    writer.send_and_commit(taking.partitions[0], b"a")
    open_one.send(taking.partitions[0], b"b")
    taking.fill(b"c")
    assert taking.values() == [b"a"]
    assert taking.values() == []
    open_one.commit()
    assert taking.values() == [b"b", b"c"]


@pytest.mark.usefixtures("bare")
def test_a_compacted_topic_is_taken_with_its_gaps(connection: Connection, taking: Taking) -> None:
    """Also if a position, or the end of a call, is at an offset whose record is gone."""
    partition = compacted_topic(connection, "a1 b2 c3 d4", "b5 a6", "e7")
    ((taking.topic,),) = query(
        connection,
        "select t.name from msgtx.topic t join msgtx.partition p on p.topic_id = t.topic_id where p.partition_id = %s",
        partition,
    )
    assert taking.values(max_records=1) == [b"1"]
    assert compact(connection) == 2
    found = []
    while step := taking.take(max_records=2):
        found += [(offset, value) for _, offset, value in step]
    assert found == [(2, b"3"), (3, b"4"), (4, b"5"), (5, b"6"), (6, b"7")]
    assert committed_at(connection, taking.group, partition)[0] == 7


def test_a_group_passes_any_number_of_aborted_records(connection: Connection, taking: Taking) -> None:
    writer = Writer(connection)
    for i in range(40):
        writer.send_and_abort(taking.partitions[0], b"%d" % i)
    taking.fill(b"a")
    assert taking.values(max_records=1) == [b"a"]
    writer.send_and_abort(taking.partitions[0], b"later")
    assert taking.values() == []
    assert taking.at() == 42


# ── the COMMIT ──


def test_offsets_move_with_the_commit_alone(connection: Connection, taking: Taking, session: Connection) -> None:
    """I10: a rollback hands the records out again, also one to a savepoint."""
    taking.fill(b"a", b"b", b"c")
    with session.transaction(force_rollback=True):
        assert taking.values(session) == [b"a", b"b", b"c"]
        assert taking.at() is None
    with session.transaction():
        assert taking.values(session, max_records=1) == [b"a"]
        with session.transaction(force_rollback=True):
            assert taking.values(session, max_records=1) == [b"b"]
        assert taking.values(session, max_records=1) == [b"b"]  # goes on behind the first call
    assert taking.at() == 2
    assert taking.values() == [b"c"]


def test_a_session_that_is_killed_loses_nothing(connection: Connection, taking: Taking, session: Connection) -> None:
    taking.fill(b"a")
    session.execute("begin")
    assert taking.values(session) == [b"a"]
    (pid,) = session.execute("select pg_backend_pid()").fetchone() or (0,)
    query(connection, "select pg_terminate_backend(%s::int, 30000)", pid)
    assert taking.values() == [b"a"]


ENDS: dict[str, tuple[str, ...]] = {
    "a statement that fails": ("select 1 / 0", "commit"),
    "a statement that takes too long": ("set local statement_timeout = '10ms'", "select pg_sleep(60)", "commit"),
    "a session that idles": ("set local idle_in_transaction_session_timeout = '10ms'", "select 1", "commit"),
    "a savepoint": ("rollback to before", "commit"),
}


@pytest.mark.parametrize("end", ENDS)
def test_records_are_handed_out_again_after(
    connection: Connection, taking: Taking, open_connection: Sessions, end: str
) -> None:
    """And the partition is free: its lock ends with the part of the transaction that took."""
    taking.fill(b"a", b"b")
    session = open_connection()
    pid = backend(session)
    session.execute("begin")
    session.execute("savepoint before")
    assert taking.values(session, max_records=1) == [b"a"]
    for statement in ENDS[end]:
        with contextlib.suppress(psycopg.Error):
            session.execute(statement)
            if "idle" in statement:
                wait_until(lambda: not query(connection, "select pid from pg_stat_activity where pid = %s::int", pid))
    assert taking.values() == [b"a", b"b"]


def test_groups_take_side_by_side_in_one_transaction(connection: Connection, taking: Taking) -> None:
    taking.fill(b"a")
    other = Taking(connection)
    other.topic = taking.topic
    with connection.transaction():
        assert [each.values() for each in (taking, other, taking)] == [[b"a"], [b"a"], []]


def test_callers_take_from_different_partitions_side_by_side(
    connection: Connection, session: Connection, open_connection: Sessions
) -> None:
    """The largest lag first; one that finds all partitions taken gets nothing, and does not wait."""
    taking = Taking(connection, 2)
    taking.fill(b"a")
    taking.fill(b"b", b"c", at=1)
    taking.values(max_records=3)  # the group is there
    taking.fill(b"d")
    taking.fill(b"e", b"f", at=1)
    third = open_connection()
    with session.transaction():
        assert taking.values(session, max_records=2) == [b"e", b"f"]
        with third.transaction(force_rollback=True):
            assert taking.values(third) == [b"d"]
            assert taking.values() == []
        assert taking.values() == [b"d"]
    assert (taking.at(0), taking.at(1)) == (2, 4)


def test_a_call_goes_on_with_the_next_partition(connection: Connection) -> None:
    taking = Taking(connection, 3)
    for at in range(3):
        taking.fill(*[b"%d" % at] * (at + 1), at=at)
    assert [partition for partition, _, _ in taking.take(max_records=4)] == [2, 2, 2, 1]
    assert sorted(partition for partition, _, _ in taking.take()) == [0, 1]


def test_of_many_partitions_the_few_that_have_records_are_found(connection: Connection) -> None:
    """Some neighbours are looked at first, which are others in each call."""
    taking = Taking(connection, 40)
    for at in (0, 17, 39):
        taking.fill(b"a", b"b", at=at)
        assert [taking.take(max_records=1) for _ in range(2)] == [[(at, 0, b"a")], [(at, 1, b"b")]]
    assert taking.take() == []


def test_of_many_partitions_none_waits_for_the_others_to_be_empty(connection: Connection) -> None:
    taking = Taking(connection, 40)
    for partition in taking.partitions:
        plain(connection, partition, *[b"a"] * 500)
    met: set[int] = set()
    calls = 0
    while len(met) < 40 and (calls := calls + 1) < 1_000:
        met.update(partition for partition, _, _ in taking.take(max_records=1))
    assert met == set(range(40))


def test_two_first_callers_of_a_group_do_not_wait_for_each_other(
    connection: Connection, taking: Taking, session: Connection
) -> None:
    """The one that makes the group has it alone, to the end of its SQL transaction."""
    taking.fill(b"a")
    with session.transaction(force_rollback=True):
        assert taking.values(session) == [b"a"]
        assert taking.values() == []
    assert taking.values() == [b"a"]


# ── members of the other kind ──


def test_a_group_with_living_members_is_refused(connection: Connection) -> None:
    taking, roster = Taking(connection), Roster(connection, 1)
    taking.group = roster.name
    taking.fill(b"a")
    roster.join("a")
    with refuses(errors.GroupNotEmpty, group=roster.name):
        taking.take()
    roster.leave("a")
    assert taking.values() == [b"a"]


def test_a_member_whose_session_is_over_is_removed(connection: Connection, clock: Clock) -> None:
    """Else it could come back to life, and commit for a partition that a SQL transaction has (I11)."""
    taking, roster = Taking(connection), Roster(connection, 1)
    taking.group = roster.name
    taking.fill(b"a")
    roster.join("a")
    clock("1 hour")
    assert taking.values() == [b"a"]
    assert roster.state.members == []


def test_a_member_that_joins_waits_for_a_sql_transaction_that_takes(
    connection: Connection, taking: Taking, session: Connection, blocked: Blocked
) -> None:
    """And nobody takes meanwhile: it is not kept out for long."""
    taking.fill(b"a", b"b")
    taking.values(max_records=1)
    with session.transaction():
        assert taking.values(session) == [b"b"]
        joining = blocked(join, taking.group, "a")
        taking.fill(b"c")
        assert taking.values() == []
    joining.result(30)
    with refuses(errors.GroupNotEmpty, group=taking.group):
        taking.take()
    assert taking.at() == 2


CHANGES: dict[str, Callable[[Connection, Taking], object]] = {
    "reset": lambda connection, taking: reset_offsets(connection, taking.group, {taking.partitions[0]: 0}),
    "delete": lambda connection, taking: delete_group(connection, taking.group),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_group_waits_for_a_sql_transaction_that_takes(
    taking: Taking, session: Connection, blocked: Blocked, change: str
) -> None:
    """Else a COMMIT would take the reset back."""
    taking.fill(b"a", b"b")
    taking.values(max_records=1)
    with session.transaction():
        assert taking.values(session) == [b"b"]
        changing = blocked(CHANGES[change], taking)
    changing.result(30)
    assert taking.values() == [b"a", b"b"]


def test_a_share_group_is_refused(connection: Connection, taking: Taking) -> None:
    group = ShareGroup(connection, taking.partitions[0])
    taking.group = group.name
    with refuses(errors.ConfigError, group=group.name, reason="share group"):
        taking.take()


# ── where it begins and goes on ──


def test_latest_begins_at_the_ends_and_reads_later_partitions_from_their_beginning(
    client: msgtx.Client, connection: Connection
) -> None:
    taking = Taking(connection, 2)
    taking.fill(b"early")
    assert taking.values(auto_offset_reset="latest") == []
    assert (taking.at(0), taking.at(1)) == (1, 0)
    client.topics.alter(taking.topic, partitions=3)
    query(connection, "select msgtx.publish(%s, value => 'new', partition => 2)", taking.topic)
    taking.fill(b"late")
    assert sorted(taking.values(auto_offset_reset="latest")) == [b"late", b"new"]


def test_latest_begins_in_all_partitions_at_once(connection: Connection, session: Connection) -> None:
    taking = Taking(connection, 2)
    with session.transaction():
        assert taking.values(session, auto_offset_reset="latest") == []
        taking.fill(b"a", at=1)
        assert taking.values(auto_offset_reset="latest") == []
    assert taking.values(auto_offset_reset="latest") == [b"a"]


def test_none_is_a_refusal(taking: Taking) -> None:
    taking.fill(b"a")
    with refuses(errors.NoOffset, topic=taking.topic, group=taking.group):
        taking.take(auto_offset_reset="none")


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [b"c", b"d"]), ("latest", [])])
def test_an_offset_that_the_log_does_not_hold_is_reset(
    connection: Connection, taking: Taking, reset: str, expected: list[bytes]
) -> None:
    """Retention was faster; or the offset was set behind the end."""
    taking.fill(b"a", b"b", b"c", b"d")
    assert taking.values(max_records=1) == [b"a"]
    delete_records(connection, {taking.partitions[0]: 2})
    with refuses(errors.OffsetOutOfRange, topic=taking.topic, partition=0, offset=1, group=taking.group):
        taking.take(auto_offset_reset="none")
    assert taking.values(auto_offset_reset=reset) == expected
    assert taking.at() == 4
    reset_offsets(connection, taking.group, {taking.partitions[0]: 9})
    assert taking.values(auto_offset_reset=reset) == expected
    assert taking.at() == 4


def test_offsets_of_a_sealed_transaction_block_their_partition_alone(connection: Connection) -> None:
    """They may still count: what is behind the older offset is perhaps done."""
    taking, writer = Taking(connection, 2), Writer(connection)
    taking.fill(b"a", b"b")
    taking.fill(b"c", at=1)
    assert len(taking.values()) == 3
    reset_offsets(connection, taking.group, dict.fromkeys(taking.partitions, 0))
    writer.send(taking.partitions[0], b"out")
    assert seal(
        connection, writer.name, "external", tails=writer.tails, offsets=offsets_of((taking.group, taking.partitions[0], 1))
    )
    assert taking.values() == [b"c"]
    writer.abort()
    assert taking.values() == [b"a", b"b"]


def test_an_overdue_transaction_is_aborted_by_a_call_that_finds_nothing(
    connection: Connection, taking: Taking, clock: Clock
) -> None:
    """I12."""
    writer = Writer(connection, timeout_ms=1_000)
    writer.send(taking.partitions[0], b"open")
    taking.fill(b"a")
    assert taking.values() == []
    clock("1 minute")
    assert taking.values() == []
    assert taking.values() == [b"a"]


def test_an_offset_is_kept_as_long_as_somebody_takes(connection: Connection, taking: Taking, clock: Clock) -> None:
    """Without members, retention would forget it while the topic is idle, and all records came again."""
    taking.fill(b"a")
    assert taking.values() == [b"a"]
    before = query(connection, "select max(committed_at) from msgtx.group_offset")
    assert taking.values() == []
    assert query(connection, "select max(committed_at) from msgtx.group_offset") == before
    clock("4 days")
    assert taking.values() == []
    assert query(connection, "select max(committed_at) from msgtx.group_offset") > before
    assert taking.at() == 1


# ── refusals, rights, monitoring ──


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ({"max_records": 0}, "max_records"),
        ({"max_records": 10_001}, "max_records"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"max_bytes": 67_108_865}, "max_bytes"),
        ({"auto_offset_reset": "smallest"}, "auto_offset_reset"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused(taking: Taking, named: dict[str, Any], name: str) -> None:
    with refuses(errors.InvalidRequest, name=name):
        taking.take(**named)


def test_a_missing_topic_or_name_is_refused(connection: Connection, taking: Taking) -> None:
    taking.group = ""
    with refuses(errors.InvalidRequest, name="group_name"):
        taking.take()
    taking.topic, taking.group = "nowhere", "group"
    with refuses(errors.UnknownTopicOrPartition, topic="nowhere"):
        taking.take()


def test_a_read_only_transaction_is_refused(taking: Taking, session: Connection) -> None:
    """So is a standby, where each is."""
    session.execute("begin read only")
    with pytest.raises(Exception, match=r"msgtx\.read reads without a group"):
        taking.take(session)


def test_lag_is_that_of_any_group(connection: Connection, taking: Taking) -> None:
    taking.fill(b"a", b"b", b"c")
    taking.values(max_records=1)
    lags = {lag.group_name: lag.records for lag in measure_lags(connection, most=10_000) if lag is not None}
    assert lags[taking.group] == 2


def test_a_role_takes_what_it_may_consume_for_groups_that_it_may_use(
    server: Server, database_url: str, connection: Connection, taking: Taking
) -> None:
    taking.fill(b"a")
    with consumer_and_others(server, database_url, taking.topic, taking.group) as (mine, others):
        for other in others:
            with refuses(errors.AuthorizationFailed):
                taking.take(other)
        assert taking.values(mine) == [b"a"]
