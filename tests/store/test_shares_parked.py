"""Share groups: records that are delayed, and records that wait for an earlier one with their key (internals: shares)."""

import copy
import random
import time
from collections.abc import Callable
from typing import Final

import pytest

from msgtx import errors
from msgtx.coordinator.sweep import sweep
from msgtx.database.pool import Engine
from msgtx.store.append.append import append
from msgtx.store.groups.groups import delete_group
from msgtx.store.monitoring import measure_shares
from msgtx.store.shares.shares import (
    acquire_records,
    describe_share_groups,
    reset_share_offsets,
    waiting_shares,
)
from msgtx.store.sweeps import sweeps
from msgtx.store.sweeps.sweeps import remove_superseded_shares
from msgtx.store.topics.retention import delete_records
from msgtx.store.topics.topics import create_topic, describe_topics
from msgtx.store.transactions.seal import complete_prepared, seal
from tests.databases import Connection
from tests.store.sharing import MINUTE, ShareGroup, fill
from tests.store.steps import Ending, Writer, batch, count, delete_topic_of, new_partition, new_topic, spent
from tests.store.test_compaction import compact, compacted_topic, put

Clock = Callable[..., None]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bare")]
FOREVER: Final = 900_000


@pytest.fixture
def partition(connection: Connection) -> int:
    return new_partition(connection)


@pytest.fixture
def group(connection: Connection, partition: int) -> ShareGroup:
    return ShareGroup(connection, partition, record_lock_duration_ms=FOREVER)


@pytest.fixture
def keyed(connection: Connection, partition: int) -> ShareGroup:
    return ShareGroup(connection, partition, record_lock_duration_ms=FOREVER, ordering="key", delivery_count_limit=1000)


# ── delay ──


def test_a_delayed_record_is_delivered_in_its_time_and_what_follows_it_earlier(group: ShareGroup, clock: Clock) -> None:
    group.fill("----", delays=[MINUTE, None, 2 * MINUTE, None])
    assert group.acquire("a") == {1: 1, 3: 1}
    assert group.acquire("b") == {}
    group.accept("a", 1, 3)
    clock("90 seconds")
    assert group.acquire("b") == {0: 1}
    clock("150 seconds")
    assert group.acquire("b") == {2: 1}
    group.accept("b", 0, 2)
    assert (group.spans, group.parked) == ([], 0)


def test_a_time_that_is_over_or_is_none_delays_nothing(connection: Connection, partition: int, group: ShareGroup) -> None:
    row = batch(
        partition, *[b"x"] * 4, headers=[[("msgtx.deliver-at", each)] for each in (b"soon", None, b"17", b"-9" * 20)]
    )
    append(connection, [row])
    assert group.acquire("a") == {0: 1, 1: 1, 2: 1, 3: 1}


def test_only_the_header_of_that_name_delays_a_record(connection: Connection, partition: int, group: ShareGroup) -> None:
    """Numbers in others are no times."""
    later = b"%d" % (int(time.time() * 1000) + MINUTE)
    append(connection, [batch(partition, b"0", b"1", headers=[[("msgtx.deliver-at", later), ("n", b"17")], [("n", later)]])])
    assert group.acquire("a") == {1: 1}
    assert group.parked == 1


def test_a_record_for_later_is_delayed_also_behind_what_was_read(group: ShareGroup, clock: Clock) -> None:
    group.fill("-")
    assert group.acquire("a") == {0: 1}
    group.fill("---", delays=[None, MINUTE])
    assert group.acquire("a") == {1: 1, 3: 1}
    clock("2 minutes")
    assert group.acquire("a") == {2: 1}


def test_records_for_one_time_are_one_row_whatever_their_keys(group: ShareGroup, clock: Clock) -> None:
    group.fill("ccabc", delays=[MINUTE] * 5)
    assert group.acquire("a") == {}
    assert group.parked == 1
    clock("2 minutes")
    assert group.acquire("a") == dict.fromkeys(range(5), 1)
    assert group.spans == [(0, 4, "acquired", 1)]


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_delayed_release_leaves_what_was_released_at_once_where_it_is(
    connection: Connection, partition: int, clock: Clock, ordering: str
) -> None:
    group = ShareGroup(connection, partition, record_lock_duration_ms=FOREVER, ordering=ordering)
    fill(connection, partition, "xy")
    group.acquire("a")
    group.answer("a", {1: "release"})
    group.answer("a", {0: "release"}, delay=MINUTE)
    assert (group.spans, group.parked) == ([(1, 1, "available", 1)], 1)
    assert group.acquire("b") == {1: 2}
    clock("2 minutes")
    assert group.acquire("b") == {0: 2}


def test_what_is_due_waits_while_more_is_in_flight_than_may_be(group: ShareGroup, clock: Clock) -> None:
    group.fill("---", delays=[MINUTE])
    assert group.acquire("a") == {1: 1, 2: 1}
    group.configure(max_record_locks=1)
    clock("2 minutes")
    assert group.acquire("b") == {}
    group.accept("a", 1, 2)
    assert group.acquire("b") == {0: 1}
    assert group.waits == (False, 0)


def test_a_released_record_comes_after_its_delay_and_others_before(group: ShareGroup, clock: Clock) -> None:
    group.fill("----")
    group.acquire("a")
    assert group.answer("a", {0: "release", 1: "release"}, delay=MINUTE) == []
    assert (group.spans, group.parked) == ([(2, 3, "acquired", 1)], 2)
    assert group.answer("a", {2: "release"}, delay=0) == []
    assert group.acquire("b") == {2: 2}
    clock("2 minutes")
    assert group.acquire("b") == {0: 2, 1: 2}


