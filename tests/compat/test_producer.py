"""The facade's producer."""

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka as kafka
import pytest

import msgtx
from msgtx import errors as refusals
from msgtx.compat.confluent_kafka import KafkaError, KafkaException, Message, Producer

WAIT = 60.0


def test_a_delivery_callback_runs_in_flush_with_the_place_of_its_message(
    make_producer: Callable[..., Producer], topic: str
) -> None:
    producer = make_producer()
    told: list[tuple[KafkaError | None, Message]] = []
    for value in ("a", b"b", None):
        producer.produce(topic, value, key="k", headers={"h": "1"}, on_delivery=lambda *each: told.append(each))
    assert len(producer) == 3
    assert not told
    assert producer.flush(WAIT) == 0
    assert len(producer) == 0
    assert [error for error, _ in told] == [None] * 3
    assert [(message.offset(), message.key(), message.value()) for _, message in told] == [
        (0, b"k", b"a"),
        (1, b"k", b"b"),
        (2, b"k", None),
    ]


def test_an_exception_of_a_callback_leaves_the_call_and_the_next_report_comes_later(
    make_producer: Callable[..., Producer], topic: str
) -> None:
    producer = make_producer()
    told: list[bytes | None] = []

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    producer.produce(topic, "a", on_delivery=fail)
    producer.produce(topic, "b", on_delivery=lambda _, message: told.append(message.value()))
    with pytest.raises(ZeroDivisionError):
        producer.flush(WAIT)
    assert producer.flush(WAIT) == 0
    assert told == [b"b"]


def test_a_full_queue_is_a_buffer_error_until_reports_are_called(make_producer: Callable[..., Producer], topic: str) -> None:
    producer = make_producer(**{"queue.buffering.max.messages": 2})
    producer.produce(topic, "a")
    producer.produce(topic, "b")
    with pytest.raises(BufferError, match="Local: Queue full"):
        producer.produce(topic, "c")
    assert producer.flush(WAIT) == 0
    producer.produce(topic, "c")


def test_a_batch_tells_which_messages_were_not_taken(make_producer: Callable[..., Producer], topic: str) -> None:
    producer = make_producer(**{"queue.buffering.max.messages": 2})
    messages: list[dict[str, Any]] = [{"value": value, "key": "k"} for value in "abc"]
    assert producer.produce_batch(topic, messages) == 2
    assert [message.get("_error") for message in messages] == [None, None, KafkaError(KafkaError._QUEUE_FULL)]


def test_a_purge_reports_what_was_on_its_way(make_producer: Callable[..., Producer], topic: str) -> None:
    producer = make_producer(**{"linger.ms": 30_000})
    told: list[KafkaError | None] = []
    producer.produce(topic, "a", on_delivery=lambda error, _: told.append(error))
    producer.purge()
    assert producer.poll(0) == 1
    assert told == [KafkaError(KafkaError._PURGE_INFLIGHT)]


