"""Members of a share group that acquire in one call; random histories of them are in `test_usual_acquisition`."""

from collections.abc import Sequence
from typing import Any

import pytest

from msgtx.store.groups.members import leave_group
from msgtx.store.shares.answers import NO_ANSWERS
from msgtx.store.shares.shares import Acknowledging, Acquiring, Acquisition, acquire_records, acquire_records_together
from tests.databases import Connection
from tests.store.sharing import ANYTHING, ShareGroup, answers_of
from tests.store.steps import Writer, new_partition, plain

pytestmark = pytest.mark.usefixtures("bare")


@pytest.fixture
def group(connection: Connection) -> ShareGroup:
    made = ShareGroup(connection, new_partition(connection))
    plain(connection, made.partition, *[b"%d" % at for at in range(8)])
    assert made.acquire("a", 1) == {0: 1}  # the first one finds out where to begin
    return made


def asking(
    group: ShareGroup, member: str, most: int = 1, *, call: int | None = None, accepts: tuple[int, int] | None = None
) -> Acquiring:
    asked = group.asking(member, most, call=call)
    if accepts is None:
        return asked
    return asked._replace(answers=answers_of(group.name, asked.member_number, (group.partition, *accepts, "accept")))


def offsets(found: Sequence[Acquisition | None]) -> list[list[int] | None]:
    return [
        None if each is None else [at for piece in each.records for at in range(piece.range.first, piece.range.last + 1)]
        for each in found
    ]


def test_what_is_accepted_together_is_one_whole_range_of_the_first_partition(connection: Connection) -> None:
    """All else a member answers by itself."""
    made = ShareGroup(connection, new_partition(connection))
    accepting = asking(made, "a", accepts=(3, 5))
    assert accepting.accepted() == (3, 5)
    other = made.partition + 1
    assert accepting._replace(partition_ids=[made.partition, other]).accepted() == (3, 5)
    assert accepting._replace(partition_ids=[other, made.partition]).accepted() is None
    for is_whole in (True, False):
        answering = Acknowledging(made.name, accepting.member_number, 1, accepting.answers, is_whole)
        assert answering.accepted() == ((3, 5) if is_whole else None)
    assert accepting._replace(answers=NO_ANSWERS).accepted() is None
    for answers in ({3: "release"}, {3: "reject"}, {3: "accept", 4: "accept"}):
        assert accepting._replace(answers=made.answers("a", answers)).accepted() is None


def test_one_state_has_what_all_accept_and_acquire(connection: Connection, group: ShareGroup) -> None:
    before = group.versions
    asked = [asking(group, "a", 2, accepts=(0, 0)), asking(group, "b"), asking(group, "c", 0)]
    assert offsets(acquire_records_together(connection, asked)) == [[1, 2], [3], []]
    assert group.spans == [(1, 2, "acquired", 1), (3, 3, "acquired", 1)]
    assert group.versions == before + 1


@pytest.mark.parametrize("why", ["refused", "not held whole", "late", "repeated", "unknown member", "session over", "open"])
def test_if_it_is_not_usual_for_one_nothing_is_done(connection: Connection, group: ShareGroup, why: str, clock: Any) -> None:
    """Each goes by itself then, and has its own answer (I16, I17)."""
    other, call = asking(group, "b"), group.call()
    if why == "refused":
        other = asking(group, "b", accepts=(0, 0))
    elif why == "not held whole":
        group.acquire("b", 2)
        other = asking(group, "b", accepts=(1, 1))
    elif why in {"late", "repeated"}:
        group.acquire("b", 2, call=call)
        group.answer("b", {1: "accept"})
        other = asking(group, "b", call=call if why == "repeated" else call - 1)
    elif why == "unknown member":
        leave_group(connection, group.name, "b")
    elif why == "session over":
        clock("1 hour")
    else:
        writer = Writer(connection)
        writer.send(group.partition, b"open")
        group.acquire("b", 7)
    spans = group.spans
    before = group.versions
    found = acquire_records_together(connection, [asking(group, "a", accepts=(0, 0)), other])
    assert found == [None, None]
    assert group.spans == spans
    assert group.versions == before
    assert connection.execute("select from msgtx.share_call where member_number = %s", [group.join("a")]).rowcount == 0


def test_who_comes_again_by_itself_gets_what_it_got_together(connection: Connection, group: ShareGroup) -> None:
    """The answer to the shared call was lost, and each makes its own call, under the same number."""
    asked = [asking(group, "a", accepts=(0, 0)), asking(group, "b"), asking(group, "c", 2)]
    assert offsets(acquire_records_together(connection, asked)) == [[1], [2], [3, 4]]
    assert acquire_records_together(connection, asked) == [None] * 3
    assert offsets([acquire_records(connection, each) for each in asked]) == [[1], [2], [3, 4]]
    assert group.spans == [(1, 1, "acquired", 1), (2, 2, "acquired", 1), (3, 4, "acquired", 1)]