def test_the_back_off_of_a_group_grows_with_deliveries_up_to_its_limit(
    connection: Connection, partition: int, clock: Clock
) -> None:
    group = ShareGroup(
        connection, partition, release_backoff_ms=10_000, release_backoff_max_ms=30_000, record_lock_duration_ms=FOREVER
    )
    fill(connection, partition, "-")
    passed = 0
    for deliveries, seconds in enumerate((10, 20, 30), 1):
        assert group.acquire("a") == {0: deliveries}
        group.answer("a", {0: "release"})
        clock(f"{passed + seconds - 2} seconds")
        assert group.acquire("a") == {}
        passed += seconds + 1
        clock(f"{passed} seconds")
    assert group.acquire("a") == {0: 4}
    group.answer("a", {0: "release"}, delay=0)
    assert group.acquire("a") == {0: 5}
    group.answer("a", {0: "release"})
    assert group.acquire("a") == {}, "the last delivery was that: nothing is to wait for"
    assert group.letters == [(b"0", 0, 5, "delivery limit: released")]


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
@pytest.mark.parametrize("swept", [False, True])
def test_a_release_in_a_transaction_is_delayed_by_its_commit(
    group: ShareGroup, clock: Clock, engine: Engine, outcome: Ending, swept: bool, writer: Writer
) -> None:
    group.fill("--")
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "release"}, delay=MINUTE)
    writer.end(outcome)
    if swept:
        assert sweep(engine).shares_settled == 1
    assert group.acquire("b") == ({} if outcome == "COMMIT" else {0: 2})
    clock("2 minutes")
    assert group.acquire("b") == ({0: 2} if outcome == "COMMIT" else {})


def test_a_release_that_is_repeated_in_its_transaction_is_delayed_from_the_first_one(
    group: ShareGroup, clock: Clock, writer: Writer
) -> None:
    group.fill("-")
    group.acquire("a")
    for seconds in (0, 30):
        clock(f"{seconds} seconds")
        group.answer_in(writer.name, "a", {0: "release"}, delay=MINUTE, call=77)
    writer.commit()
    clock("61 seconds")
    assert group.acquire("b") == {0: 2}


def test_many_delayed_records_are_passed_and_then_cost_a_poll_nothing(
    connection: Connection, group: ShareGroup, clock: Clock
) -> None:
    """A poll looks at the time of the first one only; those that are due are found by their time."""
    for start in range(0, 100_000, 10_000):
        group.fill("-" * 10_000, delays=[MINUTE + start + each for each in range(10_000)])
    group.fill("--")
    while not (found := group.acquire("a")):
        pass
    assert found == {100_000: 1, 100_001: 1}
    rows = "select coalesce(sum(idx_tup_fetch + idx_scan), 0) from pg_stat_xact_all_tables where relname = 'share_parked'"
    with connection.transaction():
        group.acquire("a")
        assert connection.execute(rows).fetchone() == (0,)
    clock("61 seconds")
    with connection.transaction():
        assert group.acquire("a", 10) == dict.fromkeys(range(10), 1)
        (read,) = connection.execute(rows).fetchone() or (0,)
        assert read < 100


def test_what_is_due_comes_though_the_clock_was_set_back_meanwhile(group: ShareGroup, clock: Clock) -> None:
    group.fill("---", delays=[MINUTE, 2 * MINUTE])
    clock("90 seconds")
    assert group.acquire("a") == {0: 1, 2: 1}
    clock(None)
    assert group.answer("a", {0: "release"}, delay=1000) == []
    clock("2 seconds")
    assert group.acquire("a") == {0: 2}
    clock("3 minutes")
    assert group.acquire("a") == {1: 1}


def test_what_retention_removes_is_not_delivered_later(group: ShareGroup, clock: Clock) -> None:
    group.fill("---", delays=[MINUTE] * 3)
    group.acquire("a")
    group.remove_below(2)
    clock("2 minutes")
    assert group.acquire("a") == {2: 1}
    assert group.parked == 0


@pytest.mark.parametrize("why", ["its lock is over", "delayed", "waits for its key", "waited, before the order was changed"])
def test_who_asks_for_one_record_gets_one_though_retention_has_removed_others(
    connection: Connection, partition: int, clock: Clock, why: str
) -> None:
    """What is gone does not count as less than nothing."""
    ordering = "key" if why.startswith("wait") else "none"
    group = ShareGroup(connection, partition, record_lock_duration_ms=FOREVER, ordering=ordering)
    fill(connection, partition, "kkx", delays=[MINUTE] if why == "delayed" else [])
    fill(connection, partition, "klmnop")
    match why:
        case "its lock is over":
            assert (group.acquire("a", 1), group.acquire("a", 1)) == ({0: 1}, {1: 1})
            group.expire_locks("a")
        case "delayed":
            assert group.acquire("a", 1) == {1: 1}
            group.accept("a", 1)
        case _:
            assert (group.acquire("a", 1), group.acquire("b", 1)) == ({0: 1}, {2: 1})
    if "changed" in why:
        for member in "ab":
            group.leave(member)
        group.configure(ordering="none")
    delete_records(connection, {partition: 5})
    clock("2 minutes")
    for offset in (5, 6):
        assert group.acquire("c", 1) == {offset: 1}
    assert group.parked == 0


def test_a_reset_forgets_what_was_delayed(connection: Connection, partition: int, group: ShareGroup, clock: Clock) -> None:
    group.fill("-" * 3, delays=[MINUTE])
    assert group.acquire("a") == {1: 1, 2: 1}
    clock("30 minutes")  # no member is left
    reset_share_offsets(connection, group.name, {partition: 0})
    assert group.parked == 0
    clock(None)
    assert group.acquire("a") == {1: 1, 2: 1}
    assert group.parked == 1


