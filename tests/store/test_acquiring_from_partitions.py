"""One acquisition from several partitions: as much as is asked for, from those that have something (internals: shares)."""

import concurrent.futures
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from msgtx import errors
from msgtx.database.retry import retried
from msgtx.store.answers import NO_ANSWERS, AnswerColumns
from msgtx.store.append import PARTITIONS_AT_ONCE
from msgtx.store.members import leave_group
from msgtx.store.retention import delete_records
from msgtx.store.shares import Acquiring, Acquisition, acquire_records
from tests.databases import Connection, backend, wait_for_lock
from tests.store.sharing import ANYTHING, ShareGroup
from tests.store.steps import Writer, delete_topic_of, new_topic, plain

Clock = Callable[..., None]
Sessions = Callable[[], Connection]
SIZE = 1_000
pytestmark = pytest.mark.usefixtures("bare")


class Members:
    """Members of a share group that has read all of two partitions. Each asks both, the first one first."""

    def __init__(self, connection: Connection, *, partitions: int = 2, **settings: object) -> None:
        self.connection = connection
        self.partitions = new_topic(connection, partitions)
        self.group = ShareGroup(connection, self.partitions[0], **settings)
        for place in (0, 1):
            plain(connection, self.partitions[place], b"before")
        for place, first, last, _ in pieces(self, self.ask("a")):
            self.ask("a", 1, accepts=[(place, first, last)], order=[place])

    def asking(
        self,
        member: str,
        most: int = 500,
        *,
        order: Sequence[int] | None = None,
        accepts: Sequence[tuple[int, int, int]] = (),
        bytes_at_most: int = ANYTHING,
    ) -> Acquiring:
        number, places = self.group.join(member), self.partitions if order is None else [self.partitions[at] for at in order]
        answers = NO_ANSWERS
        if accepts:
            size = len(accepts)
            answers = AnswerColumns(
                (self.group.name,) * size,
                (number,) * size,
                tuple(self.partitions[place] for place, _, _ in accepts),
                tuple(first for _, first, _ in accepts),
                tuple(last for _, _, last in accepts),
                ("accept",) * size,
                (None,) * size,
                (None,) * size,
            )
        return Acquiring(self.group.name, number, self.group.call(), places, most, bytes_at_most, answers)

    def ask(self, member: str, most: int = 500, **how: Any) -> Acquisition:
        return acquire_records(self.connection, self.asking(member, most, **how))

    def send(self, place: int, *values: bytes, **columns: Any) -> None:
        plain(self.connection, self.partitions[place], *values, **columns)

    def spans(self, place: int) -> list[tuple[int, int, str, int]]:
        self.group.partition = self.partitions[place]
        return self.group.spans


def pieces(members: Members, found: Acquisition) -> list[tuple[int, int, int, int]]:
    """What was acquired: place of the partition, first and last offset, delivery count."""
    return [
        (members.partitions.index(each.range.partition_id), each.range.first, each.range.last, each.delivery_count)
        for each in found.records
    ]


@pytest.fixture(params=["read_committed", "read_uncommitted"], ids=["usual", "general"])
def members(connection: Connection, request: pytest.FixtureRequest) -> Members:
    return Members(connection, isolation=request.param)


# ── as much as is asked for ──


def test_it_goes_on_with_the_next_partition_until_it_has_what_it_asks_for(members: Members) -> None:
    members.send(0, b"1", b"2", b"3")
    members.send(1, b"1", b"2", b"3", b"4")
    assert pieces(members, members.ask("a", 5)) == [(0, 1, 3, 1), (1, 1, 2, 1)]
    assert pieces(members, members.ask("b", 1)) == [(1, 3, 3, 1)]
    assert pieces(members, members.ask("b")) == [(1, 4, 4, 1)]
    assert members.ask("a") == ([], [], False)


