"""Heartbeats: who lives, who is removed, by whom; the sweeps of members and of their heartbeats (internals: groups)."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from msgtx import errors
from msgtx.coordinator.sweep import sweep
from msgtx.database.pool import Engine
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.groups.members import Beat, heartbeat
from msgtx.store.topics.topics import topics_version
from msgtx.types import OffsetAndMetadata
from tests.databases import Background, Clock, Connection, Sessions, backend, wait_for_lock
from tests.refusals import refuses
from tests.store.roster import Roster
from tests.store.steps import count, new_topic, spoiled, swept_by, unique

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bare")]
AT_ONCE = 10_000  # rows that one call removes at most
TABLES = ("consumer_group", "group_member", "group_assignment", "group_heartbeat")


@pytest.fixture
def group(connection: Connection) -> Roster:
    return Roster(connection)


# ── heartbeats ──


def test_a_heartbeat_tells_the_generation_and_whether_the_assignment_is_stale(group: Roster) -> None:
    group.join("a")
    assert group.beat("a") == Beat(1, stale=True)
    assert group.assign({group.partitions[0]: "a"})
    assert group.beat("a") == Beat(2, stale=False)
    group.join("b")
    assert group.beat("a") == Beat(3, stale=True)


@pytest.mark.parametrize("numbers", [(1, 2, 3), (1, 1, 1), (3, 1, 2), (7,)])
def test_a_heartbeat_may_be_repeated_and_come_late(group: Roster, numbers: tuple[int, ...]) -> None:
    group.join("a")
    for number in numbers:
        group.beat("a", number)
    rows = group.connection.execute("select heartbeat_number from msgtx.group_heartbeat order by 1").fetchall()
    assert [number for (number,) in rows] == sorted({0, *numbers})


def test_a_session_lasts_as_long_as_its_own_timeout(group: Roster, clock: Clock) -> None:
    """To the end, and no longer."""
    start = datetime(2030, 1, 1, tzinfo=UTC)
    clock(start)
    group.join("short", session_timeout_ms=10_000)
    group.join("long", session_timeout_ms=20_000)
    for milliseconds, over in [(10_000, set()), (10_001, {"short"}), (20_000, {"short"}), (20_001, {"short", "long"})]:
        for direction in (1, -1):
            clock(start + direction * timedelta(milliseconds=milliseconds))
            assert {member.member_id for member in group.state.members if member.session_over} == over, milliseconds


def test_a_heartbeat_keeps_the_session_and_brings_it_back_while_nobody_has_removed_it(group: Roster, clock: Clock) -> None:
    group.join("a", session_timeout_ms=10_000)
    for seconds in (9, 18, 27):
        clock(f"{seconds} seconds")
        group.beat("a")
        assert not group.state.members[0].session_over
    clock("40 seconds")
    assert group.state.members[0].session_over
    group.beat("a")
    assert not group.state.members[0].session_over


def test_the_newest_heartbeat_is_the_one_with_the_highest_number(group: Roster) -> None:
    """A clock that was set back: an earlier one is dated in the future, and says nothing."""
    group.join("a", session_timeout_ms=10_000)
    group.join("b")
    group.connection.execute(
        "insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)"
        " select member_number, 1, msgtx.clock() + interval '1 hour' from msgtx.group_member"
    )
    assert {member.session_over for member in group.state.members} == {True}
    group.beat("a", 2)
    with pytest.raises(errors.UnknownMember):
        group.beat("b", 2)  # who is heard first after that finds the others over: their age is not known
    group.join("c")
    group.beat("c")
    assert {member.member_id: member.session_over for member in group.state.members} == {"a": False, "c": False}


def test_a_clock_that_was_set_back_a_little_ends_nothing(group: Roster, clock: Clock) -> None:
    clock("1 minute")
    group.join("a", session_timeout_ms=65_000)
    group.join("b", session_timeout_ms=65_000)
    clock(None)
    group.beat("a")
    assert group.members == ["a", "b"]


def test_an_old_heartbeat_that_comes_late_does_not_prolong_a_session(group: Roster, clock: Clock) -> None:
    group.join("a", session_timeout_ms=10_000)
    group.beat("a", 5)
    clock("11 seconds")
    group.beat("a", 4)
    assert group.state.members[0].session_over


@pytest.mark.parametrize("stranger", ["nobody", "old number", "other id", "other group", "no group", "gone"])
def test_who_is_not_a_member_is_told_so(group: Roster, stranger: str) -> None:
    group.join("a")
    who: dict[str, Any] = {"member_number": group.numbers["a"], "member_id": "a", "group_instance_id": None, "number": 1}
    name = group.name
    match stranger:
        case "nobody":
            who |= {"member_number": 2**40, "member_id": "nobody"}
        case "old number":
            group.leave("a")
            group.join("a")
        case "other id":
            who["member_id"] = "b"
        case "other group":
            other = Roster(group.connection)
            other.join("b")
            name = other.name
        case "no group":
            name = unique("group")
        case "gone":
            group.leave("a")
    before = count(group.connection, "group_heartbeat")
    with refuses(errors.UnknownMember, group=name):
        heartbeat(group.connection, name, **who)
    assert count(group.connection, "group_heartbeat") == before


def test_a_static_member_that_was_replaced_is_fenced(group: Roster) -> None:
    group.join("a", "i")
    group.join("a2", "i")
    with refuses(errors.FencedInstance, member_id="a"):
        group.beat("a")
    group.beat("a2")
    group.leave("a2")
    with pytest.raises(errors.UnknownMember):
        group.beat("a")


def test_two_heartbeats_of_the_same_number_at_once_are_one(
    group: Roster, open_connection: Sessions, background: Background
) -> None:
    group.join("a")
    slow, other = open_connection(), open_connection()
    who = {"member_number": group.numbers["a"], "member_id": "a", "group_instance_id": None, "number": 1}
    with slow.transaction():
        heartbeat(slow, group.name, **who)
        waiting = background.submit(lambda: heartbeat(other, group.name, **who))
        wait_for_lock(group.connection, backend(other))
    assert waiting.result(30) == Beat(1, stale=True)
    assert count(group.connection, "group_heartbeat") == 2


# ── removing whose session is over ──


def test_a_heartbeat_removes_others_whose_session_is_over(group: Roster, clock: Clock) -> None:
    first, second, third, _ = group.partitions
    group.join("dead", session_timeout_ms=10_000)
    group.join("dead, too", session_timeout_ms=10_000)
    group.join("alive")
    assert group.assign({first: "dead", second: "dead", third: "dead, too"})
    assert group.assign({first: "alive", second: "dead, too", third: "alive"})
    clock("11 seconds")
    assert group.beat("alive") == Beat(6, stale=True), "all of them are one change"
    assert group.members == ["alive"]
    assert group.assignment("alive").owned == {first: 6, third: 6}
    assert group.targets == {first: "alive", third: "alive"}
    assert count(group.connection, "group_assignment") == 2
    for dead in ("dead", "dead, too"):
        with pytest.raises(errors.UnknownMember):
            group.beat(dead)
        with pytest.raises(errors.UnknownMember):
            group.commit(dead, second, 1, generation=5)
    group.commit("alive", third, 1)
    assert group.beat("alive") == Beat(6, stale=True)


def test_nobody_removes_itself_nor_members_of_other_groups(group: Roster, clock: Clock) -> None:
    """Also with a number that comes late: who speaks lives."""
    other = Roster(group.connection)
    other.join("a")
    group.join("a", session_timeout_ms=10_000)
    group.beat("a", 5)
    clock("1 hour")
    assert group.beat("a", 4) == Beat(1, stale=True)
    assert (group.members, other.members) == (["a"], ["a"])
    clock(None)
    group.join("dead")
    clock("1 hour")
    assert group.beat("a", 4) == Beat(3, stale=True)
    assert (group.members, other.members) == (["a"], ["a"])


@pytest.mark.parametrize("dead", [0, 1, 21, 44])
def test_in_a_large_group_somebody_watches_each_member(group: Roster, clock: Clock, dead: int) -> None:
    """Each heartbeat looks at a few; together they look at all."""
    names = [f"m{number:02}" for number in range(45)]
    for name in names:
        group.join(name, session_timeout_ms=10_000 if name == names[dead] else 45_000)
    clock("11 seconds")
    watchers = 0
    for name in names:
        if name != names[dead]:
            with group.connection.transaction(force_rollback=True):
                group.beat(name)
                watchers += names[dead] not in group.members
    assert watchers == 20
    group.beat(names[dead - 1])
    assert group.members == [name for name in names if name != names[dead]]


@pytest.mark.parametrize("alive", [0, 22, 44])
def test_the_last_one_alive_removes_all_others_at_once(group: Roster, clock: Clock, alive: int) -> None:
    names = [f"m{number:02}" for number in range(45)]
    for name in names:
        group.join(name, session_timeout_ms=10_000)
    clock("11 seconds")
    assert group.beat(names[alive]) == Beat(46, stale=True)
    assert group.members == [names[alive]]


def test_whoever_cannot_have_the_groups_lock_leaves_it_to_the_next(group: Roster, clock: Clock, session: Connection) -> None:
    """P32: a heartbeat never waits for a lock."""
    group.join("dead", session_timeout_ms=10_000)
    group.join("alive")
    clock("11 seconds")
    with session.transaction():
        session.execute("select pg_advisory_xact_lock_shared(1836279554, hashtext(%s))", [group.name])
        assert group.beat("alive") == Beat(2, stale=True)
        assert group.members == ["dead", "alive"]
    assert group.beat("alive") == Beat(3, stale=True)
    assert group.members == ["alive"]


def test_a_heartbeat_is_not_flushed_and_a_removal_is(group: Roster, clock: Clock, session: Connection) -> None:
    group.join("dead", session_timeout_ms=10_000)
    group.join("alive")
    group.connection = session
    for expected in ("off", "on"):
        with session.transaction():
            group.beat("alive")
            assert session.execute("show synchronous_commit").fetchone() == (expected,)
        clock("11 seconds")


# ── the sweep of members ──


@pytest.mark.parametrize("most", [1, 2, 3, 500])
def test_the_sweep_removes_the_dead_of_all_groups(connection: Connection, clock: Clock, most: int) -> None:
    groups = [Roster(connection, 1) for _ in range(3)]
    for group in groups:
        group.join("dead", session_timeout_ms=10_000)
        group.join("alive")
        group.join("dead, too", session_timeout_ms=10_000)
        assert group.assign({group.partitions[0]: "dead"})
        assert group.assign({group.partitions[0]: "alive"})
    groups[0].leave("alive")
    assert swept_by(connection, "remove_members", most)[-1:] == [0]
    clock("11 seconds")
    assert sum(swept_by(connection, "remove_members", most)) == 6
    assert [group.members for group in groups] == [[], ["alive"], ["alive"]]
    assert [group.generation for group in groups] == [7, 6, 6], "the dead of a group are one change"
    assert [list(group.owners.values()) for group in groups] == [[], ["alive"], ["alive"]]
    assert sum(swept_by(connection, "remove_members", most)) == 0


def test_the_sweep_passes_by_groups_that_are_busy(connection: Connection, clock: Clock, session: Connection) -> None:
    busy, idle = Roster(connection), Roster(connection)
    for group in (busy, idle):
        group.join("dead")
    clock("1 hour")
    with session.transaction():
        session.execute("select pg_advisory_xact_lock_shared(1836279554, hashtext(%s))", [busy.name])
        assert swept_by(connection, "remove_members", 500) == [1]
    assert (busy.members, idle.members) == (["dead"], [])
    assert swept_by(connection, "remove_members", 500) == [1]


def test_one_bad_group_does_not_stop_the_rest(connection: Connection, clock: Clock) -> None:
    """P12."""
    groups = [Roster(connection) for _ in range(5)]
    for group in groups:
        group.join("dead")
    clock("1 hour")
    with spoiled(connection, "group_member", "delete", f"old.member_number = {groups[2].numbers['dead']}"):
        assert swept_by(connection, "remove_members", 500) == [4]
    assert [group.members for group in groups] == [[], [], ["dead"], [], []]
    assert [group.generation for group in groups] == [2, 2, 1, 2, 2]
    assert swept_by(connection, "remove_members", 500) == [1]


def test_a_group_whose_members_all_died_takes_commits_without_a_member_again(connection: Connection, clock: Clock) -> None:
    group = Roster(connection)
    group.join("dead")
    clock("1 hour")
    with pytest.raises(errors.UnknownMember):
        group.commit(None, group.partitions[0], 1)
    assert swept_by(connection, "remove_members", 500) == [1]
    group.commit(None, group.partitions[0], 1)


# ── the sweep of heartbeats ──


def newest(connection: Connection) -> dict[int, list[int]]:
    rows = connection.execute(
        "select member_number, array_agg(heartbeat_number order by heartbeat_number) from msgtx.group_heartbeat group by 1"
    ).fetchall()
    return dict(rows)


@pytest.mark.parametrize("most", [1, 2, 500])
def test_only_the_newest_heartbeat_of_a_member_stays(group: Roster, most: int) -> None:
    for name in ("a", "b", "c"):
        group.join(name)
        for _ in range(4):
            group.beat(name)
    group.join("silent")
    group.join("gone")
    group.beat("gone")
    group.leave("gone")
    assert sum(swept_by(group.connection, "remove_heartbeats", most)) == 14
    expected = {"a": [4], "b": [4], "c": [4], "silent": [0]}
    assert newest(group.connection) == {group.numbers[name]: beats for name, beats in expected.items()}
    assert sum(swept_by(group.connection, "remove_heartbeats", most)) == 0


@pytest.mark.parametrize("gone", [False, True])
def test_more_heartbeats_than_one_call_may_remove_go_in_several(group: Roster, gone: bool) -> None:
    for name in ("a", "b"):
        group.join(name)
        group.connection.execute(
            "insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)"
            " select %s, n, msgtx.clock() from generate_series(1, %s) n",
            [group.numbers[name], 2 * AT_ONCE + 500],
        )
    if gone:
        group.leave("a")
    removed = swept_by(group.connection, "remove_heartbeats", 500)
    assert max(removed) <= AT_ONCE
    assert sum(removed) == 2 * (2 * AT_ONCE + 500) + gone


def test_one_bad_member_does_not_stop_the_rest(group: Roster) -> None:
    """P12."""
    for name in ("a", "b", "c"):
        group.join(name)
        group.beat(name)
    with spoiled(group.connection, "group_heartbeat", "delete", f"old.member_number = {group.numbers['b']}"):
        assert swept_by(group.connection, "remove_heartbeats", 500) == [2]
    assert swept_by(group.connection, "remove_heartbeats", 500) == [1]


def test_heartbeats_that_somebody_holds_are_passed_by(group: Roster, session: Connection) -> None:
    group.join("a")
    for _ in range(2):
        group.beat("a")
    with session.transaction():
        session.execute("select from msgtx.group_heartbeat where heartbeat_number = 0 for update")
        assert swept_by(group.connection, "remove_heartbeats", 500) == [1]
    assert swept_by(group.connection, "remove_heartbeats", 500) == [1]


def test_a_member_that_just_joins_keeps_its_heartbeat(group: Roster, session: Connection) -> None:
    """Member and heartbeat become visible together."""
    with session.transaction():
        Roster.join(_of(group, session), "a")
        assert swept_by(group.connection, "remove_heartbeats", 500) == [0]
    assert swept_by(group.connection, "remove_heartbeats", 500) == [0]
    assert newest(group.connection) == {group.state.members[0].number: [0]}


def _of(group: Roster, session: Connection) -> Roster:
    """The same group, seen from another session."""
    other = Roster(session)
    other.name = group.name
    return other


def test_one_round_of_everything_removes_members_and_then_their_heartbeats(
    group: Roster, engine: Engine, clock: Clock
) -> None:
    group.join("dead")
    group.beat("dead")
    clock("1 hour")
    report = sweep(engine, dry_run=True)
    assert (report.members_removed, report.heartbeats_removed) == (1, 2)
    assert group.members == ["dead"]
    assert sweep(engine) == report
    assert (group.members, count(group.connection, "group_heartbeat")) == ([], 0)


# ── patterns ──


def test_a_member_with_a_pattern_looks_again_whoever_divides(connection: Connection, group: Roster) -> None:
    """Topics of today are another version than those that it has found; the group is settled once it has looked."""
    version = topics_version(connection)
    group.join("by name")
    group.join("by pattern", topics=["x"], pattern="x.*", topics_version=version)
    assert group.assign({})
    assert not group.beat("by pattern").stale
    new_topic(connection)
    assert group.assign({})
    assert not group.beat("by name").stale
    assert group.beat("by pattern").stale
    ((*_, settled, _),) = connection.execute("select * from msgtx.list_groups(%s)", [[group.name]]).fetchall()
    assert not settled
    before = group.generation
    group.join("by pattern", topics=["x"], pattern="x.*", topics_version=topics_version(connection))
    assert not group.beat("by pattern").stale
    assert group.generation == before  # nothing that it found is new


# ── look-ups ──


FULL = (
    "insert into msgtx.consumer_group (name) select 'full ' || n from generate_series(1, 2000) n",
    "insert into msgtx.group_member (group_id, member_id, session_timeout_ms, topics, joined_at)"
    " select g.group_id, 'm' || n, 45000, '{t}', msgtx.clock() from msgtx.consumer_group g, generate_series(1, 5) n",
    "insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)"
    " select m.member_number, n, msgtx.clock() from msgtx.group_member m, generate_series(10, 15) n",
    "insert into msgtx.group_assignment (group_id, partition_id, owner, owner_since, target)"
    " select g.group_id, n, 1, 1, 1 from msgtx.consumer_group g, generate_series(1000000, 1000004) n",
)


@pytest.mark.parametrize("made", ["on empty tables", "on full tables"])
def test_look_ups_read_only_what_they_look_for_also_by_plans_of_empty_tables(
    connection: Connection, session: Connection, made: str
) -> None:
    """A generic plan is kept for the life of a connection."""
    early = Roster(session)
    if made == "on empty tables":
        early.join("a")
        connection.execute("vacuum analyze")  # that they are small is known
        for _ in range(8):  # after five PostgreSQL may keep a plan
            early.assign({early.partitions[0]: "a"})
            early.beat("a")
            early.commit("a", early.partitions[0], 1)
            early.assignment("a")
            early.release("a", *early.partitions)
            early.join("b")
            early.leave("b")
        swept_by(session, "remove_members", 500)
    for statement in FULL:
        connection.execute(statement)
    if made == "on full tables":
        connection.execute("analyze")
    group = Roster(session)
    group.join("a")
    group.join("b", "i")
    assert group.assign(dict.fromkeys(group.partitions, "a"))
    metadata, offsets = group.metadata("a"), dict.fromkeys(group.partitions, OffsetAndMetadata(1))
    # Itself, the other member and the newest heartbeat of that.
    with reading(session) as read:
        for _ in range(20):
            group.beat("a")
            group.beat("b")
    assert read == {"consumer_group": 40, "group_member": 80, "group_assignment": 0, "group_heartbeat": 40}
    # For each offset; the group by the check, and twice by the insert.
    with reading(session) as read:
        for _ in range(20):
            commit_offsets(session, {metadata: offsets})
    assert read == {"consumer_group": 240, "group_member": 80, "group_assignment": 80, "group_heartbeat": 0}
    # What a change of membership reads is of its group.
    with reading(session) as read:
        group.assignment("a")
        assert group.assign(dict.fromkeys(group.partitions, "b"))
        group.release("a", *group.partitions)
        group.join("c")
        group.leave("b")
    assert max(read.values()) <= 200, read
    # Every member, and its newest heartbeat.
    members = count(connection, "group_member")
    with reading(session) as read:
        swept_by(session, "remove_members", 500)
    assert read == {"consumer_group": 0, "group_member": members, "group_assignment": 0, "group_heartbeat": members}


@contextlib.contextmanager
def reading(session: Connection) -> Iterator[dict[str, int]]:
    """Tell the rows that a SQL transaction reads by indexes, and that it reads no table from end to end."""
    read: dict[str, int] = {}
    with session.transaction():  # what it counts is not taken away before it ends
        before = _counted(session)
        yield read
        for table, (scans, rows) in _counted(session).items():
            assert scans == before[table][0], f"all of {table} was read"
            read[table] = rows - before[table][1]


def _counted(session: Connection) -> dict[str, tuple[int, int]]:
    rows = session.execute(
        "select relname, seq_scan, idx_tup_fetch from pg_stat_xact_user_tables where relname = any(%s)", [list(TABLES)]
    ).fetchall()
    return {table: (scans, fetched) for table, scans, fetched in rows}