def test_no_more_is_acquired_together_than_a_partition_may_have_in_flight(connection: Connection, group: ShareGroup) -> None:
    group.configure(max_record_locks=4)
    found = acquire_records_together(connection, [asking(group, member, 2) for member in ("a", "b", "c")])
    assert offsets(found) == [[1, 2], [3], []]
    assert [each and each.has_passed for each in found] == [False, False, True], "who got nothing asks again at once"


@pytest.fixture
def pair(connection: Connection, group: ShareGroup) -> tuple[int, int]:
    """The group's partition, from which all is acquired, and another one of the group, which it has begun to read."""
    other = new_partition(connection)
    plain(connection, other, b"0")
    group.acquire("b", 7)
    acquire_records(connection, Acquiring(group.name, group.join("b"), group.call(), [other], 1, ANYTHING))
    return group.partition, other


def over(pair: Sequence[int], *asked: Acquiring) -> list[Acquiring]:
    return [each._replace(partition_ids=list(pair)) for each in asked]


def test_where_the_first_partition_has_nothing_the_next_one_gives(
    connection: Connection, group: ShareGroup, pair: tuple[int, int]
) -> None:
    plain(connection, pair[1], b"1", b"2", b"3")
    asked = over(pair, asking(group, "a", accepts=(0, 0)), asking(group, "c", 2))
    found = acquire_records_together(connection, asked)
    assert offsets(found) == [[1], [2, 3]]
    assert {piece.range.partition_id for each in found if each for piece in each.records} == {pair[1]}
    assert group.spans == [(1, 7, "acquired", 1)]


def test_who_asks_for_nothing_need_not_ask_by_itself(
    connection: Connection, group: ShareGroup, pair: tuple[int, int]
) -> None:
    """What it accepts is accepted, though other partitions were not looked at for it."""
    plain(connection, pair[0], b"8")
    found = acquire_records_together(connection, over(pair, asking(group, "a", 0, accepts=(0, 0)), asking(group, "c")))
    assert offsets(found) == [[], [8]]
    assert group.spans == [(1, 7, "acquired", 1), (8, 8, "acquired", 1)]


def test_one_other_partition_gives(connection: Connection, group: ShareGroup, pair: tuple[int, int]) -> None:
    """Nobody gets more than it asks for."""
    third = new_partition(connection)
    plain(connection, third, b"0")
    acquire_records(connection, Acquiring(group.name, group.join("b"), group.call(), [third], 1, ANYTHING))
    for place in (pair[1], third):
        plain(connection, place, b"1", b"2", b"3")
    found = acquire_records_together(connection, over((*pair, third), asking(group, "a"), asking(group, "c", 2)))
    assert offsets(found) == [[1], [2, 3]]
    assert {piece.range.partition_id for each in found if each for piece in each.records} == {pair[1]}


def test_where_others_have_nothing_they_are_not_locked(
    connection: Connection, group: ShareGroup, pair: tuple[int, int], session: Connection
) -> None:
    with session.transaction():
        session.execute("select msgtx.lock_share_partition(%s, %s)", [group.group_id, pair[1]])
        found = acquire_records_together(connection, over(pair, asking(group, "a"), asking(group, "c")))
    assert found == [([], [], False)] * 2


def test_who_answers_for_nothing_is_not_noted(connection: Connection, group: ShareGroup) -> None:
    """Else there would be a row for each poll."""
    asked = [asking(group, "a", accepts=(0, 0)), asking(group, "b"), asking(group, "c", 2)]
    acquire_records_together(connection, asked)
    noted = "select member_number, call_number from msgtx.share_call where member_number = any(%s) order by call_number desc"
    numbers = [each.member_number for each in asked]
    assert connection.execute(noted, [numbers]).fetchone() == (asked[0].member_number, asked[0].call_number)
    assert connection.execute(noted, [numbers[1:]]).fetchall() == []


def test_where_there_is_nothing_anywhere_nobody_looks_again(
    connection: Connection, group: ShareGroup, pair: tuple[int, int]
) -> None:
    asked = over(pair, asking(group, "a", accepts=(0, 0)), asking(group, "c"))
    assert acquire_records_together(connection, asked) == [([], [], False)] * 2
    assert group.spans == [(1, 7, "acquired", 1)]


@pytest.mark.parametrize("why", ["open", "locked", "another subscription"])
def test_what_is_not_usual_elsewhere_is_looked_at_alone(
    connection: Connection, group: ShareGroup, pair: tuple[int, int], open_connection: Any, why: str
) -> None:
    """What is accepted is accepted, once: the same call by itself finds that out."""
    asked = over(pair, asking(group, "a", accepts=(0, 0)), asking(group, "c"))
    if why == "open":
        Writer(connection).send(pair[1], b"open")
    elif why == "locked":
        plain(connection, pair[1], b"1")
        other = open_connection()
        other.autocommit = False
        other.execute("select msgtx.lock_share_partition(%s, %s)", [group.group_id, pair[1]])
    else:
        asked[1] = asking(group, "c")
    found = acquire_records_together(connection, asked)
    assert found == [None, None if why != "another subscription" else ([], [], False)]
    assert group.spans == [(1, 7, "acquired", 1)]
    by_itself = acquire_records(connection, asked[0])
    assert not by_itself.refused
    assert by_itself.has_passed is (why == "locked")
