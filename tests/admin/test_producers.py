"""`client.admin.producers` and `client.admin.transactions.find_hanging`."""

from collections.abc import Callable

import pytest

import msgtx
from msgtx import TopicPartition, errors
from tests.databases import Connection
from tests.refusals import refuses

SECONDS = 30.0


def test_a_partition_tells_its_producers(client: msgtx.Client) -> None:
    client.topics.create("described", partitions=2)
    with client.producer(transactional_id="described") as producer:
        producer.begin_transaction()
        producer.send("described", b"a", partition=1)
        producer.flush(SECONDS)
        (state,) = client.admin.producers.describe(TopicPartition("described", 1))
        assert isinstance(state, msgtx.ProducerState)
        assert (state.epoch, state.last_sequence, state.coordinator_epoch, state.transaction_start_offset) == (0, 0, -1, 0)
        assert state.producer_id == producer.transaction_id.producer_id
        assert client.admin.producers.describe(TopicPartition("described", 0)) == []
        producer.abort_transaction()
    for partition in (TopicPartition("described", 2), TopicPartition("described", -1), TopicPartition("nowhere", 0)):
        with pytest.raises(errors.UnknownTopicOrPartition):
            client.admin.producers.describe(partition)


def test_a_transaction_that_nobody_ends_is_found_by_topic_and_partition(
    client: msgtx.Client, clock: Callable[..., None]
) -> None:
    client.topics.create("hanging", partitions=2)
    client.topics.create("other")
    find = client.admin.transactions.find_hanging
    with client.producer(transactional_id="it's [stuck]", transaction_timeout_ms=30_000) as producer:
        transaction = producer.begin_transaction()
        producer.send("hanging", b"x", partition=1)
        producer.flush(SECONDS)
        assert find(topic="hanging") == []
        clock("1 minute")
        (found,) = find()
        assert isinstance(found, msgtx.HangingTransaction)
        assert (found.topic, found.partition, found.transaction_id) == ("hanging", 1, transaction.id)
        assert (found.transactional_id, found.state, found.start_offset) == ("it's [stuck]", "Ongoing", 0)
        assert found.duration_ms is not None
        assert 60_000 <= found.duration_ms < 120_000
        assert found.advice == f"`msgtx transactions abort {transaction.id}`"
        assert [one.transaction_id for one in find(20_000, topic="hanging", partition=1)] == [transaction.id]
        assert find(topic="hanging", partition=0) == find(topic="other") == find(600_000) == []
        client.admin.transactions.abort(transaction.id)
        assert find() == []


def test_each_reason_for_hanging_has_its_words(client: msgtx.Client, connection: Connection) -> None:
    client.topics.create("reasons")
    names = {}
    with client.producer(transactional_id="alive") as alive:
        for reason in ("transaction", "producer", "session", "external"):
            producer = client.producer(transactional_id=reason)
            producer.init_transactions()
            names[reason] = producer.begin_transaction().id
            producer.send("reasons", b"x")
            producer.flush(SECONDS)
        alive.begin_transaction()
        alive.send("reasons", b"y")
        alive.flush(SECONDS)
        for table in ("transaction", "producer"):
            connection.execute(f"delete from msgtx.{table} where producer_id = %s", [names[table].producer_id])
        for kind in ("session", "external"):
            connection.execute(
                "insert into msgtx.transaction_seal (producer_id, producer_epoch, transaction_number, kind, sealed_at,"
                " partitions, first_offsets, last_offsets) values (%s, %s, %s, %s, msgtx.clock(), '{}', '{}', '{}')",
                [*names[kind], kind],
            )
        found = {one.transaction_id: one for one in client.admin.transactions.find_hanging(topic="reasons")}
        assert set(found) == {names["transaction"], names["producer"]}
        found = {one.transaction_id: one for one in client.admin.transactions.find_hanging(0, topic="reasons")}
        assert len(found) == 5
        assert found[names["transaction"]].duration_ms is None
        words = {"transaction": "row is missing", "producer": "is gone", "session": "SQL session", "external": "outside"}
        for reason, text in words.items():
            assert text in found[names[reason]].reason
        assert found[names["external"]].advice.endswith("or `msgtx transactions fence external`")
        assert found[names["external"]].state == "Prepared"
        for reason in ("transaction", "producer", "session"):
            client.admin.transactions.abort(names[reason])
        with refuses(errors.InvalidTransactionState, reason="prepared"):
            client.admin.transactions.abort(names["external"])
        client.admin.transactions.fence("external")
        alive.commit_transaction()
    assert client.admin.transactions.find_hanging(0) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "nowhere"}, errors.UnknownTopicOrPartition),
        ({"topic": "asked", "partition": 1}, errors.UnknownTopicOrPartition),
        ({"partition": 1}, errors.InvalidRequest),
        ({"max_transaction_timeout_ms": -1}, errors.InvalidRequest),
    ],
)
def test_a_wrong_question_is_refused(client: msgtx.Client, arguments: dict[str, object], error: type[Exception]) -> None:
    if "asked" not in client.topics.list():
        client.topics.create("asked")
    with pytest.raises(error):
        client.admin.transactions.find_hanging(**arguments)
