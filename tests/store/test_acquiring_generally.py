"""What members acquire by the general rules: again and for the first time, how much of it, and beside others.

The usual case is in `test_usual_acquisition`. These rules decide whenever something is delivered again, pending or parked,
with an order by key, and for a group that reads uncommitted records (internals: shares#acquiring).
"""

from typing import Final

import pytest

from msgtx.store.shares.shares import acquire_records, ensure_dead_letters
from msgtx.store.topics.retention import delete_records
from msgtx.store.transactions.seal import seal
from msgtx.store.transactions.transactions import transaction_outcome
from msgtx.types import Outcome
from tests.databases import Clock, Connection
from tests.store.sharing import ShareGroup, four_records
from tests.store.steps import Writer, count, delete_topic_of, new_partition, new_topic, plain, plain_batches

SIZE: Final = 1_000
DELAY_MS: Final = 60_000
pytestmark = pytest.mark.usefixtures("bare")


@pytest.fixture
def partition(connection: Connection) -> int:
    return four_records(connection)


@pytest.fixture
def group(connection: Connection, partition: int) -> ShareGroup:
    return ShareGroup(connection, partition)


# ── transactions that hold records ──


@pytest.mark.parametrize("beside", ["another producer's", "an earlier epoch's", "an earlier one"])
def test_a_transaction_is_overdue_by_its_own_timeout(
    connection: Connection, group: ShareGroup, clock: Clock, beside: str
) -> None:
    """I12. Another one with nearly the same name may last longer."""
    elsewhere = new_partition(connection)
    group.acquire("a")
    if beside == "another producer's":
        other = Writer(connection, timeout_ms=600_000)
        other.send(elsewhere, b"x")
    writer = Writer(connection, timeout_ms=1_000)
    if beside != "another producer's":
        writer.send(elsewhere, b"x", timeout_ms=600_000)
        writer.init() if beside == "an earlier epoch's" else writer.commit()
    group.answer_in(writer.name, "a", {0: "accept", 1: "accept"})
    clock("2 s")
    assert group.acquire("b") == {0: 2, 1: 2}
    assert transaction_outcome(connection, writer.name).outcome is Outcome.ABORTED


@pytest.mark.parametrize("locked", [0, 1])
def test_what_one_overdue_transaction_held_comes_though_another_cannot_be_aborted_yet(
    connection: Connection, group: ShareGroup, clock: Clock, session: Connection, locked: int
) -> None:
    """I12. Its producer is in a call: nobody waits for that."""
    writers = [Writer(connection, timeout_ms=1_000) for _ in range(2)]
    group.acquire("a")
    for offset, writer in enumerate(writers):
        group.answer_in(writer.name, "a", {offset: "accept"})
    clock("2 s")
    with session.transaction():
        session.execute("select msgtx.lock_producer(%s)", [writers[locked].id.producer_id])
        assert group.acquire("b") == {1 - locked: 2}
    assert group.acquire("b") == {locked: 2}


def test_what_is_sealed_for_a_session_that_is_gone_is_aborted_by_who_meets_it(
    connection: Connection, group: ShareGroup, writer: Writer
) -> None:
    """I12. Nobody can decide it any more: its timeout is not waited for."""
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "accept"})
    assert seal(connection, writer.name, "session", tails={}, seat=4711).error is None
    assert group.acquire("b") == {0: 2}
    assert transaction_outcome(connection, writer.name).outcome is Outcome.ABORTED


def test_a_call_aborts_a_hundred_overdue_transactions(connection: Connection, partition: int, clock: Clock) -> None:
    """Each is flushed and locks its producer: what is left is for the next call."""
    group = ShareGroup(connection, partition)
    group.acquire("a")
    writers = [Writer(connection, timeout_ms=1_000) for _ in range(102)]
    for writer in writers:
        writer.send(partition, b"x")
    plain(connection, partition, b"last")
    clock("2 s")
    for left, found in ((2, {}), (0, {4 + 102: 1})):
        assert group.acquire("a") == found
        assert [transaction_outcome(connection, each.name).outcome for each in writers].count(Outcome.OPEN) == left


