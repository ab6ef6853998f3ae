"""Sweeps of what was superseded, while somebody holds a snapshot: what they removed stays in the index (decision 0014)."""

from typing import Final

import pytest

from msgtx.store.groups.groups import commit_offsets, delete_offsets
from msgtx.store.groups.members import leave_group
from msgtx.store.shares.shares import describe_share_groups, join_share_group, tidy
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.databases import Connection
from tests.store.roster import Roster
from tests.store.sharing import ShareGroup, four_records
from tests.store.steps import new_partition, swept_by, unique
from tests.store.test_superseded import membership

pytestmark = pytest.mark.usefixtures("bare")
ROWS: Final = 20_000


def states(connection: Connection) -> str:
    group = ShareGroup(connection, four_records(connection))
    group.acquire("a", 1)
    return (
        "insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)"
        f" select {group.group_id}, {group.partition}, 1 + n, 1, '{{}}' from generate_series(1, {ROWS}) n"
    )


def calls(connection: Connection) -> str:
    group = ShareGroup(connection, four_records(connection))
    return (
        "insert into msgtx.share_call (member_number, call_number)"
        f" select {group.numbers['a']}, 7 * n from generate_series(1, {ROWS}) n"
    )


def heartbeats(connection: Connection) -> str:
    group = Roster(connection)
    group.join("a")
    return (
        "insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)"
        f" select {group.numbers['a']}, n, clock_timestamp() from generate_series(1, {ROWS}) n"
    )


def floors(connection: Connection) -> str:
    partition = new_partition(connection)
    return (
        "insert into msgtx.partition_floor (partition_id, stable_floor)"
        f" select {partition}, 11 * n from generate_series(1, {ROWS}) n"
    )


def offsets(connection: Connection) -> str:
    partition, group = new_partition(connection), unique("group")
    commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(1)}})
    return (
        "insert into msgtx.group_offset (group_id, partition_id, commit_sequence, committed_offset, committed_at)"
        f" select group_id, {partition}, nextval('msgtx.commit_sequence'), n, msgtx.clock()"
        f" from msgtx.consumer_group, generate_series(1, {ROWS}) n where name = '{group}' order by n"
    )


KINDS: Final = {
    "share_state": (states, "remove_superseded_shares"),
    "share_call": (calls, "remove_superseded_shares"),
    "group_heartbeat": (heartbeats, "remove_heartbeats"),
    "partition_floor": (floors, "remove_superseded_floors"),
    "group_offset": (offsets, "remove_superseded_offsets"),
}


def blocks(connection: Connection, statement: str) -> int:
    ((plan,),) = connection.execute(f"explain (analyze, buffers, format json) {statement}").fetchall()
    return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])


def cost(connection: Connection, function: str) -> int:
    """Return how many blocks a pass reads that finds nothing to remove."""
    starts = ("null", "array[2, 9223372036854775807]") if function == "remove_superseded_shares" else ("null",)
    return sum(blocks(connection, f"select msgtx.{function}({start}, 500)") for start in starts)


@pytest.mark.parametrize("table", KINDS)
def test_a_pass_that_removes_nothing_costs_the_same_beside_a_snapshot(
    table: str, connection: Connection, session: Connection
) -> None:
    make, function = KINDS[table]
    filled = make(connection)
    swept_by(connection, function)
    before, measured = cost(connection, function), blocks(connection, "select * from msgtx.measure_shares()")
    with session.transaction():
        session.execute("set transaction isolation level repeatable read")
        session.execute("select 1 from pg_class limit 1")
        connection.execute(filled)
        assert sum(swept_by(connection, function)) >= ROWS - 1
        assert sum(swept_by(connection, function)) == 0
        assert cost(connection, function) <= 3 * before + 12
        assert blocks(connection, "select * from msgtx.measure_shares()") <= measured + 12


