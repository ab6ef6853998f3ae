"""Producers as a partition knows them: `client.admin.producers`."""

from msgtx import errors
from msgtx.database.engine import Engine
from msgtx.store.producers import describe_producers
from msgtx.store.topics import describe_topics
from msgtx.types import ProducerState, TopicPartition


class ProducersAdmin:
    """`client.admin.producers`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self, partition: TopicPartition) -> list[ProducerState]:
        """Return the producers with state on a partition, by id. Raise `UnknownTopicOrPartition`."""
        topic, index = partition
        with self._engine.connection() as connection:
            found = describe_topics(connection, [topic]).get(topic)
            if found is None or not 0 <= index < len(found.partition_ids):
                raise errors.UnknownTopicOrPartition(f"there is no partition {topic}-{index}")
            return describe_producers(connection, found.partition_ids[index])