@pytest.mark.parametrize(("asked", "at"), [(-5, 1), (2, 2), (99, 4)])
def test_a_reset_changes_what_its_group_has_of_its_partition(
    connection: Connection, partition: int, asked: int, at: int
) -> None:
    """Neither what other groups have of it, nor what the group has of others, which may be longer."""
    places = [partition, new_partition(connection), new_partition(connection)]
    for place, keys in zip(places, ("-" * 4, "-" * 9, "-"), strict=True):
        fill(connection, place, keys, delays=[MINUTE])
    fill(connection, places[1], "-")
    groups = [ShareGroup(connection, partition, record_lock_duration_ms=FOREVER) for _ in range(3)]
    for group in groups:
        for place in (places[1], places[0], places[2]):
            for _ in range(3 if place == places[1] else 1):
                group.partition = place
                group.acquire("a", 1)
    own = groups[1]
    own.leave("a")
    delete_records(connection, {partition: 1})

    def held(group: ShareGroup, place: int) -> object:
        group.partition = place
        where = "group_id = %s and partition_id = %s"
        return group.spans, count(connection, "share_parked", where, group.group_id, place)

    before = {(group, place): held(group, place) for group in groups for place in places}
    reset_share_offsets(connection, own.name, {partition: asked})
    after = {(group, place): held(group, place) for group in groups for place in places}
    assert after == before | {(own, partition): ([], 0)}
    del own.numbers["a"]
    own.partition = partition
    assert own.acquire("a") == dict.fromkeys(range(at, 4), 1)
    fill(connection, partition, "-")
    assert own.acquire("a") == {4: 1}, "what comes later is not passed over"


def test_parked_rows_go_with_their_topic(connection: Connection, partition: int, group: ShareGroup) -> None:
    group.fill("-" * 30, delays=[MINUTE + each for each in range(20)])
    group.acquire("a")
    assert group.parked == 20
    delete_topic_of(connection, partition)
    after = None
    while True:
        swept = sweeps.remove_superseded_shares(connection, after, None)
        if (after := swept.after) is None:
            break
    assert (group.parked, count(connection, "share_state", "group_id = %s", group.group_id)) == (0, 0)


def test_what_is_parked_is_lag_and_holds_the_start_offset(connection: Connection, group: ShareGroup) -> None:
    group.fill("-" * 4, delays=[MINUTE, MINUTE])
    group.acquire("a", 1)
    (state,) = describe_share_groups(connection, [group.name])
    assert (state.start_offset, state.parked, state.acquired, state.lag) == (0, 2, 1, 4)


def test_what_is_told_of_a_group_is_its_own_in_each_partition(connection: Connection) -> None:
    """Others are found first, have parked records at the same offsets, and their logs begin and end elsewhere."""
    beside, first, second = (new_partition(connection) for _ in range(3))
    fill(connection, beside, "---", delays=[MINUTE])
    fill(connection, first, "------", delays=[MINUTE, 2 * MINUTE, 3 * MINUTE])
    fill(connection, second, "kk-", delays=[None, None, MINUTE])
    settings = {"record_lock_duration_ms": FOREVER, "ordering": "key"}
    other, own, none = (ShareGroup(connection, beside, **settings) for _ in range(3))
    for group, members in ((other, "ax"), (own, "bc")):
        for place in (beside, first, second):
            group.partition = place
            for member in members:
                if (group, place) != (own, beside):
                    group.acquire(member, 1 if place == second else 3)
    other.partition = first
    for offset in (3, 4):
        other.accept("a", offset)
    delete_records(connection, {beside: 1, first: 2})
    append(connection, [batch(first, b"6", b"7")])

    empty, *_ = describe_share_groups(connection, [none.name])
    assert (empty.members, empty[3:-1]) == (1, (None,) * 10)
    states = describe_share_groups(connection, [own.name])
    told = [
        (each.partition_id, each.start_offset, each.next_offset, each.acquired, each.parked, each.lag) for each in states
    ]
    assert told == [(first, 2, 6, 3, 1, 4 + 2), (second, 0, 3, 1, 2, 3)]

    spans = connection.execute(
        "select s.partition_id, t.name = s.topic, s.first_offset, s.last_offset, s.state, s.member_id"
        " from msgtx.share_spans s join msgtx.partition p using (partition_id) join msgtx.topic t using (topic_id)"
        " where s.group_name = %s order by 1, 3",
        [own.name],
    ).fetchall()
    assert spans == [
        (first, True, 2, 2, "delayed", None),
        (first, True, 3, 5, "acquired", "b"),
        (second, True, 0, 0, "acquired", "b"),
        (second, True, 1, 1, "waiting", None),
        (second, True, 2, 2, "delayed", None),
    ]

    measured = [each for each in measure_shares(connection, most=999) if each is not None and each.group_name == own.name]
    assert sorted((each.records, each.in_flight, each.parked) for each in measured) == [(3, 1, 2), (6, 3, 1)]


