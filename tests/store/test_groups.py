"""What an administrator asks of consumer groups, and does to them (internals: groups)."""

from datetime import UTC, datetime, timedelta

import pytest

from msgtx import errors
from msgtx.store.fetch.records import first_records
from msgtx.store.groups.groups import (
    ListedGroup,
    Neglected,
    Stalled,
    commit_offsets,
    committed_offsets,
    delete_group,
    delete_offsets,
    list_groups,
    neglected_groups,
    reset_offsets,
    stalled_partitions,
)
from msgtx.store.groups.members import assign_partitions, describe_members, leave_group, release_partitions
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.databases import Clock, Connection, Sessions
from tests.refusals import refuses
from tests.store.conftest import Blocked
from tests.store.roster import Roster, join
from tests.store.sharing import ShareGroup
from tests.store.steps import (
    Writer,
    count,
    decide_by_hand,
    new_partition,
    new_topic,
    plain,
    plain_batches,
    seal,
    topic_of,
    unique,
)


def commit(connection: Connection, group: str, partition: int, offset: int) -> None:
    commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(offset)}})


def offsets(connection: Connection, group: str) -> dict[int, int]:
    return {p: at.at.offset for p, at in committed_offsets(connection, group, None).items() if at.at is not None}


def assigned(connection: Connection, group: str, targets: dict[int, int]) -> None:
    state = describe_members(connection, group)
    assert state is not None
    assert assign_partitions(
        connection, group, generation=state.generation, topics_version=state.topics_version, targets=targets
    )


def listed(connection: Connection, group: str) -> ListedGroup:
    (found,) = list_groups(connection, [group])
    return found


# ── list ──


def test_groups_are_listed_by_name_and_unknown_ones_are_not(connection: Connection, partition: int) -> None:
    one, other = sorted((unique("group"), unique("group")))
    for name in (other, one):
        commit(connection, name, partition, 1)
    assert [group.group_name for group in list_groups(connection, [other, unique("none"), one])] == [one, other]
    assert {one, other} <= {group.group_name for group in list_groups(connection, None)}
    assert list_groups(connection, []) == []


def test_a_group_is_listed_as_its_rows_are(connection: Connection, group: str, clock: Clock) -> None:
    first, second = new_topic(connection, 2)
    join(connection, unique("another"), "behind", pattern="t.*", topics_version=0)
    moving = Roster(connection, 1)
    moving.join("a")
    for targets in ({moving.partitions[0]: "a"}, {}):
        assert moving.assign(targets)
    one = join(connection, group, "one")
    assert listed(connection, group) == ListedGroup(group, one.generation, "cooperative-sticky", 1, 0, False, False)
    assigned(connection, group, {first: one.member_number, second: one.member_number})
    assert listed(connection, group).settled
    two = join(connection, group, "two")
    assert (listed(connection, group).members, listed(connection, group).settled) == (2, False)
    assigned(connection, group, {first: one.member_number, second: two.member_number})
    assert not listed(connection, group).settled, "the second partition is not handed over yet"
    release_partitions(connection, group, one.member_number, [second])
    assert listed(connection, group).settled
    new_partition(connection)
    assert not listed(connection, group).settled, "there are other topics than the assignment was made of"
    clock("1 minute")
    assert (listed(connection, group).members, listed(connection, group).overdue) == (0, 2)


def test_a_group_without_members_keeps_its_name_and_its_offsets_are_told(connection: Connection) -> None:
    group, partition = unique("group"), new_partition(connection)
    commit(connection, unique("another"), partition, 1)
    join(connection, group, "one")
    assert leave_group(connection, group, "one")
    assert (listed(connection, group).members, listed(connection, group).has_offsets) == (0, False)
    commit(connection, group, partition, 1)
    assert listed(connection, group).has_offsets