# ── what is delivered again ──


def test_what_is_available_does_not_count_as_in_flight(connection: Connection, partition: int) -> None:
    """Else nobody could take what all have given back."""
    group = ShareGroup(connection, partition, max_record_locks=4)
    group.acquire("a")
    group.answer("a", dict.fromkeys(range(4), "release"))
    assert group.acquire("b", 3) == {0: 2, 1: 2, 2: 2}
    assert group.acquire("a") == {3: 2}
    plain(connection, partition, b"4")
    assert group.acquire("b") == {}


def test_a_limit_that_was_lowered_below_what_is_in_flight_gives_nothing(connection: Connection, partition: int) -> None:
    """Nor anything else than what is available."""
    group = ShareGroup(connection, partition)
    group.acquire("a")
    group.answer("a", {0: "accept", 3: "release"})
    group.configure(max_record_locks=1)
    before = group.spans
    assert group.acquire("b") == {}
    assert group.spans == before == [(1, 2, "acquired", 1), (3, 3, "available", 1)]


def test_members_count_their_calls_each_by_itself(connection: Connection, partition: int) -> None:
    """One that has the number of another one's call is not that call again."""
    group = ShareGroup(connection, partition, isolation="read_uncommitted")
    assert group.acquire("a", 1, call=1) == {0: 1}
    assert group.acquire("b", 1, call=1) == {1: 1}
    assert group.acquire("a", 1, call=2) == {2: 1}


def test_a_call_that_comes_again_after_its_locks_has_nothing(group: ShareGroup) -> None:
    """What it had is for all by now, and nobody would know that this call has taken it anew."""
    asked = group.asking("a", 2)
    assert group.acquired(asked) == {0: 1, 1: 1}
    group.expire_locks("a")
    assert group.acquired(asked._replace(is_again=True)) == {}
    assert group.acquire("b") == {0: 2, 1: 2, 2: 1, 3: 1}


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_the_more_often_a_record_was_delivered_the_fewer_come_with_it(connection: Connection, ordering: str) -> None:
    """New ones come all the same, unless that could be out of order."""
    group = ShareGroup(connection, new_partition(connection), ordering=ordering)
    plain(connection, group.partition, *[b"x"] * 10, keys=[b"k"] * 10)
    group.acquire("a")
    plain(connection, group.partition, b"new", b"new", keys=[b"k", b"new"])
    group.expire_locks("a")
    assert group.acquire("b", 16) == {0: 2, 1: 2} | ({10: 1, 11: 1} if ordering == "none" else {})


@pytest.mark.parametrize("keys", [None, [b"k", b"l"]])
def test_a_new_record_is_delivered_for_the_first_time_beside_one_that_comes_again(
    connection: Connection, keys: list[bytes] | None
) -> None:
    group = ShareGroup(connection, new_partition(connection), ordering="none" if keys is None else "key")
    plain(connection, group.partition, b"0", keys=keys and keys[:1])
    group.acquire("a")
    group.expire_locks("a")
    plain(connection, group.partition, b"1", keys=keys and keys[1:])
    assert group.acquire("b") == {0: 2, 1: 1}
    assert group.spans == [(0, 0, "acquired", 2), (1, 1, "acquired", 1)]


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_record_on_its_last_delivery_waits_behind_others(connection: Connection, ordering: str) -> None:
    """Who dies of it takes no others along. What has its key comes behind it."""
    group = ShareGroup(connection, new_partition(connection), ordering=ordering, delivery_count_limit=3)
    plain(connection, group.partition, b"0", b"1", keys=[b"k", b"l"])
    assert group.acquire("a") == {0: 1, 1: 1}
    group.answer("a", {1: "release"})
    assert group.acquire("b") == {1: 2}
    group.expire_locks("a", "b")
    plain(connection, group.partition, b"2", b"3", keys=[b"l", b"m"])
    later = {2: 1, 3: 1}
    assert group.acquire("c") == {0: 2} | (later if ordering == "none" else {})
    assert group.acquire("d") == {1: 3}
    assert group.acquire("d") == ({} if ordering == "none" else {2: 1, 3: 1})