def test_a_purged_message_is_reported_once_and_no_flush_waits_for_it(
    make_producer: Callable[..., Producer], topic: str
) -> None:
    producer = make_producer(**{"linger.ms": 100_000})
    told: list[KafkaError | None] = []
    producer.produce(topic, "a", on_delivery=lambda error, _: told.append(error))
    producer.purge()
    assert (producer.flush(0), len(producer)) == (0, 0)
    assert told == [KafkaError(KafkaError._PURGE_INFLIGHT)]
    producer.produce(topic, "b", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(WAIT) == 0
    assert told[1:] == [None]


def test_a_count_of_partitions_that_was_wrong_is_asked_for_again(make_producer: Callable[..., Producer], topic: str) -> None:
    producer = make_producer(partitioner="consistent")
    key = next(each for each in ("a", "b", "c", "d", "e") if kafka.consistent(each.encode(), 9))
    producer._counts[topic] = 9  # the topic was deleted, and made again with one partition
    with pytest.raises(KafkaException) as refused:
        producer.produce(topic, "a", key=key)
    assert refused.value.args[0].code() == KafkaError._UNKNOWN_PARTITION
    producer.produce(topic, "a", key=key)
    assert producer.flush(WAIT) == 0


def test_a_missing_topic_is_created_with_one_partition(
    make_producer: Callable[..., Producer], client: msgtx.Client, unique: Callable[[str], str]
) -> None:
    name, producer = unique("new"), make_producer()
    producer.produce(name, "a", key="k")
    assert producer.flush(WAIT) == 0
    assert client.topics.describe(name).partitions == 1
    with pytest.raises(KafkaException) as refused:
        producer.produce(name, "a", partition=1)
    assert refused.value.args[0].code() == KafkaError._UNKNOWN_PARTITION


def test_a_topic_that_cannot_be_created_is_told_in_the_report(make_producer: Callable[..., Producer]) -> None:
    producer = make_producer()
    told: list[KafkaError | None] = []
    producer.produce("no/name", "a", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(WAIT) == 0
    assert told == [KafkaError(KafkaError.TOPIC_EXCEPTION)]


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("consistent_random", kafka.consistent),
        ("consistent", kafka.consistent),
        ("murmur2_random", kafka.murmur2),
        ("murmur2", kafka.murmur2),
        ("fnv1a", kafka.fnv1a),
        ("fnv1a_random", kafka.fnv1a),
    ],
)
def test_a_key_goes_to_the_partition_of_librdkafkas_partitioner(
    make_producer: Callable[..., Producer],
    client: msgtx.Client,
    unique: Callable[[str], str],
    name: str,
    chosen: Callable[[bytes, int], int],
) -> None:
    wide, producer = unique("wide"), make_producer(partitioner=name)
    client.topics.create(wide, partitions=7)
    told: list[tuple[bytes | None, int | None]] = []
    for number in range(20):
        producer.produce(wide, key=f"key-{number}", on_delivery=lambda _, m: told.append((m.key(), m.partition())))
    producer.produce(wide, "no key")
    assert producer.flush(WAIT) == 0
    assert told == [(b"key-%d" % number, chosen(b"key-%d" % number, 7)) for number in range(20)]


def test_settings_are_refused_as_there(make_producer: Callable[..., Producer]) -> None:
    for config in (
        {"bootstrap.server": "x"},
        {"linger.ms": "much"},
        {"partitioner": "mine"},
        {"acks": "some"},
        {"enable.idempotence": "maybe"},
        {"acks": 1, "enable.idempotence": True},
        {"queue.buffering.max.messages": "many"},
    ):
        with pytest.raises(KafkaException) as refused:
            make_producer(**config)
        assert refused.value.args[0].code() == KafkaError._INVALID_ARG
    for good in ({"acks": 1}, {"acks": "-1"}, {"linger.ms": 0.5}, {"message.timeout.ms": 0}, {"compression.type": "zstd"}):
        make_producer(**good)