@pytest.mark.usefixtures("bare")
def test_groups_in_which_nobody_does_what_is_to_be_done_are_told(connection: Connection, clock: Clock) -> None:
    """Each by its own members, their own heartbeats and timeouts; those that are in order are not told."""
    start = datetime(2030, 1, 1, tzinfo=UTC)
    clock(start)
    patient, well, halved, stale = (Roster(connection) for _ in range(4))
    ShareGroup(connection, new_partition(connection))
    patient.join("a", session_timeout_ms=60_000)
    well.join("a", session_timeout_ms=10_000)
    halved.join("dead", session_timeout_ms=10_000)
    halved.join("lives", session_timeout_ms=30_000)
    halved.beat("dead", 99)
    for name, timeout_ms in (("a", 12_000), ("b", 22_000), ("over", 24_000)):
        stale.join(name, session_timeout_ms=timeout_ms)
    assert patient.assign(dict.fromkeys(patient.partitions, "a"))
    assert well.assign(dict.fromkeys(well.partitions, "a"))
    assert halved.assign(dict(zip(halved.partitions, ("dead", "dead", "dead", "lives"), strict=True)))
    clock(start + timedelta(seconds=20))
    for group, name in ((well, "a"), (stale, "a"), (stale, "b")):
        group.beat(name)
    assert neglected_groups(connection, most=9) == ([], 0)
    now = start + timedelta(seconds=25)
    clock(now)
    expected = [
        Neglected(halved.name, halved.generation, 1, 30_000, None, 1, 3, start, now, 2),
        Neglected(stale.name, stale.generation, 2, 22_000, start, 0, None, None, now, 2),
    ]
    expected.sort(key=lambda one: one.group_name)
    assert neglected_groups(connection, most=9) == (expected, 2)
    assert neglected_groups(connection, most=1) == (expected[:1], 2)


@pytest.mark.usefixtures("bare")
def test_partitions_at_which_a_living_member_stands_still_are_told(connection: Connection, clock: Clock) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    clock(start)
    group = Roster(connection, 6)
    dead, read, empty, stuck, late, free = group.partitions
    group.join("dead", session_timeout_ms=10_000)
    group.join("lives")
    owners = {**dict.fromkeys((dead, free), "dead"), **dict.fromkeys((read, empty, stuck, late), "lives")}
    assert group.assign(owners)
    writer = Writer(connection)
    for partition in (dead, read, stuck, free):
        writer.send(partition, b"aborted")
    writer.abort()
    for partition in (dead, read, stuck, free):
        plain_batches(connection, partition, b"1", b"2")
    for partition, owner in owners.items():
        group.commit(owner, partition, 0)
    group.commit("lives", read, 3)
    group.release("dead", free)
    neighbour = Roster(connection, 2)  # of another topic; it has read one record
    neighbour.join("theirs", client_process=2)
    theirs, _ = neighbour.partitions
    assert neighbour.assign({theirs: "theirs"})
    plain(connection, theirs, b"1")
    neighbour.commit("theirs", theirs, 1)
    clock(start + timedelta(seconds=20))
    plain(connection, late, b"1")
    plain_batches(connection, theirs, b"2", b"3")
    now = start + timedelta(seconds=30)
    clock(now)
    since, topic = start + timedelta(seconds=20), topic_of(connection, stuck)
    expected = [
        Stalled(group.name, topic, 3, 0, start, 2, "lives", "here", 1, now, 3),
        Stalled(group.name, topic, 4, 0, since, 1, "lives", "here", 1, now, 3),
        Stalled(neighbour.name, topic_of(connection, theirs), 0, 1, since, 2, "theirs", "here", 2, now, 3),
    ]
    expected.sort(key=lambda one: (one.since, one.group_name))
    assert stalled_partitions(connection, silence_ms=30_001, most=9) == ([], 0)
    assert stalled_partitions(connection, silence_ms=30_000, most=9) == ([expected[0]._replace(found=1)], 1)
    assert stalled_partitions(connection, silence_ms=10_000, most=9) == (expected, 3)
    assert stalled_partitions(connection, silence_ms=10_000, most=1) == (expected[:1], 3)
    group.commit("lives", stuck, 3)
    assert stalled_partitions(connection, silence_ms=30_000, most=9) == ([], 0)


# ── delete ──


def test_a_group_is_deleted_with_its_offsets_and_another_one_is_not(connection: Connection, writer: Writer) -> None:
    partition, group, other = new_partition(connection), unique("group"), unique("group")
    commit(connection, other, partition, 2)
    commit(connection, group, partition, 1)
    seal(connection, writer.name, "external", offset=(group, partition, 5))
    delete_group(connection, group)
    assert list_groups(connection, [group]) == []
    decide_by_hand(connection, writer.name, "COMMIT")
    assert committed_offsets(connection, group, None) == {}, "P17: a pending one does not come back"
    assert count(connection, "group_offset", "partition_id = %s", partition) == 1, "the other one's"
    assert offsets(connection, other) == {partition: 2}
    commit(connection, group, partition, 7)
    assert offsets(connection, group) == {partition: 7}


