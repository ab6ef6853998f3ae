"""`msgtx.metrics`: what producers, consumers and workers did is counted once, and nothing is asked of the database."""

import asyncio
import contextlib
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy
from prometheus_client import CollectorRegistry
from sqlalchemy.orm import sessionmaker

import msgtx
from msgtx import aio, errors, metrics
from msgtx.observer import Observer, Observers
from msgtx.types import OutputRecord, TopicPartition
from tests.client.steps import store
from tests.databases import Connection
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Value = Callable[..., float]


@pytest.fixture
def registry(client: msgtx.Client) -> CollectorRegistry:
    made = CollectorRegistry()
    metrics.watch(client, registry=made)
    return made


@pytest.fixture
def value(registry: CollectorRegistry) -> Value:
    return lambda name, **labels: registry.get_sample_value(f"msgtx_{name}", labels) or 0.0


@pytest.fixture
def sessions(app: sqlalchemy.Engine, connection: Connection) -> Any:
    connection.execute("create table if not exists public.handled (value text)")
    return sessionmaker(app)


def test_a_batch_is_counted_when_it_is_stored(client: msgtx.Client, topic: str, value: Value) -> None:
    with client.producer(linger_ms=200) as producer:
        futures = [producer.send(topic, b"x" * 100) for _ in range(3)]
        assert value("producer_records_total", topic=topic) == 0
        producer.flush()
        assert [future.result().offset for future in futures] == [0, 1, 2]
        producer.send_batch(topic, [b"y"] * 5).result()
    assert value("producer_records_total", topic=topic) == 8
    assert 300 < value("producer_bytes_total", topic=topic) < 1_200
    assert (value("producer_batch_records_count"), value("producer_batch_records_sum")) == (2, 8)
    assert value("producer_batch_records_bucket", le="10.0") == 2
    assert value("producer_batch_bytes_sum") == value("producer_bytes_total", topic=topic)
    assert value("producer_send_seconds_count") == 2
    assert 0 < value("producer_send_seconds_sum") < 60


def test_a_record_with_a_dedup_key_counts_as_another_does(client: msgtx.Client, topic: str, value: Value) -> None:
    with client.producer() as producer:
        for _ in range(2):
            producer.send(topic, b"x" * 100, dedup_key="once").result()
    assert value("producer_records_total", topic=topic) == 2
    assert value("producer_send_seconds_count") == 2


def test_a_record_that_is_refused_is_an_error_by_its_type(client: msgtx.Client, topic: str, value: Value) -> None:
    client.topics.alter(topic, max_message_bytes=1_000)
    with client.producer() as producer:
        assert isinstance(producer.send(topic, b"x" * 2_000).exception(30), errors.RecordTooLarge)
    assert value("producer_errors_total", error="RecordTooLarge") == 1
    assert value("producer_records_total", topic=topic) == 0


def test_transactions_are_counted_by_outcome(client: msgtx.Client, topic: str, value: Value) -> None:
    with client.producer(transactional_id=topic) as producer:
        for _ in range(2):
            with producer.transaction():
                producer.send(topic, b"committed")
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.abort_transaction()
        with client.producer(transactional_id=topic):  # fences it
            producer.begin_transaction()
            producer.send(topic, b"fenced")
            with pytest.raises(errors.ProducerFenced):
                producer.commit_transaction()
    assert value("transactions_total", outcome="committed") == 2
    assert value("transactions_total", outcome="aborted") == 1
    assert value("transaction_commit_seconds_count") == 2
    assert value("transaction_errors_total", error="ProducerFenced") >= 1


def test_polls_records_and_lag_are_those_of_the_consumer(client: msgtx.Client, topic: str, value: Value) -> None:
    store(client, topic, *([b"x"] * 10))
    with client.consumer(topic, group=topic, auto_offset_reset="earliest") as consumer:
        assert value("consumer_lag_records", group=topic, topic=topic) == 0
        assert len(consumer.poll(10, max_records=4)) == 4
        assert consumer._known_lag() == {TopicPartition(topic, 0): 6}
        assert value("consumer_lag_records", group=topic, topic=topic) == 6
        assert value("consumer_partitions", group=topic, topic=topic) == 1
        assert next(iter(consumer)).offset == 4
        assert value("consumer_lag_records", group=topic, topic=topic) == 5
        consumer.poll(10)
        assert consumer.poll(0) == []
        assert value("consumer_lag_records", group=topic, topic=topic) == 0
    assert value("consumer_records_total", group=topic, topic=topic) == 10
    assert value("consumer_polls_total", group=topic) == 4
    with client.consumer(group=topic, auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 99)
        with pytest.raises(errors.OffsetOutOfRange):
            consumer.poll(10)
    assert value("consumer_errors_total", group=topic, error="OffsetOutOfRange") == 1