def test_what_is_waited_for_is_told_of_the_group_itself(connection: Connection, writer: Writer) -> None:
    """Another group, other members, and other transactions, also of the same producer, are found first."""
    _, partition = new_topic(connection, 2)
    fill(connection, partition, "-kkk-", delays=[None, None, None, None, MINUTE])
    settings = {"record_lock_duration_ms": FOREVER, "ordering": "key"}
    other, own = (ShareGroup(connection, partition, **settings) for _ in range(2))
    for group in (other, own):
        assert [list(group.acquire(member, most)) for member, most in (("b", 1), ("c", 1), ("d", 9))] == [[0], [1], []]
    create_topic(connection, f"{own.name}-dead-letters", 1, {})
    letters = describe_topics(connection, [f"{own.name}-dead-letters"])[f"{own.name}-dead-letters"].partition_ids[0]
    fill(connection, letters, "-")
    own.partition = letters
    assert list(own.acquire("b")) == [0]
    own.partition = partition
    Writer(connection)
    for _ in range(2):
        writer.send(partition, b"x", timeout_ms=1_000)
        writer.commit()
    writer.init()
    writer.send(partition, b"x", timeout_ms=2_000)
    assert seal(connection, writer.name, "external", tails=writer.tails).sealed is not None
    complete_prepared(connection, writer.name, "COMMIT")
    writer.next()
    own.answer_in(writer.name, "b", {0: "accept"})

    (told,) = [each for each in waiting_shares(connection, most=99)[0] if each.group_name == own.name]
    assert (told.partition.partition, told.pending, told.acquired, told.delayed, told.waiting) == (1, 1, 1, 1, 2)
    assert told.member_id == "c"
    assert (told.transaction_id, told.transactional_id) == (writer.name, writer.transactional_id)
    assert (told.timeout_ms, told.seal_kind) == (60_000, None)


def test_a_repeated_acquisition_takes_nothing_that_became_due(group: ShareGroup, clock: Clock) -> None:
    group.fill("--", delays=[MINUTE])
    assert group.acquire("a", call=900) == {1: 1}
    clock("2 minutes")
    assert group.acquire("a", call=900) == {1: 1}
    assert group.acquire("a", call=901) == {0: 1}


# ── order by key ──


def test_records_of_a_key_go_to_one_member_and_other_keys_proceed(keyed: ShareGroup) -> None:
    keyed.fill("xxyx-z-y")
    assert keyed.acquire("a", 2) == {0: 1, 1: 1}
    assert keyed.acquire("b") == {2: 1, 4: 1, 5: 1, 6: 1, 7: 1}
    assert keyed.acquire("c") == {}
    assert keyed.acquire("a") == {3: 1}, "who has the key gets what follows"
    keyed.accept("a", 0, 1, 3)
    keyed.fill("xy")
    assert keyed.acquire("c") == {8: 1}
    keyed.accept("b", 2, 7)
    assert keyed.acquire("c") == {9: 1}
    assert keyed.parked == 0


def test_what_is_parked_waits_in_its_own_group_and_partition(connection: Connection, clock: Clock) -> None:
    """Others have the same keys and times, and are found first, or last."""
    first, second = new_partition(connection), new_partition(connection)
    for place in (first, second):
        fill(connection, place, "kkk-", delays=[None, None, None, MINUTE])
    settings = {"record_lock_duration_ms": FOREVER, "ordering": "key"}
    groups = [ShareGroup(connection, first, **settings) for _ in range(3)]
    own, others = groups[1], [groups[0], copy.copy(groups[1]), groups[2]]
    others[1].partition = second

    def counts() -> list[int]:
        where = "group_id = %s and partition_id = %s"
        return [count(connection, "share_parked", where, each.group_id, each.partition) for each in (own, *others)]

    for other in others:
        assert (other.acquire("a", 1), other.acquire("b")) == ({0: 1}, {})
    assert counts() == [0, 2, 2, 2]
    assert own.acquire("c") == {0: 1, 1: 1, 2: 1}
    own.expire_locks("c")
    assert own.acquire("d") == {0: 2, 1: 2, 2: 2}
    own.accept("d", 0, 1)
    own.answer("d", {2: "release"}, delay=2 * MINUTE)
    assert counts() == [2, 2, 2, 2]
    clock("61 seconds")
    assert own.acquire("d") == {3: 1}
    assert counts() == [1, 2, 2, 2]
    clock("121 seconds")
    assert own.acquire("d") == {2: 3}
    assert own.waits[0] is False
    for done, other in enumerate(others, 1):
        assert counts() == [0, *[0] * (done - 1), *[2] * (4 - done)]
        other.accept("a", 0)
        assert other.acquire("b") == {1: 1, 2: 1, 3: 1}
    assert counts() == [0] * 4


def test_a_delayed_retry_holds_its_key_back_in_its_own_group_and_partition(connection: Connection) -> None:
    """In others, the same key waits for a time."""
    first, second = new_partition(connection), new_partition(connection)
    groups = [ShareGroup(connection, first, record_lock_duration_ms=FOREVER, ordering="key") for _ in range(3)]
    own, others = groups[1], [groups[0], copy.copy(groups[1]), groups[2]]
    others[1].partition = second
    for place in (first, second):
        fill(connection, place, "kk")
    for each in (own, *others):
        assert (each.acquire("a", 1), each.acquire("b")) == ({0: 1}, {})
    for other in others:
        assert other.answer("a", {0: "release"}, delay=MINUTE) == []
        assert other.acquire("b") == {}
    own.calls = others[1].calls  # of the same member
    own.accept("a", 0)
    assert own.acquire("b") == {1: 1}
    assert [each.parked for each in (groups[0], groups[2])] == [2, 2]


def test_keys_and_times_of_other_partitions_at_the_same_offsets_are_others(connection: Connection) -> None:
    """Their rows begin elsewhere, also within those of this one."""
    places = [new_partition(connection) for _ in range(3)]
    group = ShareGroup(connection, places[1], record_lock_duration_ms=FOREVER, ordering="key")
    for place in (places[0], places[2]):
        for _ in range(6):
            fill(connection, place, "z", delays=[MINUTE])
    for _ in range(2):
        fill(connection, places[1], "xyx")
    assert [group.acquire(member, 1) for member in "ab"] == [{0: 1}, {1: 1}]
    assert group.acquire("c") == {}
    assert group.acquire("a") == {2: 1, 3: 1, 5: 1}
    assert group.acquire("b") == {4: 1}
    assert group.parked == 0


