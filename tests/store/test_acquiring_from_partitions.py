"""One acquisition from several partitions: as much as is asked for, from those that have something (internals: shares)."""

import concurrent.futures
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from msgtx import errors
from msgtx.database.retry import retried
from msgtx.store.append.append import PARTITIONS_AT_ONCE
from msgtx.store.groups.groups import delete_group
from msgtx.store.groups.members import leave_group
from msgtx.store.shares.answers import NO_ANSWERS
from msgtx.store.shares.shares import Acquiring, Acquisition, acquire_records, acquire_records_together
from msgtx.store.topics.retention import delete_records
from tests.databases import Connection, backend, wait_for_lock
from tests.store.sharing import ANYTHING, ShareGroup, answers_of, join
from tests.store.steps import Writer, delete_topic_of, new_topic, plain
from tests.store.test_compaction import compact, compacted_topic
from tests.store.test_retention import retain

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
        ranges = [(self.partitions[place], first, last, "accept") for place, first, last in accepts]
        answers = answers_of(self.group.name, number, *ranges) if ranges else NO_ANSWERS
        return Acquiring(self.group.name, number, self.group.call(), places, most, bytes_at_most, answers)

    def ask(self, member: str, most: int = 500, **how: Any) -> Acquisition:
        return acquire_records(self.connection, self.asking(member, most, **how))

    def send(self, place: int, *values: bytes, **columns: Any) -> None:
        plain(self.connection, self.partitions[place], *values, **columns)

    def at(self, place: int) -> ShareGroup:
        """Return the group, which answers for a partition from now on."""
        self.group.partition = self.partitions[place]
        return self.group

    def spans(self, place: int) -> list[tuple[int, int, str, int]]:
        return self.at(place).spans


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


@pytest.mark.parametrize("part", [(1, 1), (2, 2), (2, 3), (1, 2)])
def test_what_is_not_accepted_is_still_held(members: Members, part: tuple[int, int]) -> None:
    """A part of what came in one call, from its front, middle or end."""
    members.send(0, b"1", b"2", b"3")
    assert pieces(members, members.ask("a")) == [(0, 1, 3, 1)]
    assert members.ask("a", accepts=[(0, *part)]) == ([], [], False)
    held = [offset for first, last, *_ in members.spans(0) for offset in range(first, last + 1)]
    assert held == [offset for offset in (1, 2, 3) if not part[0] <= offset <= part[1]]
    assert {status for _, _, status, _ in members.spans(0)} == {"acquired"}


def test_what_is_pending_in_a_transaction_is_not_accepted_beside_it(members: Members, writer: Writer) -> None:
    members.send(0, b"1")
    members.ask("a")
    members.at(0).answer_in(writer.name, "a", {1: "release"}, delay=60_000)
    found = members.ask("a", accepts=[(0, 1, 1)])
    assert [error for error, _ in found.refused] == ["TransactionConflict"]
    writer.abort()
    assert pieces(members, members.ask("a")) == [(0, 1, 1, 2)]


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_what_is_accepted_by_the_general_rules_has_a_state_of_its_own(connection: Connection, ordering: str) -> None:
    """Though others have newer states. With an order by key nothing before it comes again."""
    members = Members(connection, isolation="read_uncommitted", ordering=ordering)
    other = ShareGroup(connection, members.partitions[0])
    members.send(0, b"1", b"2", b"3", keys=[b"k", b"l", b"m"])
    own, again = (2, 1) if ordering == "none" else (1, 2)
    for member in ("b", "a") if ordering == "none" else ("a", "b"):
        assert len(pieces(members, members.ask(member, 1))) == 1
    members.at(0).answer("b", {again: "release"})
    for _ in range(3):
        other.acquire("x", 1)
        other.expire_locks("x")
        members.send(1, b"1")
        members.ask("b", order=[1])
    states = "select max(version) from msgtx.share_state where group_id = %s and partition_id = %s"
    asked = [members.group.group_id, members.partitions[0]]
    ((before,),) = connection.execute(states, asked).fetchall()
    found = members.ask("a", accepts=[(0, own, own)], order=[0])
    assert pieces(members, found) == [(0, again, again, 2), (0, 3, 3, 1)]
    assert connection.execute(states, asked).fetchall() == [(before + 2,)], "one that accepts, one that acquires"


