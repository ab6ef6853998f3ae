"""What `list_topics` returns: the database as a cluster with one broker."""

from typing import Any, Final, cast
from urllib.parse import urlsplit

from confluent_kafka import KafkaError
from confluent_kafka.admin import BrokerMetadata, ClusterMetadata, PartitionMetadata, TopicMetadata

import msgtx

BROKER: Final = 1  # the id of the only broker
DEFAULT_PORT: Final = 5432


def cluster(client: msgtx.Client, topic: str | None = None) -> ClusterMetadata:
    """Return all topics, or one; one that does not exist has an error."""
    found: Any = ClusterMetadata()
    found.cluster_id = cluster_id(client)
    found.controller_id = found.orig_broker_id = BROKER
    found.brokers = {BROKER: broker(client)}
    found.orig_broker_name = str(found.brokers[BROKER])
    counts = {each.name: each.partitions for each in client.topics.describe_all()}
    for name in counts if topic is None else [topic]:
        found.topics[name] = _topic(name, counts.get(name))
    return cast(ClusterMetadata, found)


def cluster_id(client: msgtx.Client) -> str:
    """Return the id of the cluster: the installation's, which a restore changes."""
    return str(client.runtime.engine.incarnation)


def broker(client: msgtx.Client) -> BrokerMetadata:
    """Return the database's server as a broker."""
    address = urlsplit(client.url)
    found: Any = BrokerMetadata()
    found.id, found.host, found.port = BROKER, address.hostname or "localhost", address.port or DEFAULT_PORT
    return cast(BrokerMetadata, found)


def _topic(name: str, count: int | None) -> TopicMetadata:
    found = TopicMetadata()
    found.topic = name
    if count is None:
        found.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    for number in range(count or 0):
        one = PartitionMetadata()
        one.id, one.leader, one.replicas, one.isrs = number, BROKER, [BROKER], [BROKER]
        found.partitions[number] = one
    return found