def test_what_is_accepted_in_the_first_partition_is_accepted_once(members: Members) -> None:
    """What comes behind is acquired from the others, and nothing is refused."""
    members.send(0, b"1", b"2")
    assert pieces(members, members.ask("a")) == [(0, 1, 2, 1)]
    members.send(0, b"3")
    members.send(1, b"1", b"2")
    found = members.ask("a", 2, accepts=[(0, 1, 2)])
    assert pieces(members, found) == [(0, 3, 3, 1), (1, 1, 1, 1)]
    assert not found.refused
    assert members.spans(0) == [(3, 3, "acquired", 1)]
    assert pieces(members, members.ask("a", accepts=[(0, 3, 3), (1, 1, 1)])) == [(1, 2, 2, 1)]
    assert members.spans(0) == []


def test_what_is_accepted_is_accepted_though_nothing_is_asked_for(members: Members) -> None:
    """I17: neither records nor bytes."""
    for nothing in ({"most": 0}, {"bytes_at_most": 0}):
        members.send(0, b"1")
        ((place, first, last, _),) = pieces(members, members.ask("a"))
        assert members.ask("a", accepts=[(place, first, last)], **nothing) == ([], [], False)
        assert members.spans(0) == []


@pytest.mark.parametrize("why", ["another member's", "another range", "released", "lock expired"])
def test_if_an_answer_is_refused_nothing_is_acquired(members: Members, why: str) -> None:
    members.send(0, b"1", b"2")
    members.send(1, b"1", b"2")
    assert pieces(members, members.ask("a" if why != "another member's" else "b", 3)) == [(0, 1, 2, 1), (1, 1, 1, 1)]
    if why == "released":
        members.group.partition = members.partitions[0]
        members.group.answer("a", {1: "release", 2: "release"})
    elif why == "lock expired":
        members.group.expire_locks("a")
    found = members.ask("a", accepts=[(0, 1, 3 if why == "another range" else 2)])
    assert {error for error, _ in found.refused} == {"InvalidRecordState"}
    assert not found.records
    assert members.spans(1) == [(1, 1, "acquired", 1)]


def test_what_is_accepted_of_a_topic_that_is_gone_is_not_refused(members: Members, connection: Connection) -> None:
    members.send(0, b"1")
    members.ask("a")
    delete_topic_of(connection, members.partitions[0])
    assert members.ask("a", accepts=[(0, 1, 1)]) == ([], [], False)


@pytest.mark.parametrize("place", [0, 1])
def test_one_of_several_answers_that_is_refused_refuses_all(members: Members, place: int) -> None:
    members.send(0, b"1", b"2")
    members.send(1, b"1", b"2")
    assert pieces(members, members.ask("a", 3)) == [(0, 1, 2, 1), (1, 1, 1, 1)]
    found = members.ask("a", accepts=[(0, 1, 2), (1, 1, 1), (place, 7, 7)])
    assert [error for error, _ in found.refused] == ["InvalidRecordState"]
    assert not found.records
    assert (members.spans(0), members.spans(1)) == ([(1, 2, "acquired", 1)], [(1, 1, "acquired", 1)])


def test_a_call_that_comes_late_does_nothing(members: Members) -> None:
    """Its member has had the answer to a later one."""
    members.send(0, b"1", b"2", b"3")
    members.ask("a", 1)
    late = members.asking("a", accepts=[(0, 1, 1)])
    members.ask("a", 1, accepts=[(0, 1, 1)])
    assert acquire_records(members.connection, late) == ([], [], False)
    assert members.spans(0) == [(2, 2, "acquired", 1)]


