"""Producers as a partition knows them: `client.admin.producers`."""

from msgtx import arguments
from msgtx.database.pool import Engine
from msgtx.store.topics.topics import require_partitions
from msgtx.store.transactions.producers import describe_producers
from msgtx.types import ProducerState, TopicPartition


class ProducersAdmin:
    """`client.admin.producers`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self, partition: TopicPartition) -> list[ProducerState]:
        """Return the producers with state on a partition, by id. Raise `UnknownTopicOrPartition`."""
        partition = arguments.partition(partition)
        with self._engine.connection() as connection:
            return describe_producers(connection, require_partitions(connection, [partition])[partition])