def test_nothing_comes_with_a_record_on_its_last_delivery(connection: Connection, partition: int) -> None:
    """Nor does it come with what another partition has given (I17)."""
    group = ShareGroup(connection, partition, delivery_count_limit=2)
    assert group.acquire("a") == {0: 1, 1: 1, 2: 1, 3: 1}
    group.answer("a", {1: "release", 3: "release"})
    other = new_partition(connection)
    plain(connection, other, b"0")
    both = group.asking("b", 500)._replace(partition_ids=[other, partition])
    assert [each.range for each in acquire_records(connection, both).records] == [(other, 0, 0)]
    assert group.acquire("b") == {1: 2}
    assert group.acquire("c") == {3: 2}


def test_what_was_delivered_less_often_comes_behind_it(connection: Connection, partition: int) -> None:
    group = ShareGroup(connection, partition, delivery_count_limit=3)
    group.acquire("a")
    group.answer("a", {0: "accept", 1: "release"})
    assert group.acquire("b") == {1: 2}
    group.expire_locks("a", "b")
    assert group.acquire("c") == {1: 3}
    assert group.acquire("c") == {2: 2, 3: 2}


# ── dead letters ──


def test_who_is_on_its_last_delivery_keeps_it_while_others_become_dead_letters(
    connection: Connection, partition: int
) -> None:
    group = ShareGroup(connection, partition, delivery_count_limit=1)
    assert (group.acquire("a", 1), group.acquire("b", 1)) == ({0: 1}, {1: 1})
    group.expire_locks("b")
    assert group.acquire("c", 1) == {2: 1}
    assert [offset for _, offset, *_ in group.letters] == [1]
    assert group.spans == [(0, 0, "acquired", 1), (2, 2, "acquired", 1)]
    assert group.answer("a", {0: "accept"}) == []


def test_what_is_accepted_is_so_though_a_dead_letter_has_to_wait(
    connection: Connection, partition: int, session: Connection
) -> None:
    """I17. Another session writes to that topic, and nothing else is acquired."""
    group = ShareGroup(connection, partition, delivery_count_limit=1)
    assert (group.acquire("a", 1), group.acquire("b", 3)) == ({0: 1}, {1: 1, 2: 1, 3: 1})
    group.expire_locks("b")
    ensure_dead_letters(connection, group.name)
    with session.transaction():
        session.execute("select msgtx.lock_partition(msgtx.dead_letter_partition(%s, %s))", [group.name, partition])
        asked = group.asking("a", 5)._replace(answers=group.answers("a", {0: "accept"}))
        assert acquire_records(connection, asked) == ([], [], False)
    assert [(first, last) for first, last, *_ in group.spans] == [(1, 3)]
    assert (group.acquire("a", 5), len(group.letters)) == ({}, 3)


def test_dead_letters_count_among_the_bytes_of_a_call(connection: Connection) -> None:
    group = ShareGroup(connection, new_partition(connection), delivery_count_limit=1)
    plain_batches(connection, group.partition, *[bytes(SIZE)] * 3)
    group.acquire("a", 2)
    group.expire_locks("a")
    assert group.acquired(group.asking("b", 500, bytes_at_most=SIZE)) == {}
    assert len(group.letters) == 1
    assert group.acquired(group.asking("b", 500, bytes_at_most=5 * SIZE)) == {2: 1}
    assert len(group.letters) == 2


# ── bytes ──