def test_what_is_accepted_in_the_first_partition_is_not_so_in_another(connection: Connection) -> None:
    """I17. There the same offset is another record, which somebody has."""
    members = Members(connection, isolation="read_uncommitted")
    for place in (0, 1):
        members.send(place, b"1", b"2")
        members.ask("a" if place == 0 else "b", 1, order=[place])
    assert members.spans(1) == [(1, 1, "acquired", 1)]
    assert pieces(members, members.ask("a", accepts=[(0, 1, 1)])) == [(0, 2, 2, 1), (1, 2, 2, 1)]
    assert members.spans(1) == [(1, 1, "acquired", 1), (2, 2, "acquired", 1)]


def test_a_refused_answer_is_refused_again(members: Members) -> None:
    """The call has done nothing: its number does not count as answered."""
    members.send(0, b"1")
    asked = members.asking("a", accepts=[(0, 1, 1), (0, 7, 7)])
    for _ in range(2):
        assert [error for error, _ in acquire_records(members.connection, asked).refused] == ["InvalidRecordState"] * 2


@pytest.mark.parametrize("why", ["another member's", "another range", "released", "lock expired"])
def test_if_an_answer_is_refused_nothing_is_acquired(members: Members, why: str) -> None:
    members.send(0, b"1", b"2")
    members.send(1, b"1", b"2")
    assert pieces(members, members.ask("a" if why != "another member's" else "b", 3)) == [(0, 1, 2, 1), (1, 1, 1, 1)]
    if why == "released":
        members.at(0).answer("a", {1: "release", 2: "release"})
    elif why == "lock expired":
        members.group.expire_locks("a")
    found = members.ask("a", accepts=[(0, 1, 3 if why == "another range" else 2)])
    assert {error for error, _ in found.refused} == {"InvalidRecordState"}
    assert not found.records
    assert members.spans(1) == [(1, 1, "acquired", 1)]


def test_what_is_accepted_of_a_topic_that_is_gone_is_refused(members: Members, connection: Connection) -> None:
    """As any answer for it is: nothing says that it is done."""
    members.send(0, b"1")
    members.ask("a")
    delete_topic_of(connection, members.partitions[0])
    found = members.ask("a", accepts=[(0, 1, 1)])
    assert ([error for error, _ in found.refused], found.records) == (["InvalidRecordState"], [])


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


def test_a_call_that_comes_again_has_also_what_it_had_of_a_partition_without_more(members: Members) -> None:
    for place in (0, 1):
        members.send(place, b"1")
    asked = members.asking("a")
    before = acquire_records(members.connection, asked)
    assert pieces(members, before) == [(0, 1, 1, 1), (1, 1, 1, 1)]
    assert acquire_records(members.connection, asked._replace(is_again=True)) == before


def test_a_call_that_comes_again_answers_once(members: Members) -> None:
    """I17. What it has released it may have acquired again: that is not released, nor counted as another delivery."""
    members.send(0, b"1")
    assert pieces(members, members.ask("a")) == [(0, 1, 1, 1)]
    asked = members.asking("a", accepts=[(0, 1, 1)])
    asked = asked._replace(answers=replace(asked.answers, answers=("release",)))
    for is_again in (False, True, True):
        assert pieces(members, acquire_records(members.connection, asked._replace(is_again=is_again))) == [(0, 1, 1, 2)]


def test_a_call_that_comes_again_and_was_not_done_is_done_in_all_partitions(members: Members) -> None:
    """Whatever the member has of earlier calls, another member of one with this number, and another group has done."""
    for place in (0, 1):
        members.send(place, b"1", b"2", b"3")
    assert pieces(members, members.ask("a", 1, order=[1])) == [(1, 1, 1, 1)]
    asked = members.asking("a", 3)
    members.group.calls -= 1
    assert pieces(members, members.ask("b", 1, order=[1])) == [(1, 2, 2, 1)]
    found = pieces(members, acquire_records(members.connection, asked._replace(max_records=9, is_again=True)))
    assert found == [(0, 1, 3, 1), (1, 3, 3, 1)]


