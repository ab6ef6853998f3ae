"""A topic that is deleted and made again under its name is another one; open clients continue with it (I1, I3)."""

from collections.abc import Callable

import pytest

import msgtx
from msgtx import TopicPartition, errors
from msgtx.shares import acquiring
from msgtx.store.topics.topics import describe_topics
from tests.databases import PATIENCE_SECONDS, Connection, wait_until
from tests.hooks import Hook
from tests.refusals import refuses

SECONDS = PATIENCE_SECONDS


@pytest.fixture
def topic(client: msgtx.Client, unique: Callable[[str], str]) -> str:
    return client.topics.create(unique("again"), partitions=2).name


def make_again(client: msgtx.Client, topic: str, partitions: int = 2) -> None:
    client.topics.delete(topic)
    client.topics.create(topic, partitions=partitions)


def read(client: msgtx.Client, topic: str) -> list[tuple[int, int, bytes | None]]:
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        ends = consumer.end_offsets()
        found: list[tuple[int, int, bytes | None]] = []
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found += [(record.partition, record.offset, record.value) for record in consumer.poll(SECONDS)]
        return found


@pytest.mark.parametrize("keyed", [False, True])
def test_a_producer_goes_on_with_the_topic_that_is_there(client: msgtx.Client, topic: str, keyed: bool) -> None:
    with client.producer() as producer:
        for n in range(3):
            producer.send(topic, b"old", partition=0, dedup_key=f"o{n}" if keyed else None).result(SECONDS)
        make_again(client, topic)
        futures = [producer.send(topic, b"%d" % n, partition=0, dedup_key=f"n{n}" if keyed else None) for n in range(50)]
        assert [future.result(SECONDS).offset for future in futures] == list(range(50))
    assert read(client, topic) == [(0, n, b"%d" % n) for n in range(50)]


def test_a_failover_has_lost_nothing_of_what_was_deleted(client: msgtx.Client, topic: str, connection: Connection) -> None:
    """I1: the new partitions hold no record of a producer that has sent it to the old ones."""
    with client.producer() as producer:
        producer.send(topic, b"old", partition=0).result(SECONDS)
        make_again(client, topic)
        client.runtime.look_at_topics(connection)
        for lane in producer._accumulator.lanes.values():
            lane.server = (1, 1)  # as if it had acknowledged them, and failed
        producer._sender.losses.server_moved()
        wait_until(lambda: not producer._sender.losses.due and not producer._sender._busy, "it has looked")
        producer.send(topic, b"new", partition=0).result(SECONDS)
    assert read(client, topic) == [(0, 0, b"new")]


def test_batches_in_flight_and_in_the_buffer_keep_their_order(client: msgtx.Client, topic: str) -> None:
    """Five calls are on their way to the deleted topic; each is refused, and all are sent again in order (I3)."""
    with client.producer(batch_records=10, linger_ms=0) as producer:
        producer.send(topic, b"old", partition=1).result(SECONDS)
        make_again(client, topic)
        futures = [producer.send(topic, b"%d" % n, partition=1) for n in range(2_000)]
        assert [future.result(SECONDS).offset for future in futures] == list(range(2_000))
    assert [value for _, _, value in read(client, topic)] == [b"%d" % n for n in range(2_000)]


@pytest.mark.parametrize("dedup_key", [None, "x"])
def test_a_partition_that_the_new_topic_lacks_is_unknown(client: msgtx.Client, topic: str, dedup_key: str | None) -> None:
    with client.producer() as producer:
        producer.send(topic, b"old", partition=1, dedup_key=dedup_key).result(SECONDS)
        make_again(client, topic, partitions=1)
        lost = producer.send(topic, b"x", partition=1, dedup_key=dedup_key)
        assert isinstance(lost.exception(SECONDS), errors.UnknownTopicOrPartition)
        with pytest.raises(errors.UnknownTopicOrPartition):
            producer.send(topic, b"x", partition=1)
        producer.send(topic, b"y", partition=0).result(SECONDS)
    assert [value for _, _, value in read(client, topic)] == [b"y"]


@pytest.mark.parametrize("flushed", [False, True], ids=["in one call", "in several"])
def test_a_transaction_is_aborted_and_the_next_one_goes_on(client: msgtx.Client, topic: str, flushed: bool) -> None:
    """Half of a transaction is never committed: what it had in the topic is gone (I4)."""
    with client.producer(transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, b"old")
        producer.begin_transaction()
        producer.send(topic, b"lost")
        if flushed:
            producer.flush(SECONDS)
        make_again(client, topic)
        with pytest.raises(errors.MsgtxError):  # noqa: PT012 - any of these may learn of it first
            if flushed:
                producer.send(topic, b"half of it")
                producer.flush(SECONDS)
            producer.commit_transaction()
        producer.abort_transaction()
        for value in (b"a", b"b"):
            with producer.transaction():
                producer.send(topic, value)
    assert sorted(value for _, _, value in read(client, topic) if value is not None) == [b"a", b"b"]


def test_a_look_that_was_begun_before_leads_nobody_back(client: msgtx.Client, topic: str) -> None:
    """Its answer comes after a producer has found the new topic."""
    with client.producer(transactional_id=topic) as producer, client.runtime.engine.connection() as connection:
        with producer.transaction():
            producer.send(topic, b"old")
        before = describe_topics(connection, [topic])[topic]
        make_again(client, topic)
        with pytest.raises(errors.UnknownTopicOrPartition), producer.transaction():
            producer.send(topic, b"lost")
        producer._topic_changed(before)
        with producer.transaction():
            producer.send(topic, b"new")
    assert [value for _, _, value in read(client, topic)] == [b"new"]