def test_records_of_a_compacted_row_have_their_own_keys(connection: Connection) -> None:
    """Where the row begins with records that are gone, and is acquired part by part."""
    group = ShareGroup(connection, compacted_topic(connection), record_lock_duration_ms=FOREVER, ordering="key")
    for pairs in ("c1 a1 b1 d1", "c2", "z1"):
        put(connection, group.partition, pairs)
    compact(connection)
    put(connection, group.partition, "a2 b2 d2")
    assert [group.acquire("a", 1) for _ in range(2)] == [{1: 1}, {2: 1}]
    assert group.acquire("b") == {3: 1, 4: 1, 5: 1, 8: 1}
    assert group.acquire("a") == {6: 1, 7: 1}


@pytest.mark.parametrize("removed", [False, True], ids=["", "beside one that is due and was removed"])
def test_of_what_waits_for_a_key_as_much_is_taken_as_is_asked_for(keyed: ShareGroup, clock: Clock, removed: bool) -> None:
    keyed.fill("dkxkxk", delays=[MINUTE])
    assert (keyed.acquire("a", 1), keyed.acquire("b")) == ({1: 1}, {2: 1, 4: 1})
    assert keyed.parked == 3
    keyed.accept("a", 1)
    if removed:
        keyed.remove_below(1)
        clock("2 minutes")
    assert keyed.acquire("c", 1) == {3: 1}
    assert keyed.parked == (1 if removed else 2)


def test_only_what_waits_for_a_key_that_is_free_is_delivered(keyed: ShareGroup) -> None:
    """And what waits for another one does not come in its way."""
    keyed.fill("xyyyx")
    assert [keyed.acquire(member, 1) for member in "ab"] == [{0: 1}, {1: 1}]
    assert keyed.acquire("c") == {}
    keyed.accept("a", 0)
    assert keyed.acquire("c", 1) == {4: 1}
    assert keyed.acquire("c") == {}
    keyed.accept("b", 1)
    assert keyed.acquire("c") == {2: 1, 3: 1}


def test_what_waited_for_a_key_waits_for_a_delayed_retry_of_it(keyed: ShareGroup, clock: Clock) -> None:
    """And does not come in the way of what waited for another key."""
    keyed.fill("xy")
    keyed.acquire("a")
    for key in "xy":
        keyed.fill(key)
        assert keyed.acquire("b") == {}
    keyed.answer("a", {0: "release"}, delay=MINUTE)
    keyed.accept("a", 1)
    assert keyed.acquire("b", 1) == {3: 1}
    assert keyed.acquire("b") == {}
    clock("2 minutes")
    assert keyed.acquire("b", 1) == {0: 2}
    keyed.accept("b", 0)
    assert keyed.acquire("b") == {2: 1}


def test_a_poll_looks_once_for_each_key_that_something_waits_for(keyed: ShareGroup, clock: Clock) -> None:
    """Not for that of a record for later, nor for one that is delivered."""
    keyed.fill("lkk", delays=[MINUTE])
    assert [keyed.acquire("a", 1) for _ in range(2)] == [{1: 1}, {2: 1}]
    assert keyed.waits == (True, 0)
    keyed.fill("k", delays=[MINUTE])
    assert keyed.acquire("b") == {}
    assert keyed.waits == (True, 0)
    for _ in range(2):
        keyed.fill("k")
        assert keyed.acquire("b") == {}
        assert keyed.waits == (True, 1)
    keyed.answer("a", {1: "release"}, delay=2 * MINUTE)
    clock("90 seconds")
    assert keyed.acquire("b", 1) == {0: 1}
    assert keyed.waits == (True, 1)
    clock("3 minutes")
    assert keyed.acquire("b", 2) == {1: 2}
    assert keyed.waits == (False, 1)


def test_what_waits_is_delivered_after_the_order_was_changed(keyed: ShareGroup, clock: Clock) -> None:
    """And nothing waits for a key any more."""
    keyed.fill("lkkx")
    assert [keyed.acquire("a", 1) for _ in range(2)] == [{0: 1}, {1: 1}]
    assert keyed.acquire("b") == {3: 1}
    keyed.accept("a", 1)
    keyed.accept("b", 3)
    keyed.answer("a", {0: "release"}, delay=MINUTE)
    for member in "ab":
        keyed.leave(member)
    keyed.configure(ordering="none")
    keyed.fill("m")
    assert keyed.acquire("c") == {2: 1, 4: 1}
    keyed.fill("lm", delays=[None, MINUTE])
    assert keyed.acquire("c") == {5: 1}
    clock("2 minutes")
    assert keyed.acquire("c") == {0: 2, 6: 1}


def test_what_waited_for_a_key_comes_in_order_to_whoever_asks_next(keyed: ShareGroup) -> None:
    keyed.fill("xxxx")
    assert keyed.acquire("a", 1) == {0: 1}
    assert keyed.acquire("b") == {}
    keyed.accept("a", 0)
    assert keyed.acquire("b", 1) == {1: 1}
    assert keyed.acquire("a") == {}
    keyed.accept("b", 1)
    assert keyed.acquire("a") == {2: 1, 3: 1}


def test_a_member_that_dies_gives_the_key_back_from_its_first_record_on(keyed: ShareGroup) -> None:
    keyed.fill("xyxyx")
    assert keyed.acquire("a", 3) == {0: 1, 1: 1, 2: 1}
    assert keyed.acquire("b") == {}
    keyed.expire_locks("a")
    assert keyed.acquire("b", 1) == {0: 2}
    assert keyed.acquire("c") == {1: 2, 3: 1}
    keyed.accept("b", 0)
    assert keyed.acquire("c") == {2: 2, 4: 1}