def test_a_call_that_comes_again_finds_what_it_had_beside_another_group(members: Members, connection: Connection) -> None:
    """Which has newer states of the same partitions, and its first partition has newer ones than the others."""
    other = ShareGroup(connection, members.partitions[1])
    members.send(1, b"1")
    asked = members.asking("a")
    before = acquire_records(members.connection, asked)
    for _ in range(9):
        members.send(0, b"1")
        members.ask("b", order=[0])
        other.acquire("x", 1)
        other.expire_locks("x")
    members.send(0, b"since")
    assert acquire_records(members.connection, asked._replace(is_again=True)) == before
    assert pieces(members, before) == [(1, 1, 1, 1)]


def test_a_call_with_the_number_of_one_that_was_done_has_its_answer(members: Members) -> None:
    """Though it does not say that it comes again: of all partitions what it had, and nothing that has come since."""
    members.send(0, b"1")
    asked = members.asking("a")
    before = acquire_records(members.connection, asked)
    assert pieces(members, before) == [(0, 1, 1, 1)]
    members.send(1, b"since")
    assert acquire_records(members.connection, asked) == before


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


# ── partitions of several kinds ──


def test_what_is_to_be_delivered_again_comes_behind_what_is_new_elsewhere(connection: Connection) -> None:
    members = Members(connection, partitions=3)
    members.send(1, b"1")
    members.ask("b")
    members.group.expire_locks("b")
    members.send(0, b"1", b"2")
    plain(connection, members.partitions[2], b"0", b"1")
    assert pieces(members, members.ask("a")) == [(0, 1, 2, 1), (1, 1, 1, 2), (2, 0, 1, 1)]


def test_columns_of_one_partition_are_not_those_of_another(connection: Connection) -> None:
    """The first one is compacted, so that its records have offsets of their own, and has all columns."""
    first, second = compacted_topic(connection), new_topic(connection)[0]
    group = ShareGroup(connection, first)
    plain(connection, first, b"0", b"1", keys=[b"k", b"l"], timestamps=[7, 8], headers=[[("h", b"0")], [("h", b"1")]])
    plain(connection, first, b"2", keys=[b"k"])
    plain(connection, first, b"3", keys=[b"m"])
    plain(connection, second, b"before")
    acquire_records(connection, Acquiring(group.name, group.join("b"), group.call(), [second], 1, ANYTHING))
    compact(connection)
    assert group.acquire("b") == {1: 1, 2: 1, 3: 1}
    group.answer("b", {1: "release"})
    plain(connection, second, b"1", b"2")
    asked = Acquiring(group.name, group.join("a"), group.call(), [first, second], 9, ANYTHING)
    again, new = acquire_records(connection, asked).records
    assert (again.offsets, again.keys, again.timestamps, again.headers()) == ([1], [b"l"], [8], [(("h", b"1"),)])
    assert (new.range, new.values, new.offsets, new.keys, new.timestamps) == ((second, 1, 2), [b"1", b"2"], None, None, None)
    assert new.header_counts is None


# ── who may ──


def call_of(connection: Connection, kind: str, asked: Acquiring) -> object:
    if kind == "by itself":
        return acquire_records(connection, asked)
    ((found),) = acquire_records_together(connection, [asked])
    if found is None:
        raise errors.UnknownMember("it goes by itself, and is told so then")
    return found