def test_a_transaction_is_told_when_a_topic_of_its_own_was_made_again(
    client: msgtx.Client, topic: str, unique: Callable[[str], str], connection: Connection
) -> None:
    """As soon as the client looks at its topics. A transaction that has sent nothing there is not concerned."""
    other = client.topics.create(unique("other")).name
    with client.producer(transactional_id=topic) as producer:
        with producer.transaction():
            for name in (topic, other):
                producer.send(name, b"old")
        for name in (other, topic):
            producer.begin_transaction()
            producer.send(name, b"new")
            producer.flush(SECONDS)
            make_again(client, topic)
            client.runtime.look_at_topics(connection)
            if name == other:
                producer.commit_transaction()
        with refuses(errors.UnknownTopicOrPartition, reason="made again"):
            producer.commit_transaction()
        producer.abort_transaction()
    assert [value for _, _, value in read(client, other)] == [b"old", b"new"]


def test_what_is_made_again_with_other_settings_is_known_and_other_topics_go_on(
    client: msgtx.Client, topic: str, unique: Callable[[str], str]
) -> None:
    """Sequences begin anew on the new partitions only; the time of a record is the log's now."""
    other = unique("other")
    client.topics.create(other)
    with client.producer() as producer:
        for name in (other, topic):
            producer.send(name, b"old", partition=0, timestamp=5).result(SECONDS)
        client.topics.delete(topic)
        client.topics.create(topic, timestamp_type="LogAppendTime")
        found = [producer.send(name, b"new", partition=0, timestamp=5).result(SECONDS) for name in (topic, other)]
    assert [(each.offset, each.duplicate) for each in found] == [(0, False), (1, False)]
    assert found[0].timestamp > 5 == found[1].timestamp


@pytest.mark.parametrize("group", [False, True])
def test_a_consumer_reads_the_new_topic_from_its_beginning(client: msgtx.Client, topic: str, group: bool) -> None:
    # What a heartbeat tells would come too late.
    settings = {"group": topic, "heartbeat_interval_ms": 60_000, "session_timeout_ms": 120_000} if group else {}
    with client.producer() as producer, client.consumer(topic, auto_offset_reset="earliest", **settings) as consumer:
        producer.send_batch(topic, [b"old"] * 5, partition=0).result(SECONDS)
        got: list[bytes | None] = []
        wait_until(lambda: got.extend(r.value for r in consumer.poll(0.2)) or len(got) == 5)
        make_again(client, topic)
        producer.send_batch(topic, [b"new"] * 3, partition=0).result(SECONDS)
        wait_until(lambda: got.extend(r.value for r in consumer.poll(0.2)) or len(got) == 8)
    assert got == [b"old"] * 5 + [b"new"] * 3


def test_a_question_about_a_topic_that_goes_again_and_again_has_an_end(client: msgtx.Client, topic: str, hook: Hook) -> None:
    """It is made again between each look at what is there and the question."""
    with client.consumer(topic) as consumer:
        hook.at("before list_offsets", lambda: make_again(client, topic))
        with refuses(errors.UnknownTopicOrPartition, topic=topic, partition=0):
            consumer.end_offsets()


def test_a_consumer_with_partitions_by_hand_knows_the_new_ones(client: msgtx.Client, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with client.producer() as producer, client.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        producer.send(topic, b"old", partition=0).result(SECONDS)
        assert [record.value for record in consumer.poll(SECONDS)] == [b"old"]
        make_again(client, topic)
        assert consumer.end_offsets([partition]) == {partition: 0}
        producer.send(topic, b"new", partition=0).result(SECONDS)
        consumer.assign([partition])
        assert [record.value for record in consumer.poll(SECONDS)] == [b"new"]


def test_of_several_topics_only_the_one_that_was_made_again_is_read_anew(
    client: msgtx.Client, topic: str, unique: Callable[[str], str]
) -> None:
    other = unique("other")
    client.topics.create(other)
    with client.producer() as producer, client.consumer(topic, other, auto_offset_reset="earliest") as consumer:
        for name in (topic, other):
            producer.send_batch(name, [b"old"] * 2, partition=0).result(SECONDS)
        got: list[str] = []
        wait_until(lambda: got.extend(r.topic for r in consumer.poll(0.2)) or len(got) == 4)
        make_again(client, topic)
        for name in (topic, other):
            producer.send(name, b"new", partition=0).result(SECONDS)
        wait_until(lambda: got.extend(r.topic for r in consumer.poll(0.2)) or len(got) >= 6)
        assert (got.count(topic), got.count(other), consumer.poll(0)) == (3, 3, [])


def test_a_topic_that_is_gone_keeps_no_share_consumer_from_others_and_is_read_when_it_is_made_again(
    client: msgtx.Client, topic: str, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a consumer of a group; only a topic that is not there at first is refused."""
    monkeypatch.setattr(acquiring, "TOPICS_SECONDS", 0.1)
    other, group = unique("other"), unique("group")
    client.topics.create(other)
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    got: list[bytes | None] = []
    with client.producer() as producer, client.share_consumer(topic, other, group=group) as consumer:

        def read(value: bytes, name: str) -> None:
            producer.send(name, value, partition=0).result(SECONDS)
            wait_until(lambda: got.extend(r.value for r in consumer.poll(0.2)) or got[-1:] == [value])

        read(b"old", topic)
        consumer.commit()  # the next poll would be told that the answer is for a topic that is gone
        client.topics.delete(topic)
        for value in (b"a", b"b"):
            read(value, other)
        client.topics.create(topic)
        read(b"new", topic)
    assert got == [b"old", b"a", b"b", b"new"]
    with (
        client.share_consumer(topic, "a-name-that-nobody-has-used", group=group) as consumer,
        pytest.raises(errors.UnknownTopicOrPartition, match="create it first"),
    ):
        consumer.poll(0)
