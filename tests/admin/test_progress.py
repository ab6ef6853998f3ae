"""`client.admin.partitions.progress`: how full partitions are, and how far each group is on them."""

import pytest

import msgtx
from msgtx import errors
from msgtx.store.groups.groups import commit_offsets
from msgtx.types import GroupMetadata, GroupProgress, OffsetAndMetadata
from tests.admin.conftest import Realm
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.sharing import ShareGroup
from tests.store.steps import Writer, named_topic, plain, unique


def commit(connection: Connection, group: str, partition: int, offset: int) -> None:
    commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(offset)}})


def places(groups: list[GroupProgress]) -> list[tuple[object, ...]]:
    """Return what groups have come to, without ages."""
    return [(each.group, each.is_share_group, each.offset, each.next_offset, each.lag) for each in groups]


def test_all_groups_are_on_one_bar_with_the_ends(client: msgtx.Client, connection: Connection) -> None:
    topic, (partition, _) = named_topic(connection, 2)
    writer, aborted = Writer(connection), Writer(connection)
    done, late, behind = unique("a-done"), unique("b-late"), unique("c-behind")
    plain(connection, partition, b"a", b"b", b"c")
    aborted.send_and_abort(partition, b"d")
    plain(connection, partition, b"e")
    writer.send(partition, b"open")
    for group, offset in ((done, 5), (late, 3), (behind, 1)):
        commit(connection, group, partition, offset)
    share = ShareGroup(connection, partition, name=unique("d-share"))
    share.acquire("a", most=2)
    found, empty = client.admin.partitions.progress(topic)
    assert (found.partition, found.log_start_offset, found.last_stable_offset, found.log_end_offset) == (0, 0, 5, 6)
    assert found.bytes == sum(row.bytes for row in client.admin.partitions.rows(msgtx.TopicPartition(topic, 0)).rows)
    # The lag of a group that stands in front of an aborted record begins behind it.
    assert places(found.groups) == [
        (share.name, True, 0, 2, 5),
        (behind, False, 1, None, 4),
        (late, False, 3, None, 1),
        (done, False, 5, None, 0),
    ]
    assert [each.lag_ms is None for each in found.groups] == [False, False, False, True]
    assert (empty.partition, empty.log_end_offset, empty.bytes, empty.groups, empty.groups_searched) == (1, 0, 0, [], True)
    assert [each.partition for each in client.admin.partitions.progress(topic, [1, 0])] == [1, 0]
    assert [each.partition for each in client.admin.partitions.progress(topic, most=1)] == [0]
    writer.abort()


def test_the_pairs_are_bounded_and_it_is_told(client: msgtx.Client, connection: Connection) -> None:
    topic, partitions = named_topic(connection, 3)
    for partition in partitions:
        commit(connection, f"{topic}-group", partition, 0)
    few = client.admin.partitions.progress(topic, pairs=0)
    assert [each.groups_searched for each in few] == [True, False, False]
    assert [len(each.groups) for each in few] == [1, 0, 0]
    assert all(each.groups_searched for each in client.admin.partitions.progress(topic))


@pytest.mark.parametrize("partitions", [[2], [-1]])
def test_a_partition_that_is_not_there_is_refused(
    client: msgtx.Client, connection: Connection, partitions: list[int]
) -> None:
    topic = named_topic(connection, 2)[0]
    with pytest.raises((errors.UnknownTopicOrPartition, errors.InvalidRequest)):
        client.admin.partitions.progress(topic, partitions)


def test_a_role_sees_its_topic_and_the_groups_that_it_may_use(realm: Realm) -> None:
    (topic, (partition,)), (theirs, _) = named_topic(realm.connection), named_topic(realm.connection)
    plain(realm.connection, partition, b"a")
    mine, other, share = unique("mine"), unique("other"), ShareGroup(realm.connection, partition, name=unique("share"))
    share.acquire("a")
    for group in (mine, other):
        commit(realm.connection, group, partition, 0)
    for rights, wanted in (
        ((f"observe:{topic}",), {mine, other, share.name}),
        ((f"consume:{topic}", f"consume:group:{mine}"), {mine}),
    ):
        with msgtx.connect(realm.roles.url_of(realm.roles.make(*rights))) as reader:
            (found,) = reader.admin.partitions.progress(topic)
            assert {each.group for each in found.groups} == wanted
            with pytest.raises((errors.AuthorizationFailed, errors.UnknownTopicOrPartition)):
                reader.admin.partitions.progress(theirs)
    with (
        msgtx.connect(realm.roles.url_of(realm.roles.make(f"produce:{topic}", "consume:others*"))) as writer,
        refuses(errors.AuthorizationFailed, right="consume"),
    ):
        writer.admin.partitions.progress(topic)
