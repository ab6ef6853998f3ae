"""Topics: `client.topics`."""

from msgtx import errors
from msgtx.database.engine import Engine
from msgtx.store.topics import SETTINGS, create_topic, delete_topic, describe_topics, require_topics
from msgtx.types import TopicDescription


class TopicsAdmin:
    """`client.topics`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(self, name: str, partitions: int = 1, **settings: int | str) -> TopicDescription:
        """Create a topic. Raise `TopicExists`, `InvalidTopic`, `ConfigError` for an unknown setting or value."""
        unknown = settings.keys() - set(SETTINGS)
        if unknown:
            raise errors.ConfigError(f"unknown topic setting {min(unknown)!r}; known are {', '.join(SETTINGS)}")
        with self._engine.connection() as connection:
            create_topic(connection, name, partitions, settings)
        return self.describe(name)

    def list(self) -> list[str]:
        """Return the names of all topics, in order."""
        with self._engine.connection() as connection:
            return list(describe_topics(connection, None))

    def describe(self, name: str) -> TopicDescription:
        """Describe a topic. Raise `UnknownTopicOrPartition`."""
        with self._engine.connection() as connection:
            found = require_topics(connection, [name])[name]
        return TopicDescription(found.name, len(found.partition_ids), found.settings)

    def delete(self, name: str) -> None:
        """Delete a topic with everything in it. Raise `UnknownTopicOrPartition`."""
        with self._engine.connection() as connection:
            delete_topic(connection, name)
