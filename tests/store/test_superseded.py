"""Superseded offsets and floors: only what no client will ask for again is removed (P43)."""

from collections.abc import Callable
from typing import Any

import pytest

from msgtx.coordinator.sweep import sweep
from msgtx.database.calls import query
from msgtx.database.pool import Engine
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.groups.members import join_group, leave_group
from msgtx.store.shares.shares import ShareMembership, join_share_group, tidy
from msgtx.store.sweeps import sweeps
from msgtx.store.topics.retention import delete_records
from msgtx.store.transactions.transactions import mark
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.databases import Clock, Connection
from tests.store.steps import (
    Writer,
    committed_at,
    count,
    decide_by_hand,
    delete_topic_of,
    ends,
    new_partition,
    new_topic,
    offsets_of,
    plain_batches,
    seal,
    spent,
    spoiled,
    swept_by,
    values,
)

pytestmark = pytest.mark.usefixtures("bare")
AT_ONCE = 10_000  # rows that one call removes at most


def remove_offsets(connection: Connection, most: int = 500) -> list[int]:
    return swept_by(connection, "remove_superseded_offsets", most)


def remove_floors(connection: Connection, most: int = 500) -> list[int]:
    return swept_by(connection, "remove_superseded_floors", most)


def commit(connection: Connection, group: str, partition: int, *offsets: int) -> None:
    for offset in offsets:
        commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(offset)}})


def fill(connection: Connection, partition: int, rows: int, group: str = "group") -> None:
    """Commit an offset `count` times, in one statement."""
    connection.execute("insert into msgtx.consumer_group (name) values (%s) on conflict do nothing", [group])
    connection.execute(
        "insert into msgtx.group_offset (group_id, partition_id, commit_sequence, committed_offset, committed_at)"
        " select g.group_id, %s, nextval('msgtx.commit_sequence'), n, msgtx.clock()"
        " from msgtx.consumer_group g, generate_series(1, %s) n where g.name = %s order by n",
        [partition, rows, group],
    )


# ── offsets ──


