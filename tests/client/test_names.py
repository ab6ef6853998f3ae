"""Names that cannot be stored are refused with a typed error, and change nothing (I16)."""

import random
from collections.abc import Callable
from typing import Any

import pytest

import msgtx
from msgtx import TopicPartition, errors
from msgtx.arguments import NAME_BYTES, check_name
from msgtx.store.groups.members import join_group
from msgtx.store.spark import BatchName, begin_attempt
from msgtx.store.transactions.producers import init_producer_id
from tests.databases import Connection
from tests.refusals import refuses

BAD = {
    "long": "".join(random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=9_000)),  # too random to be compressed
    "just too long": "ä" * (NAME_BYTES // 2) + "a",
    "NUL": "a\0b",
    "half a letter": "a\ud800b",
}


def _init(client: msgtx.Client, topic: str, name: str) -> None:
    with client.producer(transactional_id=name):
        pass


def _poll(client: msgtx.Client, topic: str, name: str, **settings: object) -> None:
    with client.consumer(topic, **{"group": name, **settings}) as consumer:
        consumer.poll(0.1)


def _commit(client: msgtx.Client, topic: str, name: str) -> None:
    with client.consumer(group=name, enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 0})


def _offsets(client: msgtx.Client, topic: str, name: str) -> None:
    with client.producer(transactional_id=topic) as producer, producer.transaction() as transaction:
        transaction.send_offsets({TopicPartition(topic, 0): 0}, name)


CALLS: dict[str, Callable[[msgtx.Client, str, str], Any]] = {
    "transactional id": _init,
    "group": _poll,
    "committing group": _commit,
    "group of a transaction": _offsets,
    "instance id": lambda client, topic, name: _poll(client, topic, topic, group_instance_id=name),
    "snapshot": lambda client, topic, name: client.snapshots.save(name, client.snapshot([topic])),
    "topic": lambda client, topic, name: client.topics.create(name),
    "topic to send to": lambda client, topic, name: client.producer().send(name, b""),
    "group to delete": lambda client, topic, name: client.admin.groups.delete(name),
    "id to fence": lambda client, topic, name: client.admin.transactions.fence(name),
}


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_name_that_cannot_be_stored_is_refused(
    client: msgtx.Client,
    connection: Connection,
    unique: Callable[[str], str],
    call: Callable[[msgtx.Client, str, str], Any],
    name: str,
) -> None:
    topic = client.topics.create(unique("names")).name
    kept = "select name from msgtx.consumer_group union all select transactional_id from msgtx.producer"
    with pytest.raises(errors.MsgtxError) as raised:
        call(client, topic, name)
    assert not raised.value.retriable
    assert name not in [row[0] for row in connection.execute(kept)]


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_the_store_refuses_it_too(connection: Connection, name: str) -> None:
    """For programs that use the protocol directly, and for Spark."""
    for call in (
        lambda: init_producer_id(connection, name, timeout_ms=1_000),
        lambda: begin_attempt(connection, BatchName(name, "", 0), timeout_ms=1_000),
        lambda: join_group(
            connection, "g", member_id=name, group_instance_id=None, client_host=None, client_process=None,
            session_timeout_ms=6_000, strategy="range", topics=["t"], pattern=None,
        ),
    ):  # fmt: skip
        with pytest.raises(errors.InvalidRequest, match="name of"):
            call()


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "of a group has 1 to 1000 bytes of UTF-8, not 0$"), ("ab" * 501, f"not 1002: '{'ab' * 25}'…$")],
)
def test_a_refusal_shows_how_a_long_name_begins(name: str, message: str) -> None:
    with refuses(errors.InvalidRequest, name="a group"):
        check_name("a group", name)


def test_the_longest_names_are_stored(client: msgtx.Client, unique: Callable[[str], str]) -> None:
    """One index entry holds two of them."""
    topic = client.topics.create(unique("names")).name
    name = "".join(random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=NAME_BYTES))
    _init(client, topic, name)
    _poll(client, topic, name, group_instance_id=name)
    _offsets(client, topic, name[::-1])
    assert name in [group.group for group in client.admin.groups.list()]