def test_who_releases_a_record_gives_back_what_it_holds_behind_it(keyed: ShareGroup, clock: Clock) -> None:
    """Nobody does the second before the first: not the member either."""
    keyed.fill("xyxyx")
    keyed.acquire("a", 4)
    assert keyed.answer("a", {0: "release"}, delay=MINUTE) == []
    assert [error for error, _ in keyed.answer("a", {2: "accept"})] == ["InvalidRecordState"]
    keyed.accept("a", 1, 3)
    assert keyed.acquire("b") == {}
    clock("2 minutes")
    assert keyed.acquire("b", 1) == {0: 2}
    assert keyed.acquire("a") == {}
    keyed.accept("b", 0)
    assert keyed.acquire("a") == {2: 2, 4: 1}


def test_without_an_order_who_releases_a_record_keeps_what_it_holds_behind_it(group: ShareGroup) -> None:
    group.fill("kkk")
    group.acquire("a")
    assert group.answer("a", {0: "release"}) == []
    assert group.acquire("b") == {0: 2}
    group.accept("a", 1, 2)


def test_a_key_is_held_back_by_a_delayed_retry_and_not_by_a_record_for_later(keyed: ShareGroup, clock: Clock) -> None:
    keyed.fill("xyxy", delays=[MINUTE])
    assert keyed.acquire("a", 1) == {1: 1}
    keyed.answer("a", {1: "release"}, delay=MINUTE)
    assert keyed.acquire("a") == {2: 1}
    keyed.accept("a", 2)
    clock("2 minutes")
    assert keyed.acquire("b", 2) == {0: 1, 1: 2}
    keyed.accept("b", 0, 1)
    assert keyed.acquire("b") == {3: 1}


@pytest.mark.parametrize("in_front", ["a delayed record", "one whose key another has", "one whose key comes again later"])
def test_who_asks_for_one_record_gets_the_first_one_that_may_be_delivered(keyed: ShareGroup, in_front: str) -> None:
    """What is passed on the way does not count, nor is anything taken in its place."""
    keyed.fill("k")
    keyed.acquire("a")
    if in_front == "one whose key comes again later":
        keyed.answer("a", {0: "release"}, delay=MINUTE)
    keyed.fill("xkxy", delays=[None, MINUTE] if in_front == "a delayed record" else [])
    assert [keyed.acquire("b", 1) for _ in range(3)] == [{1: 1}, {3: 1}, {4: 1}]
    assert keyed.acquire("b") == {}


def test_a_key_that_is_released_takes_along_neither_other_keys_nor_what_is_accepted(keyed: ShareGroup) -> None:
    keyed.fill("xyx")
    for _ in range(3):
        keyed.acquire("a", 1)
    assert keyed.answer("a", {0: "accept", 1: "release"}) == []
    keyed.accept("a", 2)
    assert keyed.acquire("b") == {1: 2}


def test_what_is_pending_behind_a_record_that_comes_again_stays_so(keyed: ShareGroup, writer: Writer) -> None:
    """I17. It is accepted by the commit."""
    keyed.fill("xx")
    for _ in range(2):
        keyed.acquire("a", 1)
    keyed.answer_in(writer.name, "a", {1: "accept"})
    keyed.expire_locks("a", offset=0)
    assert keyed.acquire("b") == {}
    writer.commit()
    assert keyed.acquire("b") == {0: 2}
    keyed.accept("b", 0)
    assert keyed.acquire("b") == {}
    assert keyed.spans == []


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_a_pending_acknowledgement_holds_the_key_until_the_decision(
    keyed: ShareGroup, outcome: Ending, writer: Writer
) -> None:
    keyed.fill("xx")
    keyed.acquire("a", 1)
    keyed.answer_in(writer.name, "a", {0: "accept"})
    assert keyed.acquire("b") == {}
    writer.end(outcome)
    assert keyed.acquire("b", 1) == ({1: 1} if outcome == "COMMIT" else {0: 2})


@pytest.mark.parametrize("how", ["aborted", "released in a transaction", "lock expired"])
@pytest.mark.parametrize("answer", ["accept", "reject", "renew", "accept and acquire", "accept in a transaction"])
def test_a_member_holds_nothing_behind_a_record_of_the_key_that_comes_again(
    connection: Connection, partition: int, keyed: ShareGroup, how: str, answer: str, writer: Writer
) -> None:
    """Else it would do the second before the first. Other keys and what is in front stay as they are."""
    keyed.fill("xyx-x")
    for _ in range(5):
        keyed.acquire("a", 1)
    match how:
        case "aborted":
            keyed.answer_in(writer.name, "a", {0: "accept"})
            assert keyed.answer("a", {4: "accept"}) == [], "this far, nothing has failed"
            writer.abort()
        case "released in a transaction":
            keyed.answer_in(writer.name, "a", {0: "release", 4: "accept"})
            writer.commit()
        case _:
            assert keyed.answer("a", {4: "accept"}) == []
            keyed.expire_locks("a", offset=0)
    if answer == "accept and acquire":
        asked = keyed.asking("a", 1)._replace(answers=keyed.answers("a", {2: "accept"}))
        assert [error for error, _ in acquire_records(connection, asked).refused] == ["InvalidRecordState"]
    elif answer == "accept in a transaction":
        with pytest.raises(errors.InvalidRecordState):
            keyed.answer_in(Writer(connection).name, "a", {2: "accept"})
    else:
        assert [error for error, _ in keyed.answer("a", {2: answer})] == ["InvalidRecordState"]
    assert keyed.answer("a", {1: "accept", 3: "accept"}) == []
    assert keyed.acquire("b") == {0: 2, 2: 2}
    assert keyed.answer("b", {0: "accept", 2: "accept"}) == []
    assert keyed.spans == []