def test_only_the_newest_commit_of_a_group_and_partition_stays(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    for group in ("a", "b"):
        for partition in (first, second):
            commit(connection, group, partition, 5, 9, 3)
    assert remove_offsets(connection) == [8]
    assert {committed_at(connection, group, at) for group in ("a", "b") for at in (first, second)} == {(3, False)}
    assert count(connection, "group_offset") == 4
    assert remove_offsets(connection) == [0]


def test_a_pending_one_supersedes_nothing(connection: Connection, partition: int, writer: Writer) -> None:
    """P43: it may be aborted, and the committed one is asked for again."""
    commit(connection, "group", partition, 1, 2)
    seal(connection, writer.name, "external", offset=("group", partition, 3))
    assert remove_offsets(connection) == [1]
    assert committed_at(connection, "group", partition) == (2, True)
    decide_by_hand(connection, writer.name, "ABORT")
    assert remove_offsets(connection) == [0]
    assert committed_at(connection, "group", partition) == (2, False)


RETENTION_DAYS = 7


def days(number: float) -> str:
    return f"{number} days"


def test_the_last_offset_of_a_group_without_members_expires(connection: Connection, clock: Clock) -> None:
    """internals: coordinator#the-sweeps: since its last commit there."""
    first, second = new_topic(connection, 2)
    clock(days(0))
    commit(connection, "group", first, 1, 2)
    clock(days(RETENTION_DAYS - 1))
    commit(connection, "group", second, 3)
    assert remove_offsets(connection) == [1]
    clock(days(RETENTION_DAYS + 0.01))
    assert remove_offsets(connection) == [1]
    assert [committed_at(connection, "group", at) for at in (first, second)] == [(None, False), (3, False)]
    clock(days(2 * RETENTION_DAYS))
    assert remove_offsets(connection) == [1]
    assert count(connection, "consumer_group") == 1, "its generation stays (P16)"


def test_offsets_of_a_group_with_members_do_not_expire_and_then_count_from_the_last_leave(
    connection: Connection, partition: int, clock: Clock
) -> None:
    clock(days(0))
    commit(connection, "group", partition, 1)
    member = {"group_instance_id": None, "client_host": None, "client_process": None, "strategy": "range", "topics": ["t"]}
    for group in ("group", "another"):
        join_group(connection, group, member_id="m", session_timeout_ms=60_000, pattern=None, **member)  # type: ignore[arg-type]
    connection.execute("update msgtx.group_member set session_timeout_ms = 2147483647")  # longer than a join may ask for
    clock(days(RETENTION_DAYS + 1))
    assert remove_offsets(connection) == [0]
    assert leave_group(connection, "group", "m")
    clock(days(2 * RETENTION_DAYS))
    assert remove_offsets(connection) == [0]
    clock(days(2 * RETENTION_DAYS + 1.01))
    assert remove_offsets(connection) == [1]


def test_what_is_pending_elsewhere_or_is_no_more_does_not_keep_an_offset_from_expiring(
    connection: Connection, clock: Clock
) -> None:
    """Of another group there, of this group elsewhere, below the offset that counts, or aborted and not yet swept."""
    first, second = new_topic(connection, 2)
    clock(days(0))
    seal(connection, Writer(connection).name, "external", offset=("group", first, 1))
    for group, partition in (("group", first), ("group", second), ("another", first)):
        commit(connection, group, partition, 2)
    for group, partition in (("group", second), ("another", first)):
        seal(connection, Writer(connection).name, "external", offset=(group, partition, 3))
    aborted = Writer(connection)
    seal(connection, aborted.name, "external", offset=("group", first, 4))
    aborted.decide("ABORT")
    clock(days(RETENTION_DAYS + 1))
    remove_offsets(connection)
    assert committed_at(connection, "group", first) == (None, False)
    assert [committed_at(connection, *key) for key in (("group", second), ("another", first))] == [(2, True)] * 2


def test_an_offset_that_waits_for_a_namesake_of_decided_ones_is_pending(connection: Connection, clock: Clock) -> None:
    """What has two parts of its transaction's name is decided."""
    partition, first, waiting = new_partition(connection), Writer(connection), Writer(connection)
    clock(days(0))
    commit(connection, "group", partition, 1)
    for writer, numbers in ((first, (2, 2)), (waiting, (2, 1))):
        for number in numbers:
            for _ in range(number):
                writer.commit_whole(writer.row(partition, b"a"))
            if writer.id.epoch == 0:
                writer.init()
    seal(connection, waiting.name, "external", offset=("group", partition, 2))
    clock(days(RETENTION_DAYS + 1))
    assert remove_offsets(connection) == [0]
    assert committed_at(connection, "group", partition) == (1, True)


def test_an_offset_expires_by_the_date_of_its_own_decision(connection: Connection, clock: Clock) -> None:
    """Not by that of another producer, number or epoch."""
    partition, other, writer = new_partition(connection), Writer(connection), Writer(connection)
    clock(days(0))
    writer.commit_whole(writer.row(partition, b"a"), offsets=offsets_of(("group", partition, 1)))
    clock(days(RETENTION_DAYS))
    other.commit_whole(other.row(partition, b"a"))
    writer.commit_whole(writer.row(partition, b"a"))
    writer.init()
    writer.commit_whole(writer.row(partition, b"a"))
    clock(days(RETENTION_DAYS + 1))
    assert remove_offsets(connection) == [1]


def test_an_offset_does_not_expire_beside_a_pending_one(connection: Connection, clock: Clock) -> None:
    """internals: groups#committing-offsets: it may be the one that counts again."""
    partition, writer = new_partition(connection), Writer(connection)
    clock(days(0))
    commit(connection, "group", partition, 1)
    seal(connection, writer.name, "external", offset=("group", partition, 2))
    clock(days(RETENTION_DAYS + 1))
    assert remove_offsets(connection) == [0]
    assert committed_at(connection, "group", partition) == (1, True)


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_a_sealed_one_counts_when_it_is_decided_commit(connection: Connection, outcome: str) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    commit(connection, "group", partition, 1)
    seal(connection, writer.name, "external", offset=("group", partition, 2))
    decide_by_hand(connection, writer.name, outcome)
    assert remove_offsets(connection) == [int(outcome == "COMMIT")]
    assert committed_at(connection, "group", partition) == (2 if outcome == "COMMIT" else 1, False)


def test_a_pending_one_below_one_that_counts_goes(connection: Connection, partition: int, writer: Writer) -> None:
    """The newest commit wins whatever becomes of it."""
    seal(connection, writer.name, "external", offset=("group", partition, 3))
    commit(connection, "group", partition, 1)
    before = committed_at(connection, "group", partition)
    assert remove_offsets(connection) == [1]
    assert committed_at(connection, "group", partition) == before == (1, False)


@pytest.mark.parametrize("kind", ["in steps", "whole", "sealed"])
def test_a_commit_counts_also_when_its_history_is_gone(
    connection: Connection, clock: Clock, settings: Callable[..., None], kind: str
) -> None:
    settings(offsets_retention_ms=30 * 86_400_000)
    partition, writer = new_partition(connection), Writer(connection)
    commit(connection, "group", partition, 1, 2)
    match kind:
        case "in steps":
            writer.send(partition, b"a")
            writer.commit(offsets_of(("group", partition, 3)))
        case "whole":
            writer.commit_whole(writer.row(partition, b"a"), offsets=offsets_of(("group", partition, 3)))
        case "sealed":
            seal(connection, writer.name, "external", offset=("group", partition, 3))
            decide_by_hand(connection, writer.name, "COMMIT")
            writer.next()
    writer.commit_whole(writer.row(partition, b"newest"))
    mark(connection, everything=True)
    clock("8 days")
    assert sweeps.purge_transactions(connection, None, None).done == {"transactions_purged": 1}
    assert committed_at(connection, "group", partition) == (3, False)
    assert remove_offsets(connection) == [2]
    assert committed_at(connection, "group", partition) == (3, False)


def test_a_key_without_anything_that_counts_keeps_all(connection: Connection, partition: int) -> None:
    for offset in (1, 2):
        seal(connection, Writer(connection).name, "external", offset=("group", partition, offset))
    assert remove_offsets(connection) == [0]
    assert count(connection, "group_offset") == 2


@pytest.mark.parametrize("most", [1, 2, 5, 500])
def test_a_pass_over_keys_goes_on_where_it_came_to(connection: Connection, most: int) -> None:
    partitions = new_topic(connection, 4)
    for group in ("a", "b", "c"):
        for partition in partitions:
            commit(connection, group, partition, 1, 2, 3)
    assert sum(remove_offsets(connection, most)) == 24
    assert count(connection, "group_offset") == 12


@pytest.mark.parametrize("keys", ["one key", "first key", "last key"])
def test_so_many_rows_that_one_call_may_not_remove_them_all_go_in_several(connection: Connection, keys: str) -> None:
    first, second = new_topic(connection, 2)
    fill(connection, second if keys == "last key" else first, 2 * AT_ONCE + 501)
    if keys != "one key":
        fill(connection, first if keys == "last key" else second, 11)
    removed = remove_offsets(connection)
    assert max(removed) == AT_ONCE
    assert sum(removed) == 2 * AT_ONCE + (500 if keys == "one key" else 510)
    assert count(connection, "group_offset") == (1 if keys == "one key" else 2)


def test_one_round_of_everything_removes_them_all(connection: Connection, engine: Engine) -> None:
    first, second = new_topic(connection, 2)
    fill(connection, first, AT_ONCE + 501)
    fill(connection, second, 11)
    assert sweep(engine, only=["offsets"]).offsets_removed == AT_ONCE + 510


def test_one_bad_key_does_not_stop_the_rest(connection: Connection) -> None:
    """P12."""
    partitions = new_topic(connection, 5)
    for partition in partitions:
        commit(connection, "group", partition, 1, 2)
    with spoiled(connection, "group_offset", "delete", f"old.partition_id = {partitions[2]}"):
        assert remove_offsets(connection) == [4]
    assert remove_offsets(connection) == [1]


def test_rows_that_somebody_holds_are_passed_by(connection: Connection, partition: int, session: Connection) -> None:
    commit(connection, "group", partition, 1, 2, 3)
    with session.transaction():
        session.execute("select from msgtx.group_offset where committed_offset = 1 for update")
        assert remove_offsets(connection) == [1]
    assert remove_offsets(connection) == [1]


def test_an_offset_of_a_partition_that_is_gone_goes_with_it(connection: Connection) -> None:
    """One that was committed while the topic was being deleted."""
    gone, kept = new_partition(connection), new_partition(connection)
    commit(connection, "group", kept, 1)
    delete_topic_of(connection, gone)
    fill(connection, gone, 3)
    assert remove_offsets(connection) == [3]
    assert committed_at(connection, "group", kept) == (1, False)


# ── floors ──


def raise_floors(connection: Connection, partitions: list[int], times: int) -> None:
    writer = Writer(connection)
    for _ in range(times):
        writer.commit_whole(*(writer.row(partition, b"a") for partition in partitions))
        mark(connection, everything=True)


def test_only_the_highest_floor_of_a_partition_stays(connection: Connection) -> None:
    partitions = new_topic(connection, 3)
    raise_floors(connection, partitions, 4)
    before = [(values(connection, partition), ends(connection, partition)) for partition in partitions]
    assert count(connection, "partition_floor") == 12
    assert remove_floors(connection) == [9]
    rows = connection.execute("select partition_id, stable_floor from msgtx.partition_floor order by 1").fetchall()
    assert rows == [(partition, 4) for partition in partitions]
    assert [(values(connection, partition), ends(connection, partition)) for partition in partitions] == before
    assert remove_floors(connection) == [0]


@pytest.mark.parametrize("most", [1, 2, 500])
def test_a_pass_over_partitions_goes_on_where_it_came_to(connection: Connection, most: int) -> None:
    raise_floors(connection, new_topic(connection, 5), 3)
    assert sum(remove_floors(connection, most)) == 10


@pytest.mark.parametrize("partitions", [1, 2])
def test_more_floors_than_one_call_may_remove_go_in_several(connection: Connection, partitions: int) -> None:
    """A day without a sweep: clients raise the floor once per second."""
    for partition in new_topic(connection, partitions):
        connection.execute(
            "insert into msgtx.partition_floor (partition_id, stable_floor) select %s, n from generate_series(1, %s) n",
            [partition, 2 * AT_ONCE + 500],
        )
    removed = remove_floors(connection)
    assert max(removed) <= AT_ONCE
    assert sum(removed) == (2 * AT_ONCE + 499) * partitions


def test_one_bad_partition_does_not_stop_the_rest(connection: Connection) -> None:
    """P12."""
    partitions = new_topic(connection, 5)
    raise_floors(connection, partitions, 2)
    with spoiled(connection, "partition_floor", "delete", f"old.partition_id = {partitions[2]}"):
        assert remove_floors(connection) == [4]
    assert remove_floors(connection) == [1]


def test_a_floor_of_a_partition_that_is_gone_goes_with_it(connection: Connection) -> None:
    """A marker that raised it while the topic was being deleted."""
    gone, kept = new_partition(connection), new_partition(connection)
    raise_floors(connection, [gone, kept], 2)
    delete_topic_of(connection, gone)
    connection.execute(
        "insert into msgtx.partition_floor (partition_id, stable_floor) values (%s, 2), (%s, 3)", [gone, gone]
    )
    assert remove_floors(connection) == [3]
    rows: list[Any] = connection.execute("select partition_id, stable_floor from msgtx.partition_floor").fetchall()
    assert rows == [(kept, 2)]


def test_a_plain_log_has_no_floor_to_remove(connection: Connection) -> None:
    partition, other = new_topic(connection, 2)
    plain_batches(connection, partition, b"a", b"b")
    delete_records(connection, {partition: 1})
    Writer(connection).send(other, b"a transaction elsewhere")
    mark(connection, everything=True)
    assert count(connection, "partition_floor") == 0
    assert remove_floors(connection) == [0]


# ── share groups ──


def share(connection: Connection, group: str, partition: int, versions: int) -> int:
    """Make a share group with versions of a partition, and as many calls of its member. Returns its member's number."""
    joined = join_share_group(
        connection, group, member_id="a", client_host=None, client_process=None, session_timeout_ms=45_000, topics=[]
    )
    connection.execute(
        "insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)"
        " select %s, %s, n, n, '{}' from generate_series(1, %s) n",
        [joined.group_id, partition, versions],
    )
    connection.execute(
        "insert into msgtx.share_call (member_number, call_number) select %s, n from generate_series(1, %s) n",
        [joined.number, versions],
    )
    return joined.number


def remove_shares(connection: Connection, most: int = 500) -> list[int]:
    return swept_by(connection, "remove_superseded_shares", most)


def membership(connection: Connection, group: str, member: int) -> ShareMembership:
    ((group_id,),) = query(connection, "select group_id from msgtx.consumer_group where name = %s", group)
    return ShareMembership(group_id, member)


def shares_left(connection: Connection) -> list[tuple[int, int]]:
    """The newest version by partition, and the newest call by member."""
    return connection.execute(
        "select partition_id, version from msgtx.share_state union all"
        " select member_number, call_number from msgtx.share_call order by 1, 2"
    ).fetchall()


@pytest.mark.parametrize("most", [1, 2, 500])
def test_of_a_share_group_the_newest_state_and_call_stay(connection: Connection, most: int) -> None:
    first, second = new_topic(connection, 2)
    numbers = [share(connection, "a", first, 3), share(connection, "b", second, 2), share(connection, "c", first, 1)]
    assert sum(remove_shares(connection, most)) == 2 * (2 + 1)
    kept = [(first, 3), (second, 2), (first, 1), (numbers[0], 3), (numbers[1], 2), (numbers[2], 1)]
    assert shares_left(connection) == sorted(kept)
    assert sum(remove_shares(connection, most)) == 0


def test_a_member_removes_what_its_group_and_itself_have_left(connection: Connection) -> None:
    """However much it is; what lies in front of that is left to others."""
    first, second = new_topic(connection, 2)
    others, number = share(connection, "others", first, 3), share(connection, "own", second, AT_ONCE + 5)
    tidy(connection, membership(connection, "own", number))
    kept = [
        *((first, n) for n in (1, 2, 3)),
        *((others, n) for n in (1, 2, 3)),
        *((at, AT_ONCE + 5) for at in (second, number)),
    ]
    assert shares_left(connection) == sorted(kept)


def test_a_member_looks_no_further_when_it_is_through(connection: Connection) -> None:
    number = share(connection, "own", new_partition(connection), 3)
    own = membership(connection, "own", number)
    once = spent(
        connection, "share_state", "idx_scan",
        lambda: sweeps.remove_superseded_shares(connection, (1, own.group_id, -1), None),
    )  # fmt: skip
    assert spent(connection, "share_state", "idx_scan", lambda: tidy(connection, own)) <= once


def test_many_states_of_a_share_group_are_removed_in_parts(connection: Connection) -> None:
    share(connection, "a", new_partition(connection), AT_ONCE + 5)
    assert remove_shares(connection) == [AT_ONCE, 4, AT_ONCE, 4]


def test_states_of_what_is_gone_go_and_calls_of_members_that_left(connection: Connection, partition: int) -> None:
    share(connection, "a", partition, 2)
    leave_group(connection, "a", "a")
    delete_topic_of(connection, partition)
    assert sum(remove_shares(connection)) == 4
    assert shares_left(connection) == []


def test_what_is_parked_goes_with_its_group_or_partition_alone(connection: Connection) -> None:
    gone, kept = new_partition(connection), new_partition(connection)
    for group in ("a", "b"):
        share(connection, group, gone, 1)
    connection.execute(
        "insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)"
        " select group_id, %s, 1, 1, '{}' from msgtx.share_state",
        [kept],
    )
    connection.execute(
        "insert into msgtx.share_parked (group_id, partition_id, first_offset, last_offset, delivery_count)"
        " select group_id, partition_id, n, n, 1 from msgtx.share_state cross join generate_series(1, 3) n"
    )
    connection.execute(
        "delete from msgtx.share_group g using msgtx.consumer_group c where c.group_id = g.group_id and c.name = 'a'"
    )
    delete_topic_of(connection, gone)
    remove_shares(connection)
    left = connection.execute(
        "select c.name, p.partition_id, count(*) from msgtx.share_parked p join msgtx.consumer_group c using (group_id)"
        " group by 1, 2"
    ).fetchall()
    assert left == [("b", kept, 3)]


def test_one_bad_state_does_not_stop_the_others(connection: Connection) -> None:
    """P12."""
    first, second = new_topic(connection, 2)
    share(connection, "a", first, 3)
    share(connection, "b", second, 3)
    with spoiled(connection, "share_state", "delete", f"old.partition_id = {first}"):
        remove_shares(connection)
    assert (first, 1) in shares_left(connection)
    assert (second, 1) not in shares_left(connection)
