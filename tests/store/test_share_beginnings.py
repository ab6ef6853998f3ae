"""Where a share group begins with a topic, and with what is made under its name later (internals: shares)."""

import concurrent.futures
from collections.abc import Callable

import pytest

from msgtx import errors
from msgtx.store.append.append import append
from msgtx.store.groups.groups import delete_group, delete_offsets
from msgtx.store.groups.members import leave_group
from msgtx.store.shares.shares import (
    Acquiring,
    acquire_records,
    configure_share_group,
    describe_share_groups,
    ensure_dead_letters,
    new_member_number,
    redrive_dead_letters,
    reset_share_offsets,
    share_group_names,
)
from msgtx.store.topics.topics import alter_topic, create_topic, delete_topic, describe_topics
from tests.databases import Connection, backend, wait_for_lock
from tests.refusals import refuses
from tests.store.sharing import ANYTHING, ShareGroup, join
from tests.store.steps import batch, new_partition, unique

pytestmark = pytest.mark.usefixtures("bare")


def made(connection: Connection, name: str, partitions: int = 1, **settings: object) -> list[int]:
    create_topic(connection, name, partitions, settings)
    return list(describe_topics(connection, [name])[name].partition_ids)


def acquired(connection: Connection, group: str, member: int, partitions: list[int], call: int = 1) -> set[tuple[int, int]]:
    found = acquire_records(connection, Acquiring(group, member, call, partitions, 100, ANYTHING)).records
    return {(each.range.partition_id, at) for each in found for at in range(each.range.first, each.range.last + 1)}


@pytest.mark.parametrize("looked", [True, False])
def test_a_partition_that_was_added_is_read_from_its_beginning(connection: Connection, looked: bool) -> None:
    """With `latest`, too, and whoever looks first: the group began with the topic before."""
    topic, group = unique("topic"), unique("share")
    (first,) = made(connection, topic)
    member = join(connection, group, topic).number
    if looked:
        acquired(connection, group, member, [first])
    alter_topic(connection, topic, 2, {})
    ids = list(describe_topics(connection, [topic])[topic].partition_ids)
    append(connection, [batch(ids[1], b"0", b"1")])
    if not looked:
        member = join(connection, group, topic, member="b").number
    assert acquired(connection, group, member, [ids[1], first], 2) == {(ids[1], 0), (ids[1], 1)}


@pytest.mark.parametrize("stays", [True, False])
def test_a_topic_that_was_made_again_is_read_from_its_beginning(connection: Connection, stays: bool) -> None:
    topic, group = unique("topic"), unique("share")
    made(connection, topic)
    member = join(connection, group, topic).number
    if not stays:
        leave_group(connection, group, "a")
    delete_topic(connection, topic)
    ids = made(connection, topic, 2)
    append(connection, [batch(each, b"0") for each in ids])
    if not stays:
        member = join(connection, group, topic, member="b").number
    assert acquired(connection, group, member, ids, 2) == {(each, 0) for each in ids}


def test_with_a_topic_that_is_new_to_it_a_group_begins_by_its_setting(connection: Connection) -> None:
    """Also when it has read others for long."""
    old, new, group = unique("topic"), unique("topic"), unique("share")
    made(connection, old)
    join(connection, group, old)
    (partition,) = made(connection, new)
    append(connection, [batch(partition, b"0")])
    member = join(connection, group, old, new, member="b").number
    append(connection, [batch(partition, b"1")])
    assert acquired(connection, group, member, [partition]) == {(partition, 1)}


def test_what_is_made_after_the_join_for_its_name_is_read_from_its_beginning(connection: Connection) -> None:
    topic, group = unique("topic"), unique("share")
    member = join(connection, group, topic).number
    (partition,) = made(connection, topic)
    append(connection, [batch(partition, b"0")])
    join(connection, group, topic, member="b")
    assert acquired(connection, group, member, [partition]) == {(partition, 0)}


def test_a_reset_stays_where_a_group_begins_afterwards(connection: Connection) -> None:
    topic, group = unique("topic"), unique("share")
    ids = made(connection, topic, 2)
    append(connection, [batch(each, b"0", b"1") for each in ids])
    configure_share_group(connection, group, {})
    reset_share_offsets(connection, group, {ids[0]: 1})
    member = join(connection, group, topic).number
    assert acquired(connection, group, member, ids) == {(ids[0], 1)}