def test_a_share_consumer_counts_as_another_does(client: msgtx.Client, topic: str, value: Value) -> None:
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"})
    store(client, topic, b"1", b"2", b"3", b"4", partition=0)
    with client.share_consumer(topic, group=topic, value_deserializer=lambda value: int(value or b"")) as consumer:
        assert len(consumer.poll(10, max_records=3)) == 3
        assert value("consumer_records_total", group=topic, topic=topic) == 3
        assert next(iter(consumer)).value == 4
        assert consumer.poll(0) == []
        with client.producer() as producer:
            producer.send(topic, b"no number").result()
        with pytest.raises(errors.DeserializationError):
            consumer.poll(10)
    assert value("consumer_records_total", group=topic, topic=topic) == 4
    assert value("consumer_polls_total", group=topic) == 3
    assert value("consumer_errors_total", group=topic, error="DeserializationError") == 1
    with (
        client.share_consumer(f"{topic}-missing", group=topic) as consumer,
        pytest.raises(errors.UnknownTopicOrPartition),
    ):
        consumer.poll(0)
    assert value("consumer_errors_total", group=topic, error="UnknownTopicOrPartition") == 1


def test_a_worker_counts_handlers_failures_and_dead_letters(
    client: msgtx.Client, topic: str, wide: str, sessions: Any, value: Value
) -> None:
    store(client, topic, b"good", b"poison", b"good")
    calls = []

    def handle(session: Any, record: msgtx.Record) -> None:
        calls.append(record.offset)
        if record.value == b"poison":
            raise ValueError("poison")
        session.execute(sqlalchemy.text("insert into public.handled values ('x')"))

    report = client.process_into(sessions, handle, topic, group=topic, failure=msgtx.DeadLetter(wide, 1), idle_timeout=1.0)
    assert (report.records_in, report.failed) == (3, 1)
    assert value("worker_records_total", group=topic) == 3
    assert value("worker_dead_letters_total", group=topic, topic=wide) == 1
    assert value("worker_skipped_records_total", group=topic) == 0
    assert value("worker_handler_seconds_count", group=topic) == len(calls)
    assert value("worker_transactions_total", group=topic, outcome="committed") == report.transactions
    assert value("worker_transactions_total", group=topic, outcome="aborted") == report.aborted >= 2
    assert value("worker_errors_total", group=topic, error="ValueError") == report.aborted
    assert value("worker_transaction_seconds_count", group=topic) == report.transactions


def test_a_worker_of_a_share_group_counts_the_dead_letters_that_it_makes(
    client: msgtx.Client, topic: str, wide: str, value: Value
) -> None:
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"})
    store(client, topic, b"good", b"poison", b"good")

    def transform(record: msgtx.Record) -> bytes:
        if record.value == b"poison":
            raise ValueError("poison")
        return record.value or b""

    settings: dict[str, Any] = {"share_members": 1, "failure": msgtx.Acknowledgement.REJECT, "idle_timeout": 0.5}
    client.process(topic, to=wide, group=topic, transactional_id=topic, transform=transform, **settings)
    assert value("worker_records_total", group=topic) == 2
    assert value("worker_dead_letters_total", group=topic, topic=f"{topic}-dead-letters") == 1
    assert value("worker_errors_total", group=topic, error="ValueError") == 1


def test_a_worker_of_topics_counts_what_it_skips(client: msgtx.Client, topic: str, wide: str, value: Value) -> None:
    store(client, topic, b"good", b"poison", b"good")

    def transform(record: msgtx.Record) -> OutputRecord:
        if record.value == b"poison":
            raise ValueError("poison")
        return OutputRecord(record.value)

    client.process(
        topic, to=wide, group=topic, transactional_id=topic, transform=transform, failure=msgtx.Skip(0), idle_timeout=1.0
    )
    assert value("worker_skipped_records_total", group=topic) == 1
    assert value("worker_records_total", group=topic) == 3
    assert value("worker_handler_seconds_count", group=topic) == 3
    assert value("producer_records_total", topic=wide) == 2


def test_a_worker_counts_a_transaction_that_is_aborted_and_tries_it_again(
    client: msgtx.Client, topic: str, wide: str, value: Value
) -> None:
    with client.producer() as producer:
        producer.send(topic, b"good").result()
    failures = [errors.TransactionAborted("by a test")]

    def transform(record: msgtx.Record) -> bytes | None:
        if failures:
            raise failures.pop()
        return record.value

    report = client.process(topic, to=wide, group=topic, transactional_id=topic, transform=transform, idle_timeout=0.1)
    assert (report.records_in, report.aborted) == (1, 1)
    assert value("worker_transactions_total", group=topic, outcome="aborted") == 1
    assert value("worker_errors_total", group=topic, error="TransactionAborted") == 1


