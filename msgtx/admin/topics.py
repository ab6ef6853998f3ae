"""Topics: `client.topics`."""

import builtins
from typing import Unpack

from msgtx import errors
from msgtx.admin.settings import read_settings
from msgtx.arguments import LARGEST_INT4, flag, topic, whole
from msgtx.database.connection import LONG_ANSWER_SECONDS, until
from msgtx.database.pool import Engine
from msgtx.declared.settings import TOPIC
from msgtx.settings import TopicSettings
from msgtx.store.topics.topics import Topic, alter_topic, create_topic, delete_topic, describe_topics, require_topics
from msgtx.types import TopicDescription


class TopicsAdmin:
    """`client.topics`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(
        self, /, name: str, partitions: int = 1, *, if_not_exists: bool = False, **settings: Unpack[TopicSettings]
    ) -> TopicDescription:
        """Create a topic; `if_not_exists`: one that is there is left as it is.

        Raise `TopicExists`, `InvalidTopic`, `ConfigError` for an unknown setting or value.
        """
        name, if_not_exists = topic(name), flag("if_not_exists", if_not_exists)
        partitions = whole("partitions", partitions, least=-LARGEST_INT4, most=LARGEST_INT4)
        given = read_settings("topic", TOPIC, settings)
        try:
            with self._engine.connection() as connection:
                create_topic(connection, name, partitions, given)
        except errors.TopicExists:
            if not if_not_exists:
                raise
        return self.describe(name)

    def list(self) -> list[str]:
        """Return the names of all topics, in order."""
        with self._engine.connection() as connection:
            return list(describe_topics(connection, None))

    def describe(self, name: str) -> TopicDescription:
        """Describe a topic. Raise `UnknownTopicOrPartition`."""
        name = topic(name)
        with self._engine.connection() as connection:
            found = require_topics(connection, [name])[name]
        return _described(found)

    def describe_all(self) -> builtins.list[TopicDescription]:
        """Describe all topics, in order of their names, in one call."""
        with self._engine.connection() as connection:
            return [_described(each) for each in describe_topics(connection, None).values()]

    def alter(self, /, name: str, partitions: int | None = None, **settings: Unpack[TopicSettings]) -> TopicDescription:
        """Change settings of a topic, or give it more partitions; other settings stay.

        With more partitions, keys go to others than before. Consumers that subscribed take them up within seconds,
        producers within half a minute. Raise `UnknownTopicOrPartition`, `ConfigError` for an unknown setting or value,
        `InvalidRequest` for fewer partitions than there are.
        """
        name = topic(name)
        if partitions is not None:
            partitions = whole("partitions", partitions, least=-LARGEST_INT4, most=LARGEST_INT4)
        given = read_settings("topic", TOPIC, settings)
        with self._engine.connection() as connection:
            alter_topic(connection, name, partitions, given)
        return self.describe(name)

    def delete(self, name: str) -> None:
        """Delete a topic with everything in it. Raise `UnknownTopicOrPartition`."""
        name = topic(name)
        with until(silence=LONG_ANSWER_SECONDS), self._engine.connection() as connection:
            delete_topic(connection, name)


def _described(found: Topic) -> TopicDescription:
    return TopicDescription(found.name, len(found.partition_ids), found.settings)