def test_a_group_that_was_deleted_and_made_anew_begins_anew(connection: Connection) -> None:
    topic, group = unique("topic"), unique("share")
    (partition,) = made(connection, topic)
    join(connection, group, topic)
    leave_group(connection, group, "a")
    append(connection, [batch(partition, b"0")])
    delete_group(connection, group)
    assert connection.execute("select from msgtx.share_topic where topic_name = %s", [topic]).rowcount == 0
    member = join(connection, group, topic).number
    assert acquired(connection, group, member, [partition]) == set()


# ── who a member is ──


def test_a_member_is_known_by_a_number_that_it_alone_knows(connection: Connection) -> None:
    group, number = unique("share"), new_member_number()
    assert join(connection, group, number=number).number == number
    assert join(connection, group, number=number).number == number, "asked again"
    with refuses(errors.InvalidRequest, group=group, reason="another member"):
        join(connection, group, number=new_member_number())
    others = [join(connection, group, member=f"m{at}").number for at in range(20)]
    assert len(set(others)) == 20
    assert min(others) >= 1 << 60
    (shown,) = {row[0] for row in connection.execute(f"select member_number from msgtx.describe_members('{group}')")}
    assert shown == 0


def test_a_join_that_is_repeated_after_its_session_was_over_is_a_join(
    connection: Connection, clock: Callable[[object], None]
) -> None:
    """Its answer was lost, and another member has taken it out meanwhile; the sweep of its heartbeat has not come yet."""
    topic, group, number = unique("topic"), unique("share"), new_member_number()
    (partition,) = made(connection, topic)
    join(connection, group, topic, number=number)
    clock("2000 s")
    join(connection, group, topic, member="b")
    assert join(connection, group, topic, number=number).number == number
    append(connection, [batch(partition, b"0")])
    assert acquired(connection, group, number, [partition]) == {(partition, 0)}


def test_a_number_that_another_member_has_is_refused(connection: Connection) -> None:
    group, number = unique("share"), new_member_number()
    join(connection, group, number=number)
    for name, member in ((group, "b"), (unique("share"), "a")):
        with refuses(errors.InvalidRequest, group=name, reason="number"):
            join(connection, name, member=member, number=number)


@pytest.mark.parametrize("number", [0, 1, (1 << 60) - 1])
def test_a_number_that_can_be_guessed_is_refused(connection: Connection, number: int) -> None:
    group = unique("share")
    with refuses(errors.InvalidRequest, group=group, reason="guessable"):
        join(connection, group, number=number)
    assert group not in share_group_names(connection)


@pytest.mark.parametrize(
    ("topics", "reason"), [([""], "topic"), (["."], "topic"), ([f"t{at}" for at in range(10_001)], "topics")]
)
def test_names_of_topics_that_cannot_be_are_refused(connection: Connection, topics: list[str], reason: str) -> None:
    group = unique("share")
    with refuses(errors.InvalidRequest, group=group, reason=reason):
        join(connection, group, *topics)
    assert group not in share_group_names(connection)


# ── where dead letters go ──


def test_a_group_does_not_read_its_own_dead_letters(connection: Connection) -> None:
    topic, group = unique("topic"), unique("share")
    for letters, settings in ((topic, {"dead_letter_topic": topic}), (f"{group}-dead-letters", {"dead_letter_topic": None})):
        configure_share_group(connection, group, settings)
        with refuses(errors.ConfigError, group=group, reason="own letters") as refused:
            join(connection, group, unique("other"), letters)
        assert letters in str(refused.value)
    assert describe_share_groups(connection, [group])[0].members == 0
    join(connection, group, topic)
    with refuses(errors.ConfigError, group=group, reason="own letters"):
        configure_share_group(connection, group, {"dead_letter_topic": topic})
    leave_group(connection, group, "a")
    with refuses(errors.ConfigError, group=group, reason="own letters"):  # its place there is none of letters
        configure_share_group(connection, group, {"dead_letter_topic": topic})
    join(connection, unique("share"), f"{group}-dead-letters")  # another group may


