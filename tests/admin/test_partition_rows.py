"""`client.admin.partitions.rows` and `msgtx topics rows`: the rows of a log, and what became of each."""

import json
from collections.abc import Callable

import pytest

import msgtx
from msgtx import RowState, TopicPartition, errors
from msgtx.store.append.append import append
from msgtx.store.topics.retention import delete_records
from msgtx.store.transactions.seal import seal
from tests.admin.conftest import Realm
from tests.cli.conftest import msgtx as program  # noqa: F401 - a fixture
from tests.cli.program import Ended
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.steps import Writer, batch, named_topic, plain, unique

pytestmark = pytest.mark.slow


def bases(found: msgtx.PartitionRows) -> list[int]:
    return [row.base_offset for row in found.rows]


def test_each_row_tells_its_state_and_the_ends_stand_beside(client: msgtx.Client, connection: Connection) -> None:
    topic, (partition,) = named_topic(connection)
    plain(connection, partition, b"x", b"x")
    committed = Writer(connection).send_and_commit(partition, b"x")
    aborted = Writer(connection).send_and_abort(partition, b"x")
    prepared, opened = Writer(connection), Writer(connection)
    prepared.send(partition, b"x")
    seal(connection, prepared.name, "external", tails=prepared.tails)
    opened.send(partition, b"x", b"y", b"z")
    found = client.admin.partitions.rows(TopicPartition(topic, 0))
    assert [row.state for row in found.rows] == ["plain", "committed", "aborted", "prepared", "open"]
    assert [row.transaction_id for row in found.rows] == [None, committed, aborted, prepared.name, opened.name]
    assert [row.transactional_id for row in found.rows][3:] == [prepared.transactional_id, opened.transactional_id]
    assert [(row.base_offset, row.last_offset, row.records) for row in found.rows][::4] == [(0, 1, 2), (5, 7, 3)]
    assert [row.decided_at is None for row in found.rows] == [True, False, False, True, True]
    assert (found.log_start_offset, found.last_stable_offset, found.log_end_offset) == (0, 4, 8)
    assert {row.compacted for row in found.rows} == {0}


def test_a_page_is_the_last_rows_or_those_in_front_of_an_offset_or_from_one_on(
    client: msgtx.Client, connection: Connection
) -> None:
    topic, (partition,) = named_topic(connection)
    for _ in range(5):
        append(connection, [batch(partition, b"x", b"y")])
    delete_records(connection, {partition: 3})
    place = TopicPartition(topic, 0)
    for asked, expected in (
        ({}, [2, 4, 6, 8]),
        ({"most": 2}, [6, 8]),
        ({"most": 2, "before_offset": 6}, [2, 4]),
        ({"before_offset": 2}, []),
        ({"from_offset": 5}, [4, 6, 8]),
        ({"from_offset": 0, "most": 1}, [2]),
        ({"from_offset": 3, "before_offset": 5}, [2, 4]),
        ({"from_offset": 10}, []),
    ):
        found = client.admin.partitions.rows(place, **asked)
        assert bases(found) == expected, asked
        assert (found.log_start_offset, found.log_end_offset) == (3, 10)


def test_an_empty_log_has_its_ends_and_no_rows(client: msgtx.Client, connection: Connection) -> None:
    topic, _ = named_topic(connection)
    assert client.admin.partitions.rows(TopicPartition(topic, 0)) == msgtx.PartitionRows(topic, 0, 0, 0, 0, [])
    with refuses(errors.UnknownTopicOrPartition):
        client.admin.partitions.rows(TopicPartition(topic, 1))
    with refuses(errors.InvalidRequest, name="most"):
        client.admin.partitions.rows(TopicPartition(topic, 0), 0)


def test_offsets_that_compaction_has_emptied_are_counted(client: msgtx.Client) -> None:
    topic = unique("compacted")
    client.topics.create(topic, cleanup_policy="compact")
    with client.producer() as producer:
        for value in range(3):
            producer.send(topic, b"%d" % value, key=b"k")
        producer.flush()
        producer.send(topic, b"last", key=b"k")
    client.sweep()
    rows = client.admin.partitions.rows(TopicPartition(topic, 0)).rows
    assert sum(row.records for row in rows) == 1
    assert sum(row.compacted for row in rows) == 3
    assert {row.state for row in rows} == {RowState.PLAIN}


def test_a_role_sees_rows_of_its_topics_alone(connection: Connection, realm: Realm) -> None:
    topic, (partition,) = named_topic(connection)
    Writer(connection, unique("hidden")).send_and_commit(partition, b"x")
    role = realm.roles.make(f"observe:{topic}", "produce:transactional_id:other")
    with msgtx.connect(realm.roles.url_of(role)) as guest:
        (row,) = guest.admin.partitions.rows(TopicPartition(topic, 0)).rows
        assert (row.state, row.transactional_id) == ("committed", None)
    role = realm.roles.make(f"produce:{topic}", "consume:other")
    with msgtx.connect(realm.roles.url_of(role)) as guest, refuses(errors.AuthorizationFailed, topic=topic):
        guest.admin.partitions.rows(TopicPartition(topic, 0))


def test_the_command_shows_the_same(program: Callable[..., Ended], connection: Connection) -> None:  # noqa: F811
    topic, (partition,) = named_topic(connection)
    writer = Writer(connection, f"\x1b[2J\u202e{topic}")
    name = writer.send_and_commit(partition, b"x")
    shown = json.loads(program("topics", "rows", topic, "-o", "json").out)
    (row,) = shown.pop("rows")
    assert shown == {
        "topic": topic, "partition": 0, "log_start_offset": 0, "last_stable_offset": 1, "log_end_offset": 1,
    }  # fmt: skip
    assert (row["state"], row["transaction_id"], row["transactional_id"]) == (
        "committed",
        str(name),
        writer.transactional_id,
    )
    assert row["appended_at"].endswith("Z")
    table = program("topics", "rows", topic)
    assert table.code == 0
    assert all(letter == "\n" or letter.isprintable() for letter in table.out.decode())
    assert (program("topics", "rows", topic, "--partition", "1").code, program("topics", "rows", "nowhere").code) == (2, 2)
