"""Mirrors between msgtx and Kafka: every record once, whatever is killed, and never a part of a transaction."""

import collections
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

import msgtx
from msgtx import errors
from msgtx.mirror.kafka import KafkaMirrors
from tests.databases import wait_until
from tests.kafka.broker import Broker
from tests.kafka.conftest import Kafka
from tests.kafka.workloads import IN_EACH, PARTITIONS, beside, contents, fill, mirror

Unique = Callable[[str], str]
MOST_TRANSACTIONS: Final = 100_000
KILLS: Final = 4
COPY_SECONDS: Final = 120.0  # for a mirror that begins, and a broker that was killed
LOOK_SECONDS: Final = 0.1


def test_from_msgtx_to_kafka_and_back_all_is_the_same(
    client: msgtx.Client, make_database: Callable[..., str], broker: Broker, kafka: Kafka, unique: Unique
) -> None:
    topic, name = unique("there"), unique("mirror")
    client.topics.create(topic, partitions=PARTITIONS, retention_ms=-1)
    fill(client, topic, 20)
    assert client.mirror(topic, name=name, target=broker.url, until_caught_up=True).records == 16 * IN_EACH
    assert client.mirror(topic, name=name, target=broker.url, until_caught_up=True).records == 0
    assert kafka.contents(topic) == contents(client, topic)
    with msgtx.connect(make_database()) as back:
        report = back.mirror(topic, name=name, source=broker.url, until_caught_up=True, max_records=50)
        assert report.records == 16 * IN_EACH
        assert contents(back, topic) == contents(client, topic)
        assert not list(back.admin.verify().violations)
        (found,) = back.admin.mirrors.list()
        assert found.source_address == broker.url.partition("?")[0]


def kill_often(
    mirrored: Sequence[str], broker: Broker, copied: Callable[[], int], judge: Callable[[], None], filling: Future[None]
) -> None:
    """Kill mirrors when they have copied something, and the broker once. `judge`: called while none runs."""
    seen = 0
    for number in range(KILLS):
        with mirror(mirrored) as process:
            if number == KILLS // 2:
                broker.kill()
                broker.start()
            before, deadline = seen, time.monotonic() + COPY_SECONDS
            while seen <= before:
                assert time.monotonic() < deadline, "the mirror copies nothing"
                if filling.done():
                    filling.result()
                time.sleep(LOOK_SECONDS)
                with contextlib.suppress(errors.KafkaUnavailable):  # a broker that was started has no leader at first
                    seen = copied()
                assert process.poll() is None, "the mirror has ended by itself"
        judge()


def test_to_kafka_nothing_is_lost_doubled_or_torn_when_mirrors_and_the_broker_are_killed(
    client: msgtx.Client,
    database_url: str,
    broker: Broker,
    kafka: Kafka,
    unique: Unique,
) -> None:
    topic, name = unique("killed"), unique("mirror")
    client.topics.create(topic, partitions=PARTITIONS, retention_ms=-1)

    def copied() -> int:
        return sum(one.records for one in KafkaMirrors(broker.url).list() if one.name == name)

    def whole() -> None:
        """A transaction that was seen becomes visible on every partition, with no mirror that could copy it again."""
        seen = keys(kafka, topic).keys()

        def all_whole() -> bool:
            now = keys(kafka, topic)
            return all(now[key] >= IN_EACH for key in seen)

        wait_until(all_whole, "whole transactions", seconds=COPY_SECONDS)

    with beside(lambda over: fill(client, topic, MOST_TRANSACTIONS, over)) as filling:
        kill_often((database_url, topic, name, "target", broker.url), broker, copied, whole, filling)
    client.mirror(topic, name=name, target=broker.url, until_caught_up=True)
    assert kafka.contents(topic) == contents(client, topic)


def keys(kafka: Kafka, topic: str) -> collections.Counter[bytes | None]:
    """Return how many records of each key a reader of committed records gets."""
    found = kafka.contents(topic, stable=True)
    return collections.Counter(one[0] for partition in found.values() for one in partition)


def test_from_kafka_nothing_is_lost_or_doubled_when_mirrors_and_the_broker_are_killed(
    make_database: Callable[..., str],
    broker: Broker,
    kafka: Kafka,
    unique: Unique,
) -> None:
    url, topic, name = make_database(), kafka.topic(PARTITIONS), unique("mirror")
    producer = kafka.producer(**{"transactional.id": topic, "message.timeout.ms": 50_000})

    def produce(over: threading.Event) -> None:
        number = 0
        while not over.is_set():
            number += 1
            producer.begin_transaction()
            for each in range(IN_EACH):
                value = None if each == 5 else b"%d" % each
                producer.produce(
                    topic, value, key=b"%d" % number, partition=each % PARTITIONS, headers=[("n", b"%d" % each)]
                )
            if number % 5 == 4:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)

    with msgtx.connect(url) as client:

        def copied() -> int:
            return sum(one.records for one in client.admin.mirrors.list())

        with beside(produce) as filling:
            kill_often((url, topic, name, "source", broker.url), broker, copied, lambda: None, filling)
        kafka.contents(topic)  # every transaction is decided
        client.mirror(topic, name=name, source=broker.url, until_caught_up=True)
        assert contents(client, topic) == kafka.contents(topic)
        assert not list(client.admin.verify().violations)


def test_the_command_line_runs_lists_and_resets_a_mirror_to_kafka(
    client: msgtx.Client, database_url: str, broker: Broker, unique: Unique
) -> None:
    topic, name = unique("commanded"), unique("mirror")
    client.topics.create(topic, partitions=PARTITIONS, retention_ms=-1)
    fill(client, topic, 5)

    def call(*arguments: str) -> str:
        command = [sys.executable, "-m", "msgtx.cli", "--url", database_url, "-o", "json", "mirror", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert f'"records": {4 * IN_EACH}' in call("run", topic, "--name", name, "--target", broker.url, "--until-caught-up")
    assert f'"{name}"' in call("list", "--target", broker.url)
    assert f'"{topic}"' in call("describe", name, "--target", broker.url)
    call("reset", name, "--target", broker.url, "--yes")
    assert f'"{name}"' not in call("list", "--target", broker.url)