@pytest.mark.parametrize("where", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("since", [(), (0,), (1,), (0, 1)])
def test_a_call_that_comes_again_has_what_it_had(members: Members, where: Sequence[int], since: Sequence[int]) -> None:
    """Its answer was lost. What has come since is for the next one, wherever it is: else nobody would see what it had."""
    for place in where:
        members.send(place, b"1", b"2")
    asked = members.asking("a", 3, bytes_at_most=SIZE)
    before = acquire_records(members.connection, asked)
    assert {place for place, *_ in pieces(members, before)} == set(where)
    for place in since:
        members.send(place, b"since", b"since")
    for less in ({}, {"max_records": 1}, {"max_bytes": 1}):
        again = acquire_records(members.connection, asked._replace(is_again=True, **less))
        assert pieces(members, again) == pieces(members, before)
    assert {place for place, *_ in pieces(members, members.ask("b"))} >= set(since)


def test_a_call_that_comes_again_and_was_not_done_is_done(members: Members) -> None:
    members.send(1, b"1", b"2")
    found = acquire_records(members.connection, members.asking("a")._replace(is_again=True))
    assert pieces(members, found) == [(1, 1, 2, 1)]


def test_a_call_that_comes_again_waits_for_what_it_had(members: Members, open_connection: Sessions) -> None:
    """It does not go on without it, and waits for no second lock."""
    members.send(1, b"1")
    asked = members.asking("a")
    before = acquire_records(members.connection, asked)
    other = open_connection()
    with other.transaction():
        locked(members, other, 1)
        with pytest.raises(errors.LockTimeout, match="call again"):
            acquire_records(members.connection, asked._replace(is_again=True))
    assert acquire_records(members.connection, asked._replace(is_again=True)) == before


def test_a_call_that_overtakes_its_first_try_has_what_that_has(members: Members, open_connection: Sessions) -> None:
    """It waits for the lock that the first try has taken first, and only then looks for what it had.

    A COMMIT releases its locks one after the other: for the others it is asked to call again.
    """
    members.send(1, b"1")
    asked, first, second = members.asking("a"), open_connection(), open_connection()

    def overtaking() -> Acquisition:
        again = asked._replace(is_again=True)
        return retried(lambda: acquire_records(second, again), deadline=time.monotonic() + 20, pause=0.01, silence=20)

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        with first.transaction():
            before = acquire_records(first, asked)
            again = threads.submit(overtaking)
            wait_for_lock(members.connection, backend(second))
            members.send(0, b"since")
        assert again.result(20) == before
    assert pieces(members, before) == [(1, 1, 1, 1)]


# ── records that must be alone ──


@pytest.mark.parametrize("at", [0, 1])
def test_a_record_on_its_last_delivery_comes_alone(connection: Connection, at: int) -> None:
    """Who dies of it takes no others along, of whatever partition."""
    members = Members(connection, delivery_count_limit=2)
    members.send(at, b"1")
    members.ask("a")
    members.group.partition = members.partitions[at]
    members.group.answer("a", {1: "release"})
    members.send(0, b"2")
    members.send(1, b"3")
    found = [pieces(members, members.ask("a")) for _ in range(3)]
    last = [(at, 1, 1, 2)]
    assert last in found
    assert sorted(piece for each in found if each != last for piece in each) == [
        (place, 1 + (place == at), 1 + (place == at), 1) for place in (0, 1)
    ]


# ── locks of others ──


def locked(members: Members, over: Connection, place: int) -> None:
    over.execute("select msgtx.lock_share_partition(%s, %s)", [members.group.group_id, members.partitions[place]])


def test_a_partition_that_another_member_has_locked_is_passed(members: Members, open_connection: Sessions) -> None:
    members.send(1, b"1")
    other = open_connection()
    with other.transaction():
        locked(members, other, 1)
        assert members.ask("a") == ([], [], True)
        members.send(0, b"1")
        found = members.ask("a")
        assert (pieces(members, found), found.has_passed) == ([(0, 1, 1, 1)], False)
    assert pieces(members, members.ask("a")) == [(1, 1, 1, 1)]


def test_the_first_one_is_waited_for_unless_something_was_answered_for_elsewhere(
    members: Members, open_connection: Sessions
) -> None:
    members.send(0, b"1")
    members.send(1, b"1")
    other, own = open_connection(), open_connection()
    assert pieces(members, members.ask("a", order=[1])) == [(1, 1, 1, 1)]
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        with other.transaction():
            locked(members, other, 0)
            assert members.ask("a", accepts=[(1, 1, 1)]) == ([], [], True)  # it holds a lock: it may not wait
            waits = threads.submit(acquire_records, own, members.asking("a"))
            wait_for_lock(members.connection, backend(own))
        assert pieces(members, waits.result(20)) == [(0, 1, 1, 1)]


# ── which partitions are looked at ──


@pytest.fixture
def looked_at(members: Members, open_connection: Sessions) -> Callable[[], list[int]]:
    """Return which partitions a poll tries to lock: all of them are another member's."""

    def find() -> list[int]:
        other = open_connection()
        with other.transaction():
            for place in range(1, len(members.partitions)):
                locked(members, other, place)
            return [place for place in range(1, len(members.partitions)) if members.ask("a", order=[0, place]).has_passed]

    return find


def test_a_partition_without_anything_to_deliver_is_not_locked(
    members: Members, connection: Connection, looked_at: Callable[[], list[int]]
) -> None:
    assert looked_at() == []
    members.send(1, b"1", b"2")
    assert looked_at() == [1]
    assert pieces(members, members.ask("b")) == [(1, 1, 2, 1)]
    assert looked_at() == []
    members.group.partition = members.partitions[1]
    members.group.answer("b", {1: "release"})
    assert looked_at() == [1]
    assert pieces(members, members.ask("b")) == [(1, 1, 1, 2)]
    assert looked_at() == []
    members.group.expire_locks("b")
    assert looked_at() == [1]


def test_what_a_member_that_left_had_is_looked_for(members: Members, looked_at: Callable[[], list[int]]) -> None:
    members.send(1, b"1")
    members.ask("b")
    assert looked_at() == []
    leave_group(members.connection, members.group.name, "b")
    assert looked_at() == [1]


def test_what_a_member_whose_session_is_over_had_is_looked_for(
    members: Members, looked_at: Callable[[], list[int]], connection: Connection
) -> None:
    members.send(1, b"1")
    members.ask("b")
    connection.execute(
        "update msgtx.group_heartbeat set heartbeat_at = heartbeat_at - interval '1 day' where member_number = %s",
        [members.group.numbers["b"]],
    )
    assert looked_at() == [1]


def test_what_is_pending_in_a_transaction_is_looked_at(
    members: Members, connection: Connection, looked_at: Callable[[], list[int]]
) -> None:
    """Whoever meets it when it is overdue ends it (I12)."""
    members.send(1, b"1")
    members.ask("b")
    members.group.partition = members.partitions[1]
    writer = Writer(connection)
    members.group.answer_in(writer.name, "b", {1: "accept"})
    assert looked_at() == [1]
    writer.abort()
    assert looked_at() == [1]


def test_what_is_due_is_looked_for(members: Members, looked_at: Callable[[], list[int]], clock: Clock) -> None:
    members.send(1, b"1")
    members.ask("b")
    members.group.partition = members.partitions[1]
    members.group.answer("b", {1: "release"}, delay=60_000)
    members.ask("b")  # finds out that it is delayed
    assert looked_at() == []
    clock("61 s")
    assert looked_at() == [1]


def test_what_waits_for_its_key_is_looked_for(connection: Connection) -> None:
    members = Members(connection, ordering="key")
    members.send(1, b"1", b"2", keys=[b"k", b"k"])
    assert pieces(members, members.ask("b", 1)) == [(1, 1, 1, 1)]
    assert members.ask("a") == ([], [], False)  # the second one is parked
    assert pieces(members, members.ask("b", 1, accepts=[(1, 1, 1)], order=[1, 0])) == [(1, 2, 2, 1)]


def test_a_partition_whose_front_was_removed_is_looked_at(
    members: Members, connection: Connection, looked_at: Callable[[], list[int]]
) -> None:
    """So that the group's offset does not stay below the log's start."""
    members.send(1, b"1", b"2")
    delete_records(connection, {members.partitions[1]: 3})
    assert looked_at() == [1]
    members.ask("a")
    assert looked_at() == []


def test_many_partitions_are_looked_at_in_parts(connection: Connection) -> None:
    """Each is a lock to the end of the call. Those that are named first come first."""
    members = Members(connection, partitions=PARTITIONS_AT_ONCE + 3)
    for place in range(len(members.partitions)):
        members.send(place, b"1")
    with connection.transaction():
        found = pieces(members, members.ask("a"))
        (locks,) = connection.execute(
            "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'"
        ).fetchone() or (None,)
    assert locks == PARTITIONS_AT_ONCE
    assert [place for place, *_ in found] == list(range(PARTITIONS_AT_ONCE))
    assert [place for place, *_ in pieces(members, members.ask("a"))] == [at + PARTITIONS_AT_ONCE for at in range(3)]
    with connection.transaction():
        assert members.ask("a") == ([], [], False)
        (locks,) = connection.execute(
            "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'"
        ).fetchone() or (None,)
        assert locks == 1


# ── bytes ──


def test_the_limit_of_bytes_is_that_of_all_partitions(members: Members) -> None:
    for place in (0, 1):
        for _ in range(4):
            members.send(place, b"x" * SIZE, b"y" * SIZE)
    found = members.ask("a", bytes_at_most=5 * SIZE)
    assert pieces(members, found) == [(0, 1, 2, 1), (0, 3, 4, 1), (0, 5, 6, 1)]
    found = members.ask("b", bytes_at_most=5 * SIZE)
    assert pieces(members, found) == [(0, 7, 8, 1), (1, 1, 2, 1), (1, 3, 4, 1)]
    assert pieces(members, members.ask("b", bytes_at_most=1)) == [(1, 5, 6, 1)]  # one row at least


def test_the_limit_of_bytes_holds_for_what_is_delivered_again(members: Members) -> None:
    for _ in range(4):
        members.send(0, b"x" * SIZE, b"y" * SIZE)
    members.send(0, *[b"small"] * 4)
    members.send(1, b"1")
    assert sum(len(each.values) for each in members.ask("a").records) == 13
    members.group.expire_locks("a")
    members.group.partition = members.partitions[0]
    found = pieces(members, members.ask("b", 8_000, bytes_at_most=5 * SIZE))
    assert found == [(0, 1, 2, 2), (0, 3, 4, 2), (0, 5, 5, 2)]  # the row's bytes are more than its values'
    assert pieces(members, members.ask("b", 8_000, bytes_at_most=1)) == [(0, 6, 6, 2)]
    assert pieces(members, members.ask("b", 8_000)) == [(0, 7, 8, 2), (0, 9, 12, 2), (1, 1, 1, 2)]


# ── dead letters ──


@pytest.mark.parametrize("limit", ["records", "bytes"])
def test_dead_letters_of_all_partitions_are_written_in_parts(connection: Connection, limit: str) -> None:
    """500 records, and no more bytes than are asked for; nobody waits for a notification to go on."""
    count, value, most = (200, b"v", ANYTHING) if limit == "records" else (4, bytes(SIZE), 9 * SIZE)
    members = Members(connection, partitions=6, delivery_count_limit=1)
    for place in range(6):
        members.send(place, *[value] * count)
        members.ask("a", order=[place])
    members.group.expire_locks("a")
    written, calls = [0], 0
    while written[-1] < 6 * count:
        calls += 1
        assert members.ask("b", bytes_at_most=most) == ([], [], True), "there may be more"
        written.append(len(members.group.letters))
        assert written[-1] - written[-2] in range(1, 501 if limit == "records" else 11)
    assert calls < 6, "of several partitions at once"
    assert members.ask("b") == ([], [], False)