def test_a_group_that_is_not_there_is_not_deleted(connection: Connection) -> None:
    with refuses(errors.GroupNotFound, group="nowhere"):
        delete_group(connection, "nowhere")


def test_a_group_with_members_is_not_deleted_until_their_sessions_are_over(
    connection: Connection, partition: int, group: str, clock: Clock
) -> None:
    one = join(connection, group, "one")
    assigned(connection, group, {partition: one.member_number})
    with refuses(errors.GroupNotEmpty, group=group):
        delete_group(connection, group)
    join(connection, group, "two")
    with refuses(errors.GroupNotEmpty, group=group):
        delete_group(connection, group)
    join(connection, group, "three", session_timeout_ms=90_000)
    clock("1 minute")
    with refuses(errors.GroupNotEmpty, group=group):
        delete_group(connection, group)
    clock("2 minutes")
    delete_group(connection, group)
    assert list_groups(connection, [group]) == []
    for table in ("group_member", "group_assignment", "group_offset"):
        assert count(connection, table, "group_id = %s", one.group_id) == 0
    again = join(connection, group, "four")
    assert again.member_number > one.member_number
    metadata = GroupMetadata(group, "one", one.generation)
    with pytest.raises(errors.UnknownMember):  # P16
        commit_offsets(connection, {metadata: {partition: OffsetAndMetadata(1)}})


# ── delete offsets ──


def test_offsets_are_deleted_with_the_pending_ones_and_others_stay(connection: Connection) -> None:
    first, second, third = new_topic(connection, 3)
    group, writer = unique("group"), Writer(connection)
    for partition in (first, second):
        commit(connection, group, partition, 1)
        commit(connection, group, partition, 2)
    seal(connection, writer.name, "external", offset=(group, first, 5))
    assert delete_offsets(connection, group, [first, third]) == [first]
    decide_by_hand(connection, writer.name, "COMMIT")
    assert offsets(connection, group) == {second: 2}
    assert delete_offsets(connection, group, [first]) == []
    with refuses(errors.GroupNotFound, group="nowhere"):
        delete_offsets(connection, "nowhere", [first])


def test_an_offset_that_only_waits_for_a_decision_is_deleted(connection: Connection) -> None:
    """P17."""
    partition, group, writer = new_partition(connection), unique("group"), Writer(connection)
    seal(connection, writer.name, "external", offset=(group, partition, 5))
    assert delete_offsets(connection, group, [partition]) == [partition]
    decide_by_hand(connection, writer.name, "COMMIT")
    assert committed_offsets(connection, group, None) == {}


def test_offsets_that_a_living_member_owns_are_not_deleted(connection: Connection, clock: Clock) -> None:
    (first, second), group = new_topic(connection, 2), unique("group")
    commit(connection, group, first, 1)
    commit(connection, group, second, 1)
    one = join(connection, group, "one")
    join(connection, group, "two", session_timeout_ms=90_000)
    assigned(connection, group, {second: one.member_number})
    with refuses(errors.GroupSubscribedToTopic, group=group):
        delete_offsets(connection, group, [first, second])
    assert offsets(connection, group) == {first: 1, second: 1}
    assert delete_offsets(connection, group, [first]) == [first]
    clock("1 minute")
    assert delete_offsets(connection, group, [first, second]) == [second], "the member that lives owns nothing"


# ── reset ──


