"""Fixtures of the tests with a real Kafka: a broker for each process of the run."""

import contextlib
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.databases import wait_until
from tests.kafka.broker import ASK_SECONDS, Broker, fetch

READ_SECONDS: Final = 120.0  # for the contents of a topic: a transaction that was left open ends after a minute
Columns = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker that runs."""
    fetch()
    made = Broker()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def kafka(broker: Broker) -> "Kafka":
    """What the tests do with the broker."""
    return Kafka(broker.servers)


class Kafka:
    """Kafka as a program of it sees it."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def metadata(self) -> ClusterMetadata:
        """Return which brokers, topics and partitions there are.

        librdkafka sends a question again to the broker that it chose, also to one that was killed meanwhile. It chooses
        another for the next question.
        """

        def ask() -> ClusterMetadata | None:
            with contextlib.suppress(confluent_kafka.KafkaException):
                return self.admin.list_topics(timeout=ASK_SECONDS)
            return None

        return wait_until(ask, "a broker answers", seconds=READ_SECONDS)

    def topic(self, partitions: int = 3, **settings: str) -> str:
        """Make a topic."""
        name = f"topic-{uuid.uuid4().hex[:8]}"
        self.make(name, partitions, **settings)
        return name

    def make(self, name: str, partitions: int, **settings: str) -> None:
        """Make a topic of this name, and wait until the broker knows it."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([NewTopic(name, partitions, config=config)])[name].result(30)
        self._wait_for_partitions(name, partitions)

    def widen(self, name: str, partitions: int) -> None:
        """Add partitions to a topic, and wait until the broker knows them."""
        self.admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)
        self._wait_for_partitions(name, partitions)

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.admin.delete_topics([name])[name].result(30)
        self._wait_for_partitions(name, 0)

    def _wait_for_partitions(self, name: str, count: int) -> None:
        def shown() -> int:
            topic = self.metadata().topics.get(name)
            return len(topic.partitions) if topic else 0

        wait_until(lambda: shown() == count, f"topic {name} has {count} partitions")

    def producer(self, **settings: Any) -> confluent_kafka.Producer:
        """Make a producer whose `flush` fails for a record that was not stored. With a transactional id, its commit does."""
        common = {"bootstrap.servers": self.servers, "log_level": 0}
        if "transactional.id" not in settings:
            return confluent_kafka.Producer({**common, "on_delivery": _require_stored, **settings})
        made = confluent_kafka.Producer({**common, **settings})
        made.init_transactions(30)
        return made

    def remove(self, topic: str, partition: int, below: int) -> None:
        """Remove the records of a partition below an offset, as retention does."""
        place = confluent_kafka.TopicPartition(topic, partition, below)
        for done in self.admin.delete_records([place]).values():
            done.result(30)

    def alter(self, topic: str, **settings: str) -> None:
        """Change settings of a topic, and wait until the broker knows."""
        changed = {name.replace("_", "."): value for name, value in settings.items()}
        entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in changed.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(30)

        def known() -> bool:
            found = self.admin.describe_configs([resource])[resource].result(30)
            return all(found[name].value == value for name, value in changed.items())

        wait_until(known, f"{topic} has {changed}")

    def ends(self, *places: confluent_kafka.TopicPartition, committed: bool = False) -> dict[tuple[str, int], int]:
        """Return the offsets behind the last records, or behind the last that a reader of committed records may get."""
        levels = confluent_kafka.IsolationLevel
        asked = self.admin.list_offsets(
            {place: OffsetSpec.latest() for place in places},
            isolation_level=levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED,
        )
        return {(place.topic, place.partition): found.result(30).offset for place, found in asked.items()}

    def last_stable(self, topic: str, partition: int) -> int:
        """Return the offset behind the last record that a reader of committed records may get."""
        return self.ends(confluent_kafka.TopicPartition(topic, partition), committed=True)[topic, partition]

    def contents(self, *topics: str, stable: bool = False) -> dict[tuple[str, int], list[Columns]]:
        """Return what a reader of committed records gets to the end of each partition, without its offsets.

        Kafka answers a commit before each partition knows of it, so the end is that of all records; with `stable`, that of
        those which are decided now.
        """
        found: dict[tuple[str, int], list[Columns]] = {}
        for message in self._read(topics, stable):
            columns = message.key(), message.value(), message.timestamp()[1], tuple(message.headers() or ())
            found.setdefault((message.topic(), message.partition()), []).append(columns)
        return found

    def _read(self, topics: Sequence[str], stable: bool) -> Iterator[confluent_kafka.Message]:
        consumer = confluent_kafka.Consumer({
            "bootstrap.servers": self.servers, "group.id": "tests", "isolation.level": "read_committed",
            "enable.auto.commit": False, "auto.offset.reset": "earliest", "enable.partition.eof": True, "log_level": 0,
        })  # fmt: skip
        try:
            found = self.metadata().topics
            places = [
                confluent_kafka.TopicPartition(name, number, confluent_kafka.OFFSET_BEGINNING)
                for name in topics
                if name in found
                for number in found[name].partitions
            ]
            unread = self.ends(*places, committed=stable) if places else {}
            consumer.assign(places)
            deadline = time.monotonic() + READ_SECONDS
            while unread:
                assert time.monotonic() < deadline, f"not read to the end: {unread}"
                for message in [*consumer.consume(1, 1), *consumer.consume(1_000, 0)]:
                    if message.error() is None:
                        yield message
                    else:
                        assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                        place = message.topic(), message.partition()
                        if message.offset() >= unread.get(place, 0):
                            unread.pop(place, None)
        finally:
            consumer.close()


def _require_stored(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
    assert error is None, f"{message.topic()}-{message.partition()}: {error}"
