"""`msgtx.wait_for_records`: a bounded poll on the server, for programs that cannot LISTEN."""

import time

import pytest

from msgtx import errors
from msgtx.database.calls import query
from msgtx.store.shares.shares import configure_share_group
from tests.databases import Background, Connection, Sessions
from tests.refusals import refuses
from tests.store.steps import Writer, named_topic, plain, unique

pytestmark = pytest.mark.slow


def more(connection: Connection, topic: str, group: str, timeout: str = "0 s") -> bool:
    ((found,),) = query(connection, "select msgtx.wait_for_records(%s, %s, %s::interval)", topic, group, timeout)
    return bool(found)


def test_a_group_has_records_until_it_has_taken_them(connection: Connection) -> None:
    (topic, (partition,)), group = named_topic(connection), unique("takers")
    assert not more(connection, topic, group)
    plain(connection, partition, b"a")
    assert more(connection, topic, group)
    query(connection, "select * from msgtx.take(%s, %s)", topic, group)
    assert not more(connection, topic, group)
    Writer(connection).send(partition, b"open")
    assert not more(connection, topic, group)  # I5: nothing that could be taken


def test_a_share_group_has_records_until_it_has_received_them(connection: Connection) -> None:
    (topic, (partition,)), group = named_topic(connection), unique("workers")
    configure_share_group(connection, group, {"auto_offset_reset": "earliest"})
    plain(connection, partition, b"a")
    assert more(connection, topic, group)
    query(connection, "select * from msgtx.receive(%s, %s)", topic, group)
    assert not more(connection, topic, group)


def test_a_call_ends_with_the_first_record_or_its_time(
    connection: Connection, open_connection: Sessions, background: Background
) -> None:
    (topic, (partition,)), group = named_topic(connection), unique("takers")
    began = time.monotonic()
    assert not more(connection, topic, group, "0.3 s")
    assert time.monotonic() - began > 0.25
    waiting = background.submit(more, open_connection(), topic, group, "60 s")
    plain(connection, partition, b"a")
    assert waiting.result(30)


@pytest.mark.parametrize("timeout", ["-1 s", "61 s"])
def test_a_wrong_time_is_refused(connection: Connection, timeout: str) -> None:
    topic, _ = named_topic(connection)
    with refuses(errors.InvalidRequest, name="timeout"):
        more(connection, topic, "group", timeout)
    with refuses(errors.UnknownTopicOrPartition, topic="nowhere"):
        more(connection, "nowhere", "group")