def test_a_reset_counts_over_what_was_committed_and_what_is_pending(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    group, writer = unique("group"), Writer(connection)
    commit(connection, group, first, 9)
    seal(connection, writer.name, "external", offset=(group, first, 12))
    reset_offsets(connection, group, {first: 3, second: 4})
    assert offsets(connection, group) == {first: 3, second: 4}
    decide_by_hand(connection, writer.name, "COMMIT")
    assert offsets(connection, group) == {first: 3, second: 4}
    reset_offsets(connection, group, {})


def test_a_reset_of_a_group_that_is_not_there_makes_it(connection: Connection, partition: int, group: str) -> None:
    reset_offsets(connection, group, {partition: 5})
    assert offsets(connection, group) == {partition: 5}


def test_a_group_with_members_is_not_reset_and_those_whose_session_is_over_are_removed(
    connection: Connection, partition: int, group: str, clock: Clock
) -> None:
    one = join(connection, group, "one")
    assigned(connection, group, {partition: one.member_number})
    with refuses(errors.GroupNotEmpty, group=group):
        reset_offsets(connection, group, {partition: 5})
    reset_offsets(connection, group, {})  # which asks for nothing
    assert offsets(connection, group) == {}
    clock("1 minute")
    reset_offsets(connection, group, {partition: 5})
    assert offsets(connection, group) == {partition: 5}
    state = describe_members(connection, group)
    assert state is not None
    assert state.members == []
    assert state.generation > one.generation
    with pytest.raises(errors.UnknownMember):
        commit_offsets(connection, {GroupMetadata(group, "one", state.generation): {partition: OffsetAndMetadata(1)}})


@pytest.mark.parametrize(
    ("offset", "refusal", "words"),
    [
        (-1, errors.InvalidRequest, "offset -1 cannot be committed"),
        (1, errors.UnknownTopicOrPartition, "partition 2147483647 does not exist"),
    ],
)
def test_a_reset_that_cannot_be_changes_nothing(
    connection: Connection, partition: int, group: str, offset: int, refusal: type[errors.MsgtxError], words: str
) -> None:
    other = partition if offset < 0 else 2**31 - 1
    with pytest.raises(refusal, match=words):
        reset_offsets(connection, group, {partition: 1} | {other: offset})
    assert committed_offsets(connection, group, None) == {}


def test_what_an_administrator_changes_waits_for_commits_that_are_on_the_way(
    connection: Connection, open_connection: Sessions, blocked: Blocked
) -> None:
    """A commit holds the group's lock to its end: a reset is newer than it, a deletion takes it along."""
    for change, left in (
        (lambda c, g, p: reset_offsets(c, g, {p: 1}), 1),
        (lambda c, g, p: delete_offsets(c, g, [p]), None),
    ):
        partition, group = new_partition(connection), unique("group")
        commit(connection, group, partition, 3)
        committing = open_connection()
        with committing.transaction():
            commit(committing, group, partition, 9)
            waiting = blocked(change, group, partition)
        waiting.result(10)
        assert offsets(connection, group).get(partition) == left


# ── first records ──


def test_the_first_record_is_the_first_that_would_be_delivered(connection: Connection, clock: Clock) -> None:
    clock(datetime(2026, 1, 1, tzinfo=UTC))
    now_ms = 1_767_225_600_000
    beside, partition, empty = new_topic(connection, 3)
    plain(connection, beside, *[b"x"] * 9, timestamp=now_ms)
    gone, writer, undecided = Writer(connection), Writer(connection), Writer(connection)
    gone.send(partition, b"a", b"b")
    gone.decide("ABORT")
    plain(connection, partition, b"c", b"d", timestamps=[now_ms - 5_000, now_ms - 4_000])  # offsets 2, 3
    writer.send(partition, b"e", timestamp=now_ms - 3_000)
    writer.decide("COMMIT")
    plain(connection, partition, b"f", timestamp=now_ms + 9_000)
    undecided.send(partition, b"g")
    plain(connection, partition, b"h")

    def first(position: int) -> tuple[int, int] | None:
        found = first_records(connection, {partition: position, empty: 0})
        assert set(found) <= {partition}
        return (found[partition].record_offset, found[partition].age_ms) if found else None

    expected = {0: (2, 5_000), 1: (2, 5_000), 2: (2, 5_000), 3: (3, 4_000), 4: (4, 3_000), 5: (5, 0), 6: None, 99: None}
    assert {position: first(position) for position in expected} == expected
    undecided.decide("COMMIT")
    assert first(6) is not None
    connection.execute("update msgtx.partition set log_start_offset = 4 where partition_id = %s", [partition])
    assert first(0) == (4, 3_000)
    connection.execute(
        "update msgtx.record_batch set offset_deltas = '{}', \"values\" = '{}', timestamps = null, record_count = 0"
        " where partition_id = %s and base_offset = 4",
        [partition],
    )
    assert first(0) == (5, 0), "a row that compaction has emptied"


def test_a_look_for_the_first_record_reads_no_more_than_it_must(connection: Connection, partition: int) -> None:
    """A plan made on an empty log reads one row of a long one."""
    assert first_records(connection, {partition: 0}) == {}
    plain_batches(connection, partition, *[b"x"] * 300)
    with connection.transaction():
        assert first_records(connection, {partition: 150})[partition].record_offset == 150
        (read,) = connection.execute(
            "select pg_stat_get_xact_tuples_fetched('msgtx.record_batch'::regclass)"
            " + pg_stat_get_xact_tuples_returned('msgtx.record_batch'::regclass)"
        ).fetchone() or (None,)
    assert read is not None
    assert read < 50
