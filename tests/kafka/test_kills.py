"""A mirror, PostgreSQL and Kafka's broker are killed while 100,000 records are copied, in both directions.

The records are compared one by one afterwards. A reader of committed records watches the target meanwhile: it gets the same
records in the same order, and never one of a transaction that was not committed.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

import confluent_kafka
import pytest

import msgtx
from msgtx import errors
from msgtx.mirror.kafka import KafkaMirrors
from tests.databases import wait_until
from tests.faults import CrashServer, crash_server
from tests.kafka.broker import Broker
from tests.kafka.conftest import Columns, Kafka
from tests.kafka.workloads import (
    COPY_SECONDS,
    IN_EACH,
    PARTITIONS,
    Contents,
    beside,
    contents,
    fill,
    mirror,
    require_copied,
    require_same,
    size,
    torn,
    transaction_key,
)
from tests.mirror.conftest import columns

Unique = Callable[[str], str]
Found = dict[tuple[str, int], list[Columns]]
BACKLOG: Final = 250  # transactions that are there before the mirror begins; a fifth is aborted
RECORDS: Final = 500  # of each
MOST_TRANSACTIONS: Final = 1_000_000
KILLS: Final = (("broker", "database"), ("database", "broker"), ("both",))  # of each mirror, before it is killed itself


@pytest.fixture(scope="module")
def server() -> Iterator[CrashServer]:
    """A server of its own."""
    with crash_server() as made:
        yield made


def kill_all(
    mirrored: Sequence[str], server: CrashServer, broker: Broker, copied: Callable[[], int], filling: Future[None]
) -> Iterator[None]:
    """Kill mirrors, the server and the broker, each when something was copied since. Yield while no mirror runs."""
    seen = 0
    for kills in KILLS:
        if seen:  # what the mirror before has copied to its end: a server is killed only under one that has begun
            seen = copied()
        with mirror(mirrored) as process:
            for killed in (*kills, "mirror"):
                before = seen

                def goes_on(before: int = before) -> bool:
                    nonlocal seen
                    assert process.poll() is None, "the mirror has ended by itself"
                    if filling.done():
                        filling.result()
                    with contextlib.suppress(errors.MsgtxError):  # a server that was killed may not answer yet
                        seen = copied()
                    return seen > before

                wait_until(goes_on, "something is copied", seconds=COPY_SECONDS)
                if killed in {"broker", "both"}:
                    broker.kill()
                if killed in {"database", "both"}:
                    server.crash()
                if killed in {"broker", "both"}:
                    broker.start()
        yield


def watch_kafka(kafka: Kafka, topic: str, found: Found, over: threading.Event) -> None:
    """Read what is committed, as one consumer, until `over`."""
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": kafka.servers, "group.id": "tests", "isolation.level": "read_committed",
        "enable.auto.commit": False, "log_level": 0, "reconnect.backoff.max.ms": 500,
    })  # fmt: skip
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        while not over.is_set():
            for message in [*consumer.consume(1, 0.2), *consumer.consume(1_000, 0)]:
                if message.error() is None:  # after an error, the consumer goes on by itself
                    one = message.key(), message.value(), message.timestamp()[1], tuple(message.headers() or ())
                    found.setdefault((topic, message.partition()), []).append(one)
    finally:
        consumer.close()


def test_to_kafka_nothing_is_lost_doubled_or_torn_when_mirrors_postgresql_and_the_broker_are_killed(
    server: CrashServer, broker: Broker, kafka: Kafka, unique: Unique
) -> None:
    url, topic, name = server.server.create_database(), kafka.topic(PARTITIONS), unique("mirror")
    with msgtx.connect(url) as client:
        client.topics.create(topic, partitions=PARTITIONS, retention_ms=-1)
        fill(client, topic, BACKLOG, records=RECORDS)
    found: Found = {}

    def copied() -> int:
        return sum(one.records for one in KafkaMirrors(broker.url).list() if one.name == name)

    def fill_on(over: threading.Event) -> None:
        run = 0
        while not over.is_set():
            run += 1
            with contextlib.suppress(errors.MsgtxError), msgtx.connect(url) as client:
                fill(client, topic, MOST_TRANSACTIONS, over, run=run)

    with beside(lambda over: watch_kafka(kafka, topic, found, over)) as watching:
        with beside(fill_on) as filling:
            for _ in kill_all((url, topic, name, "target", broker.url), server, broker, copied, filling):
                # What was seen becomes visible on every partition, with no mirror that could copy it again.
                seen = {one[0] for partition in [*found.values()] for one in [*partition]}
                is_whole = partial(lambda seen: not seen & {*torn(found)}, seen)
                wait_until(is_whole, "whole transactions", seconds=COPY_SECONDS)
        with msgtx.connect(url) as client:
            client.mirror(topic, name=name, target=broker.url, until_caught_up=True)
            expected = contents(client, topic)
        require_copied(lambda: kafka.contents(topic), expected)
        assert size(expected) > BACKLOG // 5 * 4 * RECORDS
        wait_until(lambda: watching.done() or size(found) >= size(expected), "the reader has all", seconds=COPY_SECONDS)
    require_same(found, expected)


def produce(producer: confluent_kafka.Producer, topic: str, number: int, records: int, run: int) -> None:
    """Store a transaction over all partitions; every fifth is aborted."""
    producer.begin_transaction()
    for each in range(records):
        value = None if each == 5 else b"%d" % each
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    transaction_key(run, number, records),
                    each % PARTITIONS,
                    timestamp=1_700_000_000_000 + number,
                    headers=[("n", b"%d" % each), ("none", None)] if each % 3 == 0 else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
    if number % 5 == 4:
        assert producer.flush(COPY_SECONDS) == 0  # so that Kafka has them
        producer.abort_transaction(COPY_SECONDS)
    else:
        producer.commit_transaction(COPY_SECONDS)


def watch(url: str, topic: str, found: Found, over: threading.Event) -> None:
    """Read what is committed, cut by cut, until `over`. The records of each cut are those that the progress has."""
    start, at_least = None, 0
    while not over.is_set():
        with contextlib.suppress(errors.MsgtxError), msgtx.connect(url) as client:

            def progress(client: msgtx.Client = client) -> int:
                return sum(one.records for one in client.admin.mirrors.list())

            while not over.wait(0.05):
                if topic in client.topics.list():
                    before = progress()
                    cut = client.snapshots.take([topic]).snapshot
                    after = progress()
                    records = list(client.read(cut, start))
                    start = cut
                    for record in records:
                        found.setdefault((record.topic, record.partition), []).append(columns(record))
                    assert at_least <= before <= size(found) <= after, "records without their progress"
                    at_least = before


def test_from_kafka_nothing_is_lost_or_doubled_when_mirrors_postgresql_and_the_broker_are_killed(
    server: CrashServer, broker: Broker, kafka: Kafka, unique: Unique
) -> None:
    url, topic, name = server.server.create_database(), kafka.topic(PARTITIONS), unique("mirror")
    producer = kafka.producer(**{"transactional.id": topic, "message.timeout.ms": 50_000})
    for number in range(BACKLOG):
        produce(producer, topic, number, RECORDS, run=0)
    found: Found = {}

    def copied() -> int:
        with msgtx.connect(url) as client:
            return sum(one.records for one in client.admin.mirrors.list())

    def fill_on(over: threading.Event) -> None:
        number = 0
        while not over.is_set():
            produce(producer, topic, number, IN_EACH, run=1)
            number += 1

    with beside(lambda over: watch(url, topic, found, over)) as watching:
        with beside(fill_on) as filling:
            for _ in kill_all((url, topic, name, "source", broker.url), server, broker, copied, filling):
                pass
        expected = kafka.contents(topic)  # every transaction is decided
        with msgtx.connect(url) as client:

            def copy() -> Contents:
                client.mirror(topic, name=name, source=broker.url, until_caught_up=True)
                return contents(client, topic)

            require_copied(copy, expected)
            assert not list(client.admin.verify().violations)
        assert size(expected) > BACKLOG // 5 * 4 * RECORDS
        assert not torn(expected)
        wait_until(lambda: watching.done() or size(found) >= size(expected), "the reader has all", seconds=COPY_SECONDS)
    require_same(found, expected)
