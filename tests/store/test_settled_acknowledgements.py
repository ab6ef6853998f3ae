"""What transactions have acknowledged becomes real even if nobody polls any more (internals: share-answers#transactions)."""

import copy

import pytest

from msgtx.store.append.append import append
from msgtx.store.transactions.seal import complete_prepared, seal
from msgtx.store.transactions.transactions import transaction_outcome
from msgtx.types import Outcome
from tests.databases import Clock, Connection, Sessions
from tests.store.sharing import ShareGroup, four_records
from tests.store.steps import Writer, batch, count, new_partition, spoiled

Place = list[int] | None
pytestmark = pytest.mark.usefixtures("bare")


def settle(connection: Connection, after: Place = None, most: int = 250) -> tuple[int, int, Place]:
    """Do one call. Returns how many it settled, how many transactions it ended, and where it came to."""
    row = connection.execute(
        "select settled, expired, next_after from msgtx.settle_shares(%s::bigint[], %s)", [after, most]
    ).fetchone()
    assert row is not None
    return row


def pending(connection: Connection) -> int:
    return count(connection, "share_pending")


@pytest.fixture
def group(connection: Connection) -> ShareGroup:
    return ShareGroup(connection, four_records(connection))


def test_what_is_pending_is_settled_and_ended_under_its_own_name(connection: Connection, clock: Clock) -> None:
    """I12; beside prepared ones that were committed, live longer, and have two parts of its name."""
    partition, source = new_partition(connection), new_partition(connection)
    append(connection, [batch(source, *(b"%d" % number for number in range(8)))])
    group = ShareGroup(connection, source, record_lock_duration_ms=900_000)
    group.acquire("a")
    first, waiting = Writer(connection, timeout_ms=1_000), Writer(connection, timeout_ms=1_000)
    offset = 0
    for writer, numbers in ((first, (2, 2)), (waiting, (2, 1))):
        for number in numbers:
            for _ in range(number):
                writer.send(partition, b"x", timeout_ms=600_000)
                group.answer_in(writer.name, "a", {offset: "accept"})
                assert seal(connection, writer.name, "external", tails=writer.tails).error is None
                complete_prepared(connection, writer.name, "COMMIT")
                writer.next()
                offset += 1
            if writer.id.epoch == 0:
                writer.init()
    group.answer_in(waiting.name, "a", {offset: "accept"})
    assert settle(connection) == (7, 0, None)
    assert (group.spans, pending(connection)) == ([(7, 7, "pending", 1)], 1)
    clock("2 seconds")
    assert settle(connection) == (1, 1, None)
    assert (group.spans, pending(connection)) == ([(7, 7, "available", 1)], 0)


def test_what_a_session_that_is_gone_has_sealed_is_ended(connection: Connection, writer: Writer, group: ShareGroup) -> None:
    """I12: at once, whatever its timeout."""
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "accept"})
    assert seal(connection, writer.name, "session", tails={}, seat=4711).error is None
    assert settle(connection) == (1, 1, None)
    assert transaction_outcome(connection, writer.name).outcome is Outcome.ABORTED


@pytest.mark.parametrize("most", [1, 2, 500])
def test_a_pass_over_what_is_pending_goes_on_where_it_came_to(connection: Connection, group: ShareGroup, most: int) -> None:
    waiting, decided = Writer(connection), Writer(connection)
    for each in (group, ShareGroup(connection, group.partition), ShareGroup(connection, group.partition)):
        each.acquire("a")
        each.answer_in(waiting.name, "a", {0: "accept"})
        each.answer_in(decided.name, "a", {1: "accept"})
    decided.commit()
    found, after = 0, None
    for _ in range(7):
        settled, _, after = settle(connection, after, most)
        found += settled
        if after is None:
            break
    assert (found, after, pending(connection)) == (3, None, 3)


@pytest.mark.parametrize(("records", "size", "in_a_call"), [(300, 1, (1, 1)), (1, 3_000_000, (3, 1))])
def test_a_call_writes_so_many_dead_letters_and_the_next_one_goes_on_behind_it(
    connection: Connection, records: int, size: int, in_a_call: tuple[int, int]
) -> None:
    """500 of them, or 8 MiB. What it has begun is left for the next round."""
    groups, writer = [], Writer(connection)
    for _ in range(sum(in_a_call) + (records > 1)):
        partition = new_partition(connection, max_message_bytes=1 << 23)
        append(connection, [batch(partition, *[b"x" * size] * records)])
        group = ShareGroup(connection, partition)
        group.acquire("a")
        group.answer_in(writer.name, "a", dict.fromkeys(range(records), "reject"))
        groups.append(group)
    writer.commit()
    first = settle(connection)
    assert (first[0], first[2] is not None) == (in_a_call[0], True)
    second = settle(connection, first[2])
    assert (second[0], second[2]) == (in_a_call[1], None)
    settle(connection)
    assert pending(connection) == 0
    assert [len(group.letters) for group in groups] == [records] * len(groups)


def test_what_members_have_made_real_by_their_polls_is_settled_too(connection: Connection, group: ShareGroup) -> None:
    writer = Writer(connection)
    group.acquire("a", 2)
    group.answer_in(writer.name, "a", {0: "accept", 1: "accept"})
    writer.commit()
    assert group.acquire("b", 1) == {2: 1}
    versions = group.versions
    assert settle(connection) == (1, 0, None)
    assert (pending(connection), group.versions) == (0, versions)


def test_a_share_partition_that_somebody_works_on_is_passed_by(
    connection: Connection, group: ShareGroup, open_connection: Sessions
) -> None:
    """It never waits."""
    writer, other = Writer(connection), copy.copy(group)
    group.acquire("a", 1)
    group.answer_in(writer.name, "a", {0: "accept"})
    writer.commit()
    other.connection = open_connection()
    with other.connection.transaction(), connection.transaction():
        connection.execute("set local statement_timeout = '5s'")
        other.acquire("a", 1)
        assert settle(connection) == (0, 0, None)
    assert settle(connection) == (1, 0, None)


def test_what_is_settled_is_so_by_the_settings_of_its_own_group(connection: Connection, partition: int) -> None:
    """An order by keys lets a member hold nothing behind an earlier record of the key; without one it goes on."""
    append(connection, [batch(partition, b"0", b"1", keys=[b"k", b"k"])])
    ShareGroup(connection, partition, ordering="key")
    group, writer = ShareGroup(connection, partition), Writer(connection)
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "accept"})
    writer.abort()
    assert settle(connection) == (1, 0, None)
    assert group.spans == [(0, 0, "available", 1), (1, 1, "acquired", 1)]


@pytest.mark.parametrize("beside", ["another group", "another partition"])
def test_what_cannot_be_settled_now_is_so_later(connection: Connection, group: ShareGroup, beside: str) -> None:
    """P12: what the same transaction has acknowledged elsewhere is settled meanwhile."""
    writer = Writer(connection)
    if beside == "another group":
        other = ShareGroup(connection, group.partition)
    else:
        other = copy.copy(group)
        other.partition = four_records(connection)
    for each in (group, other):
        each.acquire("a")
        each.answer_in(writer.name, "a", {0: "accept"})
    writer.commit()
    its_own = f"new.group_id = {group.group_id} and new.partition_id = {group.partition}"
    with spoiled(connection, "share_state", "insert", its_own):
        assert settle(connection) == (1, 0, None)
    assert (group.spans[0][2], other.spans) == ("pending", [(1, 3, "acquired", 1)])
    assert settle(connection) == (1, 0, None)
    assert (group.spans, pending(connection)) == ([(1, 3, "acquired", 1)], 0)