@pytest.mark.parametrize("kind", ["by itself", "together"])
@pytest.mark.parametrize("beside", ["an older member", "a newer member"])
def test_a_session_is_over_by_its_own_timeout(connection: Connection, clock: Clock, kind: str, beside: str) -> None:
    """Whatever that of the others is, and however often they were heard."""
    members = Members(connection)
    group = members.group
    members.send(0, b"1", b"2")
    if beside == "a newer member":
        connection.execute("delete from msgtx.group_member where group_id = %s", [group.group_id])
    own = join(connection, group.name, member="own", session_timeout_ms=10_000).number
    other = group.numbers["a"] if beside == "an older member" else group.join("newer")
    heard = (
        "insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at) values (%s, %s, msgtx.clock())"
    )
    asked = Acquiring(group.name, own, 1, members.partitions, 1, ANYTHING)
    clock("9 s")
    assert pieces(members, acquire_records(connection, asked))
    clock("20 s")
    connection.execute(heard, [other, 1_000])
    with pytest.raises(errors.UnknownMember):
        call_of(connection, kind, asked._replace(call_number=2))
    connection.execute(heard, [own, 2])
    assert call_of(connection, kind, asked._replace(call_number=3))


@pytest.mark.parametrize("kind", ["by itself", "together"])
def test_a_member_acquires_for_its_own_group(connection: Connection, kind: str) -> None:
    members, other = Members(connection), Members(connection)
    members.send(0, b"1")
    asked = other.asking("a")._replace(group=members.group.name, partition_ids=members.partitions)
    with pytest.raises(errors.UnknownMember):
        call_of(connection, kind, asked)
    assert pieces(members, members.ask("a")) == [(0, 1, 1, 1)]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_group_that_is_deleted_while_its_member_waits_acquires_nothing(
    connection: Connection, open_connection: Sessions, isolation: str
) -> None:
    members, first, own = Members(connection, isolation=isolation), open_connection(), open_connection()
    members.send(0, b"1")
    asked = members.asking("a")
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        with first.transaction():
            locked(members, first, 0)
            waits = threads.submit(acquire_records, own, asked)
            wait_for_lock(connection, backend(own))
            for member in members.group.numbers:
                leave_group(connection, members.group.name, member)
            delete_group(connection, members.group.name)
        with pytest.raises(errors.GroupNotFound):
            waits.result(20)


# ── records that must be alone ──


@pytest.mark.parametrize("at", [0, 1])
def test_a_record_on_its_last_delivery_comes_alone(connection: Connection, at: int) -> None:
    """Who dies of it takes no others along, of whatever partition."""
    members = Members(connection, delivery_count_limit=2)
    members.send(at, b"1")
    members.ask("a")
    members.at(at).answer("a", {1: "release"})
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


def test_a_partition_without_anything_to_deliver_is_not_locked(members: Members, looked_at: Callable[[], list[int]]) -> None:
    assert looked_at() == []
    members.send(1, b"1", b"2")
    assert looked_at() == [1]
    assert pieces(members, members.ask("b")) == [(1, 1, 2, 1)]
    assert looked_at() == []
    members.at(1).answer("b", {1: "release"})
    assert looked_at() == [1]
    assert pieces(members, members.ask("b")) == [(1, 1, 1, 2)]
    assert looked_at() == []
    members.group.expire_locks("b")
    assert looked_at() == [1]


@pytest.mark.parametrize("why", ["its member left", "its session is over", "pending", "aborted", "due"])
def test_what_may_be_delivered_again_is_looked_for(
    members: Members, looked_at: Callable[[], list[int]], writer: Writer, clock: Clock, why: str
) -> None:
    """Also what is pending in a transaction: whoever meets it when that is overdue ends it (I12)."""
    members.send(1, b"1")
    members.ask("b")
    assert looked_at() == []
    match why:
        case "its member left":
            members.group.leave("b")
        case "its session is over":
            members.connection.execute(
                "update msgtx.group_heartbeat set heartbeat_at = heartbeat_at - interval '1 day' where member_number = %s",
                [members.group.numbers["b"]],
            )
        case "due":
            members.at(1).answer("b", {1: "release"}, delay=60_000)
            members.ask("b")  # finds out that it is delayed
            assert looked_at() == []
            clock("61 s")
        case _:
            members.at(1).answer_in(writer.name, "b", {1: "accept"})
            if why == "aborted":
                writer.abort()
    assert looked_at() == [1]