def test_settings_without_an_effect_are_named_in_one_line(
    make_producer: Callable[..., Producer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "msgtx.compat")
    make_producer(**{"ssl.ca.location": "/x", "sasl.password": "secret", "linger.ms": 1})
    assert [line for line in caplog.messages if "no effect" in line] == [
        "no effect on msgtx: bootstrap.servers, sasl.password, ssl.ca.location (docs/reference/compat.md)"
    ]


def test_a_fenced_producer_has_a_fatal_error(
    make_producer: Callable[..., Producer], topic: str, unique: Callable[[str], str]
) -> None:
    name, errors = unique("id"), list[KafkaError]()
    first = make_producer(**{"transactional.id": name, "error_cb": errors.append})
    first.init_transactions(WAIT)
    first.begin_transaction()
    first.produce(topic, "a")
    second = make_producer(**{"transactional.id": name})
    second.init_transactions(WAIT)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(WAIT)
    assert fenced.value.args[0].fatal()
    assert fenced.value.args[0].code() == KafkaError._FENCED
    first.poll(0)
    assert [error.code() for error in errors] == [KafkaError._FENCED]


def test_statistics_are_told_in_poll(make_producer: Callable[..., Producer], topic: str) -> None:
    told: list[str] = []
    producer = make_producer(**{"stats_cb": told.append, "statistics.interval.ms": 1})
    producer.produce(topic, "a")
    producer.flush(WAIT)
    while not told:
        producer.poll(0.01)
    assert {"type", "msg_cnt", "txmsgs", "ts"} <= json.loads(told[-1]).keys()


def test_an_interval_of_0_tells_no_statistics(make_producer: Callable[..., Producer], topic: str) -> None:
    told: list[str] = []
    producer = make_producer(**{"stats_cb": told.append, "statistics.interval.ms": 0})
    producer.produce(topic, "a")
    assert producer.flush(WAIT) == 0
    assert producer.poll(0) == 0
    assert told == []


def test_the_last_object_of_a_process_closes_the_connections(topic: str) -> None:
    first, second = Producer({}), Producer({})
    first.produce(topic, "a")
    second.produce(topic, "b")
    client = first._client.get()
    assert second._client.get() is client
    first.close()
    assert not client.closed
    second.close()
    assert client.closed
    with pytest.raises(RuntimeError, match="closed"):
        second.produce(topic, "c")


def test_a_transaction_that_has_failed_is_told_by_each_produce_until_its_abort(
    make_producer: Callable[..., Producer], topic: str, unique: Callable[[str], str]
) -> None:
    producer = make_producer(**{"transactional.id": unique("id")})
    producer.init_transactions(WAIT)
    producer.begin_transaction()
    producer._inner()._state.fail(refusals.DeliveryTimeout("the database was away"))
    for _ in range(2):
        with pytest.raises(KafkaException) as refused:
            producer.produce(topic, "a")
        assert refused.value.args[0].code() == KafkaError._MSG_TIMED_OUT
        assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(WAIT)
    producer.begin_transaction()
    producer.produce(topic, "b")
    producer.commit_transaction(WAIT)


def test_a_buffer_that_stays_full_is_a_full_queue(
    make_producer: Callable[..., Producer], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise refusals.DeliveryTimeout("buffer_bytes are full")

    producer = make_producer()
    monkeypatch.setattr(producer._inner(), "send", full)
    with pytest.raises(BufferError, match="Local: Queue full"):
        producer.produce(topic, "a")


def test_a_message_that_cannot_be_sent_fails_its_transaction(
    make_producer: Callable[..., Producer], topic: str, unique: Callable[[str], str]
) -> None:
    producer = make_producer(**{"transactional.id": unique("id")})
    producer.init_transactions(WAIT)
    producer.begin_transaction()
    producer.produce(topic, "a")
    for call in (lambda: producer.produce("no/name", "b"), producer.commit_transaction, producer.commit_transaction):
        with pytest.raises(KafkaException) as refused:
            call()
        assert refused.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
        assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(WAIT)
    producer.begin_transaction()
    producer.produce(topic, "c")
    producer.commit_transaction(WAIT)


def test_a_poll_goes_on_beside_a_thread_that_produces(make_producer: Callable[..., Producer], topic: str) -> None:
    class Changing(deque[Any]):
        """Another thread appends in the middle of each iteration."""

        def __iter__(self) -> Iterator[Any]:
            found = super().__iter__()
            self.append(self[0])
            return found

    producer = make_producer(**{"linger.ms": 30_000})
    producer.produce(topic, "a")
    producer._sent = Changing(producer._sent)
    assert producer.poll(0.01) == 0
    assert producer.flush(WAIT) == 0


def test_an_exception_of_error_cb_takes_no_report_away(
    make_producer: Callable[..., Producer], topic: str, unique: Callable[[str], str]
) -> None:
    def fail(_: KafkaError) -> None:
        raise ZeroDivisionError

    name, told = unique("id"), list[KafkaError | None]()
    first = make_producer(**{"transactional.id": name, "error_cb": fail})
    first.init_transactions(WAIT)
    first.begin_transaction()
    first.produce(topic, "a", on_delivery=lambda error, _: told.append(error))
    second = make_producer(**{"transactional.id": name})
    second.init_transactions(WAIT)
    with pytest.raises(KafkaException):
        first.commit_transaction(WAIT)
    with pytest.raises(ZeroDivisionError):
        first.poll(0)
    assert [error is not None for error in told] == [True]


def test_a_producer_whose_last_callback_raises_is_closed(make_producer: Callable[..., Producer], topic: str) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    producer = make_producer()
    producer.produce(topic, "a", on_delivery=fail)
    with pytest.raises(ZeroDivisionError):
        producer.close()
    with pytest.raises(RuntimeError, match="closed"):
        producer.produce(topic, "b")
