"""A consumer's questions to the database, by calls that may be repeated, and the names in them."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from msgtx.config import ConsumerConfig
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.database.retry import retried
from msgtx.errors import IllegalState
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.topics.topics import Topic, Topics, TopicsNow, unknown_topic
from msgtx.types import GroupMetadata, OffsetAndMetadata, TopicPartition

Answer = TypeVar("Answer")


class ConsumerCalls:
    """Repeats calls until they are answered or `request_timeout_ms` are over."""

    def __init__(self, engine: Engine, config: ConsumerConfig, topics: Topics, topics_now: TopicsNow) -> None:
        self._engine = engine
        self._config = config
        self._topics = topics
        self._topics_now = topics_now

    def answered(self, attempt: Callable[[], Answer]) -> Answer:
        """Return the answer to a call that may be repeated."""
        seconds = self._config.request_timeout_ms / 1000
        return retried(
            attempt, deadline=time.monotonic() + seconds, pause=self._config.retry_backoff_ms / 1000, silence=seconds
        )

    def asked(self, question: Callable[[RawConnection], Answer]) -> Answer:
        """Return the database's answer to a question that may be repeated."""

        def attempt() -> Answer:
            with self._engine.connection() as connection:
                return question(connection)

        return self.answered(attempt)

    def commit_offsets(self, group: GroupMetadata, offsets: Mapping[int, OffsetAndMetadata]) -> None:
        """Commit offsets, by partition id, and wait."""
        self.asked(lambda connection: commit_offsets(connection, {group: offsets}))

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