def test_what_comes_again_leaves_no_bytes_to_new_records(connection: Connection) -> None:
    group = ShareGroup(connection, new_partition(connection))
    plain_batches(connection, group.partition, *[bytes(SIZE)] * 4)
    group.acquire("a", 3)
    group.expire_locks("a")
    assert group.acquired(group.asking("b", 8_000, bytes_at_most=3 * SIZE // 2)) == {0: 2, 1: 2}
    assert group.acquired(group.asking("b", 8_000, bytes_at_most=1)) == {2: 2}
    group.expire_locks("b")
    assert group.acquired(group.asking("c", 8_000)) == {0: 3, 1: 3, 2: 3, 3: 1}


def test_the_limit_of_bytes_is_that_of_the_records_that_come_again(connection: Connection) -> None:
    """What lies between and behind them does not count, nor what other partitions hold at the same offsets."""
    places = new_topic(connection, 3)
    group = ShareGroup(connection, places[1])
    for place in (places[0], places[2]):
        for _ in range(12):
            plain(connection, place, bytes(3 * SIZE))
    for _ in range(6):
        plain(connection, places[1], bytes(SIZE), bytes(SIZE))
    group.acquire("a")
    group.answer("a", dict.fromkeys((3, 5, 7, 9), "release"))
    assert group.acquired(group.asking("b", 8_000, bytes_at_most=3 * SIZE // 2)) == {3: 2, 5: 2}
    assert group.acquired(group.asking("b", 8_000, bytes_at_most=1)) == {7: 2}


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_limit_of_bytes_is_that_of_many_rows(connection: Connection, isolation: str) -> None:
    """They are read some at a time; those before them, behind them and of other partitions do not count."""
    partition, other = new_topic(connection, 2)
    group = ShareGroup(connection, partition, isolation=isolation)
    for place in (partition, other):
        plain_batches(connection, place, *[bytes(SIZE)] * 40)
    assert len(group.acquire("a", 7)) == 7
    assert list(group.acquired(group.asking("b", 500, bytes_at_most=10 * SIZE))) == list(range(7, 17))


# ── rows of the log ──


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_aborted_rows_between_others_are_passed(connection: Connection, ordering: str) -> None:
    """I1. Also by a group that has not begun, and by one for which something comes again."""
    partition = new_partition(connection)
    group, writer = ShareGroup(connection, partition, ordering=ordering), Writer(connection)
    expected: dict[int, int] = {}
    for _ in range(2):
        for ends in (writer.commit, writer.abort, writer.commit):
            offset = writer.send(partition, b"x", keys=[b"k"])
            ends()
            expected |= {offset: 1} if ends == writer.commit else {}
        assert group.acquire("a") == expected
        group.expire_locks("a")
        expected = dict.fromkeys(expected, 2)
    assert group.acquire("a") == {0: 3, 2: 3, 3: 2, 5: 2}


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_rows_that_follow_one_another_are_acquired_whole(connection: Connection, ordering: str) -> None:
    group = ShareGroup(connection, new_partition(connection), ordering=ordering)
    for _ in range(3):
        plain(connection, group.partition, b"x", b"y", keys=[b"k", b"l"])
    assert group.acquire("a") == dict.fromkeys(range(6), 1)
    assert group.spans == [(0, 5, "acquired", 1)]
    assert group.acquire("b") == {}


def test_a_record_has_the_time_of_its_row(connection: Connection) -> None:
    """Where it has none of its own."""
    group = ShareGroup(connection, new_partition(connection), isolation="read_uncommitted")
    plain(connection, group.partition, b"0")
    ((time,),) = connection.execute(
        "select max_timestamp from msgtx.record_batch where partition_id = %s", [group.partition]
    ).fetchall()
    (found,) = acquire_records(connection, group.asking("a", 1)).records
    assert (found.max_timestamp, found.timestamps) == (time, None)


def test_a_topic_that_is_gone_has_nothing_for_a_group_that_has_not_begun(connection: Connection, group: ShareGroup) -> None:
    delete_topic_of(connection, group.partition)
    assert group.acquire("a") == {}
    assert count(connection, "share_state", "group_id = %s", group.group_id) == 0


# ── what is written ──


def test_who_finds_nothing_writes_nothing(connection: Connection) -> None:
    """However much others have in flight, delayed, or waiting for its key."""
    group = ShareGroup(connection, new_partition(connection), ordering="key", record_lock_duration_ms=900_000)
    plain(connection, group.partition, *[b"x"] * 4, keys=[b"k", b"l", b"k", b"m"])
    assert group.acquire("a", 2) == {0: 1, 1: 1}
    assert group.answer("a", {1: "release"}, delay=DELAY_MS) == []
    assert group.acquire("b") == {3: 1}  # the third one waits for the first one
    before = group.spans, group.versions
    for _ in range(2):
        assert group.acquire("c") == {}
        assert (group.spans, group.versions) == before


def test_who_meets_only_aborted_records_has_passed_them(connection: Connection, partition: int, group: ShareGroup) -> None:
    writer = Writer(connection)
    group.acquire("a")
    group.answer("a", dict.fromkeys(range(4), "accept"))
    writer.send_and_abort(partition, b"4", b"5")
    assert group.acquire("a") == {}
    ((at,),) = connection.execute(
        "select next_offset from msgtx.share_state where group_id = %s order by version desc limit 1", [group.group_id]
    ).fetchall()
    assert at == 6


def test_a_delayed_release_is_parked_once_beside_an_earlier_one(
    connection: Connection, partition: int, clock: Clock, writer: Writer
) -> None:
    """By whoever looks first after the commit, though that changes neither what is due first nor what it gets."""
    group = ShareGroup(connection, partition, record_lock_duration_ms=900_000)
    group.acquire("a")
    group.answer("a", {0: "release"}, delay=DELAY_MS)
    group.answer_in(writer.name, "a", {1: "release"}, delay=2 * DELAY_MS)
    writer.commit()
    for _ in range(2):
        assert group.acquire("b") == {}
    assert group.spans == [(2, 3, "acquired", 1)]
    clock("61 s")
    assert group.acquire("b") == {0: 2}
    clock("121 s")
    assert group.acquire("b") == {1: 2}


@pytest.mark.parametrize("waits", ["for its time", "for its key"])
def test_what_retention_has_removed_is_waited_for_no_more(
    connection: Connection, partition: int, clock: Clock, waits: str
) -> None:
    """Else every poll would look for it."""
    group = ShareGroup(connection, partition, ordering="none" if waits == "for its time" else "key")
    plain(connection, partition, b"4", b"5", keys=[b"k", b"k"])
    group.acquire("a", 5)
    assert group.acquire("b") == ({5: 1} if waits == "for its time" else {})
    if waits == "for its time":
        group.answer("a", {0: "release"}, delay=DELAY_MS)
    delete_records(connection, {partition: 6})
    clock("61 s")
    for _ in range(2):
        assert group.acquire("b") == {}
    assert (group.waits, group.spans) == ((False, 0), [])


def test_what_retention_has_removed_leaves_the_limit_of_locks_as_it_is(connection: Connection, partition: int) -> None:
    """At most `max_record_locks` records of a partition are in flight."""
    group = ShareGroup(connection, partition, max_record_locks=2)
    assert group.acquire("a") == {0: 1, 1: 1}
    delete_records(connection, {partition: 4})
    plain(connection, partition, b"4", b"5", b"6")
    assert group.acquire("b") == {4: 1, 5: 1}


def test_a_key_is_waited_for_once_and_only_while_another_member_has_it(connection: Connection) -> None:
    """Each poll looks for what waits for these keys."""
    partition = new_partition(connection)
    plain(connection, partition, b"0", b"1", b"2", b"3", keys=[b"k", b"k", b"other", b"k"])
    group = ShareGroup(connection, partition, ordering="key")
    assert group.acquire("b", 2) == {0: 1, 1: 1}
    assert group.acquire("a") == {2: 1}
    for member, offset, found in (("a", 2, {2: 2}), ("b", 1, {})):
        group.answer(member, {offset: "release"})
        assert group.acquire("a") == found
        assert group.waits == (False, 1)