def test_dead_letters_are_not_compacted(connection: Connection) -> None:
    group, compacted, letters = unique("share"), unique("topic"), unique("letters")
    made(connection, compacted, cleanup_policy="compact,delete")
    with refuses(errors.ConfigError, group=group, reason="compacted"):
        configure_share_group(connection, group, {"dead_letter_topic": compacted})
    made(connection, f"{group}-dead-letters", cleanup_policy="compact")
    with refuses(errors.ConfigError, group=group, reason="compacted"):
        join(connection, group)
    with refuses(errors.ConfigError, group=group, reason="compacted"):
        configure_share_group(connection, group, {})
    made(connection, letters)
    configure_share_group(connection, group, {"dead_letter_topic": letters})
    for policy in ("compact", "compact,delete"):
        with refuses(errors.ConfigError, group=group, name="cleanup_policy"):
            alter_topic(connection, letters, None, {"cleanup_policy": policy})
    alter_topic(connection, letters, None, {"retention_ms": 1000})
    delete_topic(connection, letters)
    with refuses(errors.ConfigError, group=group, name="cleanup_policy"):
        made(connection, letters, cleanup_policy="compact")


def test_a_topic_is_not_compacted_while_a_group_takes_it_for_its_dead_letters(
    connection: Connection, open_connection: Callable[[], Connection]
) -> None:
    group, letters, other = unique("share"), unique("letters"), open_connection()
    made(connection, letters)
    with concurrent.futures.ThreadPoolExecutor(1) as thread, connection.transaction():
        configure_share_group(connection, group, {"dead_letter_topic": letters})
        altered = thread.submit(alter_topic, other, letters, None, {"cleanup_policy": "compact"})
        wait_for_lock(connection, backend(other))
    with refuses(errors.ConfigError, group=group, name="cleanup_policy"):
        altered.result()


def test_letters_of_a_group_that_was_deleted_are_not_those_of_the_next_one(connection: Connection) -> None:
    """They would be sent back twice."""
    partition, name = new_partition(connection), unique("share")
    append(connection, [batch(partition, b"0", b"1")])
    before = ShareGroup(connection, partition, name=name)
    ensure_dead_letters(connection, name)
    before.acquire("a")
    before.answer("a", {0: "reject"})
    assert redrive_dead_letters(connection, name, 0, upto=None, most=10, skip_missing=False).sent == 1
    before.answer("a", {1: "reject"})
    leave_group(connection, name, "a")
    delete_group(connection, name)
    configure_share_group(connection, name, {})
    assert redrive_dead_letters(connection, name, 0, upto=None, most=10, skip_missing=False).sent == 0
    letters = describe_topics(connection, [f"{name}-dead-letters"])[f"{name}-dead-letters"].partition_ids[0]
    assert [(row.partition_id, row.next_offset) for row in describe_share_groups(connection, [name])] == [(letters, 2)]
    leave_group(connection, name, "a")
    reset_share_offsets(connection, name, {letters: 0})  # who wants them says so
    assert redrive_dead_letters(connection, name, 0, upto=None, most=10, skip_missing=False).sent == 2


def test_members_whose_session_is_over_leave_their_places(connection: Connection, clock: Callable[..., None]) -> None:
    """As in a consumer group: a fleet that crashes again and again does not lock itself out."""
    group = unique("share")
    connection.execute("update msgtx.setting set value = 2 where name = 'group_max_members'")
    try:
        for member in ("a", "b"):
            join(connection, group, member=member)
        with pytest.raises(errors.GroupMaxSizeReached):
            join(connection, group, member="c")
        clock("2 hours")
        join(connection, group, member="c")
    finally:
        connection.execute("update msgtx.setting set value = 1000 where name = 'group_max_members'")
    assert describe_share_groups(connection, [group])[0].members == 1


def test_a_share_group_has_no_offsets_to_delete(connection: Connection) -> None:
    partition, group = new_partition(connection), unique("share")
    join(connection, group)
    with refuses(errors.ConfigError, group=group, reason="share group"):
        delete_offsets(connection, group, [partition])
