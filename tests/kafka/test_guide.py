"""The guide of docs/operations/kafka.md: a topic moves from Kafka to msgtx, and to Kafka, without a stop."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgtx
from tests.databases import wait_until
from tests.kafka.broker import Broker
from tests.kafka.conftest import Kafka

Unique = Callable[[str], str]
COMMAND_SECONDS: Final = 120.0
T0: Final = 1_700_000_000_000
DONE: Final = 30  # records that the consumer had handled when it moved
STORED: Final = 50


class CommandLine:
    """The command line for a database."""

    def __init__(self, url: str) -> None:
        self._start = [sys.executable, "-m", "msgtx.cli", "--url", url, "-o", "json"]

    def __call__(self, *arguments: str) -> Any:
        """Run a command to its end, and return what it wrote."""
        done = subprocess.run(
            [*self._start, *arguments], capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """Run a command beside the block. It ends well by SIGTERM."""
        process = subprocess.Popen([*self._start, *arguments], stdout=subprocess.DEVNULL)
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(COMMAND_SECONDS) == 0
        finally:
            process.kill()


def test_a_topic_moves_from_kafka(
    client: msgtx.Client, database_url: str, broker: Broker, kafka: Kafka, unique: Unique
) -> None:
    topic, name, call = kafka.topic(1), unique("mirror"), CommandLine(database_url)
    mirror = ("mirror", "run", topic, "--name", name, "--source", broker.url)
    producer = kafka.producer()

    def store(first: int, end: int) -> None:
        for number in range(first, end):
            producer.produce(topic, b"%d" % number, partition=0, timestamp=T0 + number)
        assert producer.flush(60) == 0

    def is_level(count: int) -> bool:
        found = next((one for one in call("mirror", "list") if one["name"] == name), None)
        return found is not None and (found["records"], found["lag_records"]) == (count, 0)

    store(0, STORED)
    with call.running(*mirror):
        wait_until(lambda: is_level(STORED), "the mirror has caught up", seconds=COMMAND_SECONDS)
        moved_at = datetime.fromtimestamp((T0 + DONE) / 1000, UTC).isoformat()
        call("groups", "reset-offsets", "clicks", "--topic", topic, "--to-datetime", moved_at, "--yes")
        store(STORED, STORED + 10)  # a producer that has not moved yet
        wait_until(lambda: is_level(STORED + 10), "the mirror follows", seconds=COMMAND_SECONDS)
        client.producer().send(topic, b"moved", partition=0).result()
    report = call(*mirror, "--until-caught-up")
    assert (report["records"], report["lag_records"]) == (0, 0)
    call("mirror", "reset", name, "--yes")
    values = [record.value for record in client.read(client.snapshot([topic]))]
    assert values == [*(b"%d" % number for number in range(STORED + 10)), b"moved"]
    with client.consumer(topic, group="clicks") as consumer:
        found: list[msgtx.Record] = []
        wait_until(lambda: found.extend(consumer.poll("1s")) or len(found) > STORED + 10 - DONE, "the records")
    assert [record.value for record in found] == values[DONE:]


def test_a_topic_moves_to_kafka(
    client: msgtx.Client, database_url: str, broker: Broker, kafka: Kafka, unique: Unique
) -> None:
    topic, name, call = unique("orders"), unique("mirror"), CommandLine(database_url)
    mirror = ("mirror", "run", topic, "--name", name, "--target", broker.url)
    client.topics.create(topic, partitions=1, retention_ms=-1)

    def store(first: int, end: int) -> None:
        with client.producer() as producer:
            for number in range(first, end):
                producer.send(topic, b"%d" % number, timestamp=T0 + number)

    def values() -> list[object]:
        return [one[1] for one in kafka.contents(topic).get((topic, 0), [])]

    store(0, STORED)
    with call.running(*mirror):
        wait_until(lambda: len(values()) == STORED, "the mirror has caught up", seconds=COMMAND_SECONDS)
        store(STORED, STORED + 10)
        wait_until(lambda: len(values()) == STORED + 10, "the mirror follows", seconds=COMMAND_SECONDS)
        producer = kafka.producer()
        producer.produce(topic, b"moved", partition=0)
        assert producer.flush(60) == 0
    report = call(*mirror, "--until-caught-up")
    assert (report["records"], report["lag_records"]) == (0, 0)
    call("mirror", "reset", name, "--target", broker.url, "--yes")
    assert name not in {one["name"] for one in call("mirror", "list", "--target", broker.url)}
    assert values() == [*(b"%d" % number for number in range(STORED + 10)), b"moved"]