def test_an_answer_beside_a_released_record_looks_at_the_keys_of_the_two(connection: Connection, keyed: ShareGroup) -> None:
    """Not at those of everything that its member holds."""
    held = 100
    for place in range(held):
        keyed.fill(chr(ord("A") + place))
        assert keyed.acquire("a", 1) == {place: 1}
    assert keyed.answer("a", {0: "release"}) == []
    assert 0 < spent(connection, "record_batch", "idx_tup_fetch", lambda: keyed.accept("a", held - 1)) < 10
    assert [error for error, _ in keyed.answer("a", {0: "accept"})] == ["InvalidRecordState"]
    assert len(keyed.spans) == held - 1


@pytest.mark.parametrize("looked", [False, True])
def test_a_record_that_retention_has_removed_holds_and_gives_nothing_back(keyed: ShareGroup, looked: bool) -> None:
    """It does not come again, whether another member has looked since or not."""
    keyed.fill("xx")
    for _ in range(2):
        keyed.acquire("a", 1)
    keyed.expire_locks("a", offset=0)
    keyed.remove_below(1)
    assert not looked or keyed.acquire("b") == {}
    keyed.accept("a", 1)


def test_what_is_given_back_comes_with_its_key_and_is_seen_to(
    connection: Connection, partition: int, keyed: ShareGroup, writer: Writer
) -> None:
    """Whoever looks: a member, the views, the sweep."""
    keyed.fill("xx")
    keyed.acquire("a", 2)
    keyed.answer_in(writer.name, "a", {0: "accept"})
    writer.abort()
    (state,) = (each for each in describe_share_groups(connection, [keyed.name]) if each.partition_id == partition)
    assert (state.available, state.acquired) == (2, 0)
    connection.execute("select msgtx.settle_shares()")
    assert keyed.spans == [(0, 0, "available", 1), (1, 1, "available", 1)]
    assert keyed.acquire("a") == {0: 2, 1: 2}


@pytest.mark.parametrize("why", ["locked", "too many"])
def test_a_dead_letter_that_is_not_written_yet_holds_nothing_back(
    connection: Connection, partition: int, keyed: ShareGroup, open_connection: Callable[[], Connection], why: str
) -> None:
    """It does not come again, so what is delivered behind it may be done."""
    keyed.configure(delivery_count_limit=1)
    keyed.fill("x" * 503)
    assert len(keyed.acquire("a", 1 if why == "locked" else 501)) in (1, 501)
    keyed.expire_locks("a")
    letters = 1 if why == "locked" else 501
    connection.execute("select msgtx.ensure_dead_letters(%s)", [keyed.name])
    with open_connection().transaction() as other:
        if why == "locked":
            other.connection.execute(
                "select msgtx.lock_partition(msgtx.dead_letter_partition(%s, %s))", [keyed.name, partition]
            )
        assert keyed.acquire("a", 1) == {letters: 1}
        assert keyed.answer("a", {letters: "accept"}) == []
    assert keyed.acquire("a", 1) == {letters + 1: 1}
    assert keyed.answer("a", {letters + 1: "accept"}) == []
    assert [offset for _, offset, _, _ in keyed.letters] == list(range(letters))


def test_a_record_that_was_sent_for_later_gives_nothing_back(keyed: ShareGroup, clock: Clock) -> None:
    """Its time is its place in the order, not its offset."""
    keyed.fill("xyxx", delays=[MINUTE])
    assert keyed.acquire("a") == {1: 1, 2: 1, 3: 1}
    clock("2 minutes")
    assert keyed.acquire("b") == {}
    assert keyed.answer("a", {2: "accept"}) == []
    assert keyed.acquire("a") == {0: 1}
    assert keyed.answer("a", {3: "accept", 0: "accept"}) == []


def test_a_dead_letter_lets_its_key_go_on(keyed: ShareGroup) -> None:
    keyed.fill("xx")
    keyed.configure(delivery_count_limit=2)
    for count_ in (1, 2):
        assert keyed.acquire("a", 1) == {0: count_}
        keyed.expire_locks("a")
    assert keyed.acquire("b") == {1: 1}
    assert [letter[:3] for letter in keyed.letters] == [(b"0", 0, 2)]


def test_a_hot_key_that_waits_does_not_use_up_what_may_be_in_flight(keyed: ShareGroup) -> None:
    keyed.configure(max_record_locks=10)
    keyed.fill("x" * 3000 + "y")
    assert keyed.acquire("a", 1) == {0: 1}
    found: dict[int, int] = {}
    for _ in range(10):
        found |= keyed.acquire("b")
    assert found == {3000: 1}
    assert keyed.parked <= 100, "records of one key in a row are one"