def test_a_worker_without_input_shows_zeros(
    client: msgtx.Client, topic: str, wide: str, registry: CollectorRegistry
) -> None:
    """Of a counter that appears as 1 Prometheus sees no increase."""
    client.process(topic, to=wide, group=topic, transactional_id=topic, transform=lambda record: None, idle_timeout=0)
    for outcome in ("committed", "aborted"):
        labels = {"group": topic, "outcome": outcome}
        assert registry.get_sample_value("msgtx_worker_transactions_total", labels) == 0


def test_an_asynchronous_client_is_watched_through_its_other_half(database_url: str, topic: str) -> None:
    registry = CollectorRegistry()

    async def run() -> None:
        async with await aio.connect(database_url) as client:
            metrics.watch(client.sync, registry=registry)
            async with client.producer() as producer:
                await (await producer.send(topic, b"x"))
            async with client.consumer(topic, group=topic, auto_offset_reset="earliest") as consumer:
                assert len(await consumer.poll(10)) == 1

    asyncio.run(run())
    assert registry.get_sample_value("msgtx_producer_records_total", {"topic": topic}) == 1
    assert registry.get_sample_value("msgtx_consumer_records_total", {"group": topic, "topic": topic}) == 1
    assert registry.get_sample_value("msgtx_consumer_polls_total", {"group": topic}) == 1


def test_clients_of_a_registry_add_up_and_are_counted_once(
    database_url: str, client: msgtx.Client, registry: CollectorRegistry, topic: str, value: Value
) -> None:
    with msgtx.connect(database_url) as other:
        metrics.watch(other, registry=registry)
        metrics.watch(other, registry=registry)
        for each in (client, other):
            with each.producer() as producer:
                producer.send(topic, b"x").result()
    assert value("producer_records_total", topic=topic) == 2
    with refuses(errors.ConfigError, name="client"):
        metrics.watch(object(), registry=registry)  # type: ignore[arg-type]


def test_a_program_without_a_registry_of_its_own_serves_it(client: msgtx.Client, topic: str) -> None:
    with metrics.serving(client, port=0) as port, client.producer() as producer:
        producer.send(topic, b"x").result()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert f'msgtx_producer_records_total{{topic="{topic}"}} 1.0' in answer.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            assert answer.read() == b"alive\n"
        with pytest.raises(errors.ConfigError, match=f"served at 127.0.0.1:{port}: Address already in use"):
            metrics.serving(client, port=port).__enter__()
        with pytest.raises(errors.ConfigError, match=r"served at x{64}:0: .*too long"):
            metrics.serving(client, host="x" * 64, port=0).__enter__()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
    assert client.runtime.observers.each == ()  # a program may do this for each of its jobs


def test_lag_is_read_while_the_consumer_works(client: msgtx.Client, topic: str) -> None:
    """A scrape comes from another thread at any moment."""
    with client.producer() as producer:
        for _ in range(200):
            producer.send_batch(topic, [b"x"] * 50).result()
    over = threading.Event()
    wrong: list[object] = []
    with client.consumer(topic, auto_offset_reset="earliest", group=topic) as consumer:

        def look() -> None:
            while not over.is_set():
                try:
                    found = consumer._known_lag().get(TopicPartition(topic, 0), 0)
                    if not 0 <= found <= 10_000:
                        wrong.append(found)
                except BaseException as error:  # noqa: BLE001 - what would end a scrape
                    wrong.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        with contextlib.closing(consumer):
            count = 0
            while count < 10_000:
                count += len(consumer.poll(10, max_records=7))
        over.set()
        thread.join()
    assert wrong == []


def test_an_observer_that_fails_does_no_harm(
    client: msgtx.Client, topic: str, wide: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Observer):
        def __getattribute__(self, name: str) -> Any:
            raise ZeroDivisionError(name)

    client.observe(Broken())
    with client.producer(transactional_id=topic) as producer, producer.transaction():
        producer.send(topic, b"x")
    report = client.process(
        topic, to=wide, group=topic, transactional_id=wide, transform=lambda record: record.value, idle_timeout=1.0
    )
    assert (report.records_in, report.records_out, report.aborted) == (1, 1, 0)
    with client.consumer(wide, auto_offset_reset="earliest", group=topic) as consumer:
        assert [record.value for record in consumer.poll(10)] == [b"x"]
    assert {record.getMessage() for record in caplog.records if record.name == "msgtx.observer"} == {"an observer failed"}


def test_an_observer_that_is_added_twice_is_told_once() -> None:
    observers, observer = Observers(), metrics.Metrics(CollectorRegistry())
    observers.add(observer)
    observers.add(observer)
    assert observers.each == (observer,)