def test_what_waits_for_its_key_is_looked_for(connection: Connection) -> None:
    members = Members(connection, ordering="key")
    members.send(1, b"1", b"2", keys=[b"k", b"k"])
    assert pieces(members, members.ask("b", 1)) == [(1, 1, 1, 1)]
    assert members.ask("a") == ([], [], False)  # the second one is parked
    assert pieces(members, members.ask("b", 1, accepts=[(1, 1, 1)], order=[1, 0])) == [(1, 2, 2, 1)]


def test_what_waits_for_a_key_that_is_free_again_is_looked_for(connection: Connection) -> None:
    """Though nothing is in flight any more."""
    members = Members(connection, ordering="key")
    members.send(1, b"1", b"2", keys=[b"k", b"k"])
    assert pieces(members, members.ask("b", 1)) == [(1, 1, 1, 1)]
    assert members.ask("a") == ([], [], False)
    assert members.at(1).answer("b", {1: "accept"}) == []
    assert pieces(members, members.ask("a")) == [(1, 2, 2, 1)]


def test_what_another_group_has_acquired_is_looked_for(members: Members, connection: Connection) -> None:
    """That one has a newer state."""
    members.send(1, b"1")
    other = ShareGroup(connection, members.partitions[1])
    for _ in range(3):
        other.answer("b", dict.fromkeys(other.acquire("b"), "release"))
    assert list(other.acquire("b")) == [0, 1]
    assert pieces(members, members.ask("a")) == [(1, 1, 1, 1)]


def test_a_partition_that_is_gone_is_not_locked(members: Members, connection: Connection, open_connection: Sessions) -> None:
    (gone,) = new_topic(connection)
    delete_topic_of(connection, gone)
    other = open_connection()
    with other.transaction():
        other.execute("select msgtx.lock_share_partition(%s, %s)", [members.group.group_id, gone])
        asked = members.asking("a")._replace(partition_ids=[members.partitions[0], gone])
        assert acquire_records(connection, asked) == ([], [], False)


@pytest.mark.parametrize("swept", [False, True])
def test_a_partition_whose_front_was_removed_is_looked_at(
    members: Members, connection: Connection, looked_at: Callable[[], list[int]], swept: bool
) -> None:
    """So that the group's offset does not stay below the log's start, also if nothing is left."""
    members.send(1, b"1", b"2")
    delete_records(connection, {members.partitions[1]: 3})
    assert not swept or retain(connection) > 0
    assert looked_at() == [1]
    assert members.ask("a") == ([], [], False)
    assert looked_at() == []


def advisory_locks(connection: Connection) -> int:
    sql = "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'"
    ((found,),) = connection.execute(sql).fetchall()
    return int(found)


def test_many_partitions_are_looked_at_in_parts(connection: Connection) -> None:
    """Each is a lock to the end of the call. Those that are named first come first."""
    members = Members(connection, partitions=PARTITIONS_AT_ONCE + 3)
    for place in range(len(members.partitions)):
        members.send(place, b"1")
    with connection.transaction():
        found = pieces(members, members.ask("a"))
        assert advisory_locks(connection) == PARTITIONS_AT_ONCE
    assert [place for place, *_ in found] == list(range(PARTITIONS_AT_ONCE))
    assert [place for place, *_ in pieces(members, members.ask("a"))] == [at + PARTITIONS_AT_ONCE for at in range(3)]
    with connection.transaction():
        assert members.ask("a") == ([], [], False)
        assert advisory_locks(connection) == 1


@pytest.mark.parametrize("enough", [{"most": 1}, {"bytes_at_most": 1}])
def test_who_has_enough_locks_nothing_more(connection: Connection, members: Members, enough: dict[str, int]) -> None:
    for place in (0, 1, 0):
        members.send(place, b"1")
    with connection.transaction():
        assert pieces(members, members.ask("a", **enough)) == [(0, 1, 1, 1)]
        assert advisory_locks(connection) == 1


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