@pytest.mark.parametrize("seed", range(8))
def test_keys_stay_in_order_whatever_happens(connection: Connection, keyed: ShareGroup, clock: Clock, seed: int) -> None:
    """Members come and go, die, release and reject, in transactions, too: what is delivered has no earlier record of its key
    that is not done, but with the same member; no other member has a record of the key; nothing is lost."""
    drawn = random.Random(seed)
    keys = [drawn.choice("abcdefgh-") for _ in range(300)]
    for start in range(0, 300, 60):
        keyed.fill("".join(keys[start : start + 60]))
    done: set[int] = set()
    held: dict[int, str] = {}
    pending: dict[int, tuple[str, str, Writer]] = {}
    delivered: dict[int, int] = dict.fromkeys(range(300), 0)
    seconds = 0

    def acquire(member: str) -> None:
        for offset, deliveries in keyed.acquire(member, drawn.randint(1, 30)).items():
            assert offset not in done | held.keys() | pending.keys()
            delivered[offset] += 1
            assert deliveries == delivered[offset]
            held[offset] = member
            if keys[offset] == "-":
                continue
            same = [each for each in range(300) if keys[each] == keys[offset] and each != offset]
            assert {held[each] for each in same if each in held} <= {member}
            assert {pending[each][0] for each in same if each in pending} <= {member}
            assert [each for each in same if each < offset and not {each} & (done | held.keys() | pending.keys())] == []

    def answer(member: str, delay: int | None) -> None:
        mine = [offset for offset, holder in held.items() if holder == member]
        chosen = sorted(drawn.sample(mine, drawn.randint(0, len(mine))))
        answers = {offset: drawn.choice(("accept", "accept", "release", "reject")) for offset in chosen}
        if not answers:
            return
        behind = {
            each
            for each in mine
            if each not in answers and keys[each] != "-"
            and any(answers[o] == "release" and o < each and keys[o] == keys[each] for o in answers)
        }  # fmt: skip
        writer = Writer(connection) if drawn.random() < 0.3 else None
        if writer is None:
            assert keyed.answer(member, answers, delay=delay) == []
        else:
            keyed.answer_in(writer.name, member, answers, delay=delay)
        for offset in (*answers, *behind):
            del held[offset]
            if writer is not None:
                pending[offset] = (member, answers.get(offset, "release"), writer)
            elif answers.get(offset) in ("accept", "reject"):
                done.add(offset)

    def decide_one() -> None:
        if pending:
            writer = drawn.choice(list(pending.values()))[2]
            outcome = drawn.choice(["COMMIT", "ABORT"])
            writer.end(outcome)
            for offset, (_, what, whose) in list(pending.items()):
                if whose is writer:
                    del pending[offset]
                    if outcome == "COMMIT" and what != "release":
                        done.add(offset)
                    elif keys[offset] != "-":  # what is held behind it is given back
                        for each in [each for each in held if each > offset and keys[each] == keys[offset]]:
                            del held[each]

    for _ in range(250):
        member = drawn.choice("ABCDE")
        match drawn.randrange(10):
            case 0 | 1 | 2 | 3:
                acquire(member)
            case 4 | 5 | 6:
                answer(member, drawn.choice([None, 0, 2_000]))
            case 7:
                keyed.join(member)
                keyed.expire_locks(member)
                for offset in [offset for offset, holder in held.items() if holder == member]:
                    del held[offset]
            case 8:
                decide_one()
            case 9:
                seconds += 1
                clock(f"{seconds} seconds")
    clock(f"{seconds + 5} seconds")
    while pending:
        decide_one()
    keyed.expire_locks(*keyed.numbers)
    held.clear()
    for _ in range(2000):
        if len(done) == 300:
            break
        acquire("Z")
        done |= held.keys()
        keyed.accept("Z", *held)
        held.clear()
    assert done == set(range(300))
    assert keyed.parked == 0


def test_a_deleted_group_takes_along_what_is_in_flight_and_what_waits_and_others_keep_theirs(
    connection: Connection, partition: int, clock: Clock
) -> None:
    groups = [ShareGroup(connection, partition, record_lock_duration_ms=24 * 60 * MINUTE, ordering="key") for _ in range(3)]
    fill(connection, partition, "xx")
    for group in groups:
        assert group.acquire("a", 1) == {0: 1}
        assert group.acquire("b") == {}
        assert group.parked == 1
    clock("1 hour")  # no member lives
    delete_group(connection, groups[1].name)
    clock(None)
    assert [(len(group.spans), group.parked) for group in groups] == [(1, 1), (0, 0), (1, 1)]
    first, _, third = (group.name for group in groups)
    assert [found.group_name for found in describe_share_groups(connection, [group.name for group in groups])] == [
        first,
        third,
    ]


# ── what is gone from the log ──


def test_each_delayed_record_is_looked_up_in_its_turn(connection: Connection) -> None:
    """Also one behind many that are still there."""
    group = ShareGroup(
        connection, new_partition(connection, cleanup_policy="compact"), record_lock_duration_ms=FOREVER, ordering="key"
    )
    put(connection, group.partition, "a1 b1 c1")
    group.acquire("a")
    group.answer("a", {0: "release", 1: "release", 2: "release"}, delay=3_600_000)
    put(connection, group.partition, "c2 z1")
    compact(connection)
    look = f"select dropped from msgtx.drop_removed({group.group_id}, {group.partition}, 1, true)"
    assert sum(connection.execute(look).fetchone()[0] for _ in range(200)) == 1  # type: ignore[index]
    assert group.parked == 2


@pytest.mark.parametrize("way", ["retention", "compaction"])
@pytest.mark.parametrize("when", ["new", "released"])
def test_a_delayed_record_that_is_gone_holds_no_key(connection: Connection, way: str, when: str) -> None:
    """It is done: later records with its key are delivered, those that nobody has met and those that are delivered again."""
    settings = {"cleanup_policy": "compact"} if way == "compaction" else {}
    group = ShareGroup(connection, new_partition(connection, **settings), record_lock_duration_ms=FOREVER, ordering="key")
    put(connection, group.partition, "k1")
    group.acquire("a")
    group.answer("a", {0: "release"}, delay=3_600_000)
    put(connection, group.partition, "k2 x1")
    if when == "released":
        assert group.acquire("b") == {2: 1}, "the first one of the key waits for its time"
    if way == "compaction":
        put(connection, group.partition, "z1")
        compact(connection)
        remove_superseded_shares(connection, None, None)  # as each member does, with its heartbeats
    else:
        group.remove_below(1)
    found = group.acquire("c")
    assert found.pop(1) == 1
    assert set(found) <= {2, 3}
    put(connection, group.partition, "k3")
    assert group.acquire("b") == {}, "another member has the key"
    group.answer("c", {1: "accept"})
    assert len(group.acquire("c")) == 1
