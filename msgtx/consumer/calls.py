"""A consumer's questions to the database, by calls that may be repeated, and the names in them."""

from collections.abc import Collection, Mapping

from msgtx.config import ConsumerConfig
from msgtx.consumer.fetcher import Fetcher
from msgtx.consumer.losses import CommitLosses
from msgtx.database.connection import Connection
from msgtx.database.pool import Engine
from msgtx.database.standby import past_lack
from msgtx.errors import IllegalState
from msgtx.receiving.calls import Calls
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.topics.topics import Topic, Topics, TopicsNow, unknown_topic
from msgtx.types import GroupMetadata, OffsetAndMetadata, TopicPartition


class ConsumerCalls(Calls):
    """Makes the calls of one consumer."""

    def __init__(
        self, engine: Engine, config: ConsumerConfig, topics: Topics, topics_now: TopicsNow, *, fetcher: Fetcher
    ) -> None:
        super().__init__(engine, config)
        self._topics = topics
        self._topics_now = topics_now
        self.losses = CommitLosses(engine, config, fetcher)

    def commit_offsets(self, group: GroupMetadata, offsets: Mapping[int, OffsetAndMetadata]) -> None:
        """Commit offsets, by partition id, and wait. Raise `CommitsLost` if a failover has lost earlier ones."""

        def commit(connection: Connection) -> None:
            # Later offsets would hide the loss. On this connection: with a pool of one there is no other.
            if (lost := self.losses.look(connection)) is not None:
                raise lost
            commit_offsets(connection, {group: offsets})
            self.losses.acknowledged(connection, offsets)

        past_lack(self.engine, lambda: self.asked(commit))

    def group(self) -> str:
        """Return the group's name. Raise `IllegalState` if there is none."""
        if self._config.group is None:
            raise IllegalState("this consumer has no group: give it one (group=…) to commit offsets", reason="no group")
        return self._config.group

    def topics_now(self, names: Collection[str]) -> dict[str, Topic]:
        """Return topics as they are now, by one call; unknown ones are absent."""
        return self.answered(lambda: self._topics_now(sorted(set(names)))) if names else {}

    def require_topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Return topics as they are now. Raise `UnknownTopicOrPartition` for the first name that is absent."""
        topics = self.topics_now(names)
        for name in names:
            if name not in topics:
                raise self.asked(lambda connection: unknown_topic(connection, name))  # noqa: B023 - at once
        return topics

    def partition_id(self, partition: TopicPartition) -> int:
        """Return the id of a partition. Raise `UnknownTopicOrPartition`."""
        topic = self.answered(lambda: self._topics(partition[0], False))
        assert topic is not None
        return topic.partition_id(partition[1])