@pytest.mark.parametrize("table", KINDS)
def test_what_comes_behind_what_was_swept_is_removed_as_well(table: str, connection: Connection) -> None:
    """Also what comes late, out of its order, as far as that can be."""
    make, function = KINDS[table]
    filled = make(connection)
    connection.execute(filled)
    swept_by(connection, function)
    (left,) = connection.execute(f"select count(*) from msgtx.{table}").fetchone() or (None,)
    number = {"share_state": "version", "share_call": "call_number", "group_heartbeat": "heartbeat_number"}.get(table)
    number = number or {"partition_floor": "stable_floor", "group_offset": "commit_sequence"}[table]
    known = "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped"
    columns = [name for (name,) in connection.execute(known, [f"msgtx.{table}"])]
    steps = (1, -5) if table in ("group_heartbeat", "group_offset") else (1, 2)
    for step in steps:
        values = ", ".join(f"{name} + {step}" if name == number else name for name in columns)
        newest = f"(select max({number}) from msgtx.{table})"
        connection.execute(
            f"insert into msgtx.{table} ({', '.join(columns)}) overriding system value"
            f" select {values} from msgtx.{table} where {number} = {newest}"
        )
        assert sum(swept_by(connection, function)) == 1
    assert connection.execute(f"select count(*) from msgtx.{table}").fetchone() == (left,)


def test_what_was_noted_of_what_is_gone_goes_with_it(connection: Connection) -> None:
    name, partition = unique("share"), new_partition(connection)
    joined = join_share_group(
        connection, name, member_id="a", client_host=None, client_process=None, session_timeout_ms=45_000, topics=[]
    )
    for call in (1, 2, 3):
        connection.execute("insert into msgtx.share_call values (%s, %s)", [joined.number, call])
        connection.execute(
            "insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)"
            " values (%s, %s, %s, 1, '{}')",
            [joined.group_id, partition, call],
        )
    tidy(connection, membership(connection, name, joined.number))
    swept_by(connection, "remove_heartbeats")
    noted = (
        "select kind from msgtx.swept where kind = 'state' and key_1 = %s or kind in ('call', 'heartbeat') and key_1 = %s"
    )
    ids = [joined.group_id, joined.number]
    assert {kind for (kind,) in connection.execute(noted, ids)} >= {"call", "state"}
    leave_group(connection, name, "a")
    connection.execute("select msgtx.delete_group(%s)", [name])
    swept_by(connection, "remove_superseded_shares")
    swept_by(connection, "remove_heartbeats")
    assert connection.execute(noted, ids).fetchall() == []


def test_what_was_noted_of_offsets_that_were_deleted_is_forgotten(connection: Connection) -> None:
    """Else each round would visit their key for ever."""
    group, partition = unique("group"), new_partition(connection)
    commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(1)}})
    (group_id,) = connection.execute("select group_id from msgtx.consumer_group where name = %s", [group]).fetchone() or (0,)
    connection.execute("insert into msgtx.swept values ('offset', %s, %s, 1)", [group_id, partition])
    noted = "select kind from msgtx.swept where kind = 'offset' and key_1 = %s"
    assert len(connection.execute(noted, [group_id]).fetchall()) == 1
    delete_offsets(connection, group, [partition])
    swept_by(connection, "remove_superseded_offsets")
    assert connection.execute(noted, [group_id]).fetchall() == []


def test_what_is_parked_of_removed_records_goes_also_without_members(connection: Connection) -> None:
    group = ShareGroup(connection, four_records(connection))
    group.acquire("a")
    group.answer("a", {0: "release", 1: "release", 2: "release"}, delay=3_600_000)
    swept_by(connection, "remove_superseded_shares")
    connection.execute("select msgtx.delete_records(array[%s], array[2::bigint])", [group.partition])
    swept_by(connection, "remove_superseded_shares")
    left = connection.execute("select first_offset from msgtx.share_parked where group_id = %s", [group.group_id]).fetchall()
    assert left == [(2,)]
    assert describe_share_groups(connection, [group.name])[0].parked == 1
