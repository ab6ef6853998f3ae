"""The mirrors to a Kafka cluster, as it has them: a compacted topic with the name of the mirror as key.

A mirror writes its progress there in the Kafka transaction that holds the records. A tombstone is a reset.
"""

import time
from collections.abc import Collection, Iterator
from typing import Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec, ResourceType

from msgtx.errors import ConfigError, KafkaUnavailable, UnknownTopicOrPartition
from msgtx.mirror.kafka_client import STALE, Cluster, message_offset
from msgtx.mirror.kafka_stored import MIRRORS_TOPIC, StoredMirror, decode
from msgtx.types import TopicPartition

# Kafka compacts closed segments only: small ones, so that a start reads little.
MIRRORS_TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
LEADERS_SECONDS: Final = 0.05  # between two looks for leaders
TRANSACTIONAL_ID: Final = "msgtx-mirror-"  # followed by the name of the mirror


def is_made(cluster: Cluster) -> bool:
    """Return whether the cluster has the topic."""
    with cluster.asking(f"looking for the topic {MIRRORS_TOPIC}"):
        return MIRRORS_TOPIC in cluster.admin.list_topics(timeout=cluster.answer_seconds).topics


def make_mirrors_topic(cluster: Cluster) -> None:
    """Make the topic if it is missing. Raise `ConfigError` for one that is not compacted: it would forget."""
    is_there = is_made(cluster)
    with cluster.asking(f"making the topic {MIRRORS_TOPIC}"):
        if not is_there:
            make_topic(cluster, MIRRORS_TOPIC, 1, MIRRORS_TOPIC_SETTINGS)
            return
        policy = topic_settings(cluster, MIRRORS_TOPIC)["cleanup.policy"]
    if policy != "compact":
        raise ConfigError(
            f"{MIRRORS_TOPIC} of {cluster.address} has the cleanup.policy {policy}: set it to compact, or progress is lost"
        )


def topic_settings(cluster: Cluster, topic: str) -> dict[str, str]:
    """Return a topic's settings that have a value, by Kafka's names."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    asked = cluster.admin.describe_configs([resource], request_timeout=cluster.answer_seconds)
    found = asked[resource].result()
    return {name: entry.value for name, entry in found.items() if entry.value}


def make_topic(cluster: Cluster, topic: str, partitions: int, settings: dict[str, str]) -> bool:
    """Make a topic with the replication that the cluster has by default. Return whether there was none."""
    made = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=settings)
    error = cluster.admin.create_topics([made], request_timeout=cluster.answer_seconds)[topic].exception()
    if error is not None and error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise error
    return error is None


def topic_ids(cluster: Cluster, topics: Collection[str]) -> dict[str, str]:
    """Return the ids of topics by name. A topic that was made again has another one; one that is not there has none."""
    if not topics:
        return {}
    found: dict[str, str] = {}
    asked = cluster.admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=cluster.answer_seconds)
    for name, answer in asked.items():
        error = answer.exception()
        if error is None:
            found[name] = str(answer.result().topic_id)
        elif error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise error
    return found


def ends_of(cluster: Cluster, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offsets behind the last records of partitions, decided or not.

    New leaders are asked for by reading the metadata: after a broker was restarted, or for a new partition.
    """
    deadline = time.monotonic() + cluster.answer_seconds
    while True:
        try:
            return _ends_by_known_leaders(cluster, places)
        except KafkaException as error:
            if error.args[0].code() not in STALE or time.monotonic() > deadline:
                raise
        time.sleep(LEADERS_SECONDS)
        cluster.admin.list_topics(timeout=cluster.answer_seconds)


def _ends_by_known_leaders(cluster: Cluster, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    if not places:
        return {}
    asked = {KafkaPartition(*at): OffsetSpec.latest() for at in places}
    answers = cluster.admin.list_offsets(
        asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=cluster.answer_seconds
    )
    found = {TopicPartition(at.topic, at.partition): answer.result().offset for at, answer in answers.items()}
    if min(found.values()) < 0:  # librdkafka's answer, without an error, if the leader is lost on the way: it knows no end
        raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    return found


def list_mirrors(cluster: Cluster, only: str | None = None) -> dict[str, StoredMirror]:
    """Return the mirrors by name, as `read_mirrors` does; none if the cluster has had no mirror."""
    return read_mirrors(cluster, only) if is_made(cluster) else {}


def read_mirrors(cluster: Cluster, only: str | None = None) -> dict[str, StoredMirror]:
    """Return the mirrors by name; `only`: the one of this name.

    The read goes to the end of all transactions. A reader of committed records sees none behind one that is undecided, so
    another mirror's open transaction would hide progress that this one has committed. Raise `KafkaUnavailable` if a broker
    does not know the topic: it may not have heard of it yet.
    """
    stored: dict[str, bytes] = {}
    try:
        for key, value in _committed(cluster, _end(cluster)):
            if value is None:
                stored.pop(key, None)
            else:
                stored[key] = value
    except UnknownTopicOrPartition as error:
        raise KafkaUnavailable(str(error)) from error
    return {name: decode(value) for name, value in stored.items() if only is None or name == only}


def _end(cluster: Cluster) -> int:
    """Return the offset behind the topic's last record, decided or not."""
    place = TopicPartition(MIRRORS_TOPIC, 0)
    with cluster.asking(f"looking for the end of {MIRRORS_TOPIC}"):
        return ends_of(cluster, [place])[place]


def _committed(cluster: Cluster, end: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield the topic's keys and values below an offset. Raise `KafkaUnavailable` if a transaction stays undecided."""
    consumer = cluster.consumer(**{"auto.offset.reset": "earliest"})
    try:
        consumer.assign([KafkaPartition(MIRRORS_TOPIC, 0, 0)])
        deadline, position = time.monotonic() + cluster.answer_seconds, 0
        while position < end:
            before = position
            for message in [*consumer.consume(1, 0.25), *consumer.consume(1_000, 0)]:
                error = message.error()
                if error is None:
                    position = message_offset(message) + 1
                    yield (message.key() or b"").decode(errors="replace"), message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    position = max(position, message_offset(message))
                else:
                    raise cluster.error(error, f"reading {MIRRORS_TOPIC}")
            if position > before:
                deadline = time.monotonic() + cluster.answer_seconds
            elif time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"{cluster.address}, while reading {MIRRORS_TOPIC}: nothing behind offset {position} for"
                    f" {cluster.answer_seconds:g} s; brokers are away, or another mirror's transaction is open there"
                )
    finally:
        consumer.close()


def forget_mirror(cluster: Cluster, name: str) -> None:
    """Remove the progress of a mirror; one that runs is fenced."""
    producer = cluster.producer(TRANSACTIONAL_ID + name, lambda *_: None)  # the commit fails as well
    with cluster.asking(f"resetting the mirror {name!r}"):
        producer.init_transactions(cluster.answer_seconds)
        producer.begin_transaction()
        producer.produce(MIRRORS_TOPIC, None, key=name.encode(), partition=0)
        producer.commit_transaction(cluster.answer_seconds)
