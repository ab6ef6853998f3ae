"""Topics and their partitions."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgtx import errors
from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int8Array, TextArray
from msgtx.declared.settings import TOPIC
from msgtx.generated import calls
from msgtx.rules.names import did_you_mean
from msgtx.store.sweeps.coordinators import led
from msgtx.types import TopicPartition

LOGS_AT_ONCE: Final = 250  # partitions that one call looks at, and locks
REMOVE_DELETED_LOGS: Final = calls.REMOVE_DELETED_LOGS.first(4)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the database knows it: partition ids in order of their index, and settings."""

    name: str
    partition_ids: tuple[int, ...]
    settings: dict[str, int | str | None]

    def partition_id(self, index: int) -> int:
        """Return the id of a partition. Raise `UnknownTopicOrPartition`."""
        if not 0 <= index < len(self.partition_ids):
            raise errors.UnknownTopicOrPartition(
                f"there is no partition {self.name}-{index}; {self.name} has partitions 0 to {len(self.partition_ids) - 1}",
                topic=self.name,
                partition=index,
            )
        return self.partition_ids[index]

    def is_older_than(self, other: "Topic") -> bool:
        """Whether `other`, of the same name, was made after this one was deleted: ids of partitions only grow."""
        return self.partition_ids[0] < other.partition_ids[0]

    @property
    def max_message_bytes(self) -> int:
        """The largest record that the topic takes, in bytes."""
        limit = self.settings["max_message_bytes"]
        assert isinstance(limit, int)
        return limit

    @property
    def is_compacted(self) -> bool:
        """Whether every record needs a key."""
        return str(self.settings["cleanup_policy"]).startswith("compact")


Topics = Callable[[str, bool], Topic | None]  # a topic by its name; True: as it is now, not as it is remembered
TopicsNow = Callable[[Sequence[str]], dict[str, Topic]]  # several as they are now; unknown ones are absent


def create_topic(connection: RawConnection, name: str, partitions: int, settings: Mapping[str, object]) -> None:
    """Create a topic. Raise `TopicExists`, `InvalidTopic`, `ConfigError` for an unknown setting."""
    call(connection, calls.CREATE_TOPIC, name, partitions, json.dumps(dict(settings)))


def alter_topic(connection: RawConnection, name: str, partitions: int | None, settings: Mapping[str, object]) -> None:
    """Change settings, add partitions (None: as many as there are). Raise `UnknownTopicOrPartition`, `InvalidRequest`."""
    call(connection, calls.ALTER_TOPIC, name, partitions, json.dumps(dict(settings)))


def delete_topic(connection: RawConnection, name: str) -> None:
    """Delete a topic, at once for all clients, and its log, in steps. Raise `UnknownTopicOrPartition`.

    If this process ends on the way, the next sweep removes the rest.
    """
    call(connection, calls.DELETE_TOPIC, name)
    position: Int8Array | None = None
    while True:
        ((_, after, _),) = call(connection, REMOVE_DELETED_LOGS, position, LOGS_AT_ONCE, *led(None))
        if after is None:
            return
        position = Int8Array(after)


def topics_version(connection: RawConnection) -> int:
    """Return a number that every change of the topics raises."""
    ((version,),) = call(connection, calls.TOPICS_VERSION)
    return int(version)


def describe_topics(connection: RawConnection, names: Sequence[str] | None) -> dict[str, Topic]:
    """Return topics by name (None: all), in order of their names; unknown ones are absent."""
    rows = call(connection, calls.DESCRIBE_TOPICS, None if names is None else TextArray(names))
    return {name: Topic(name, tuple(partition_ids), _in_order(settings)) for name, partition_ids, settings in rows}


def _in_order(settings: dict[str, int | str | None]) -> dict[str, int | str | None]:
    """Return settings in the order in which they are declared; those of a later version come last."""
    return {one.name: settings[one.name] for one in TOPIC} | settings


def unknown_topic(connection: RawConnection, name: str) -> errors.UnknownTopicOrPartition:
    """Return the error for a topic that is not there, or not shown to this role."""
    advice = did_you_mean(name, describe_topics(connection, None), otherwise="create it first, or ask for a right to it")
    return errors.UnknownTopicOrPartition(f"there is no topic {name!r}; {advice}", topic=name)


def require_topics(connection: RawConnection, names: Sequence[str] | None) -> dict[str, Topic]:
    """Return the answer of `describe_topics`. Raise `UnknownTopicOrPartition` for the first name that is absent."""
    topics = describe_topics(connection, names)
    for name in names or ():
        if name not in topics:
            raise unknown_topic(connection, name)
    return topics


def require_partitions(connection: RawConnection, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return partition ids. Raise `UnknownTopicOrPartition` for the first partition that is absent."""
    wanted = [TopicPartition(*partition) for partition in partitions]
    topics = describe_topics(connection, sorted({name for name, _ in wanted})) if wanted else {}
    ids = {}
    for partition in wanted:
        topic = topics.get(partition.topic)
        if topic is None:
            raise unknown_topic(connection, partition.topic)
        ids[partition] = topic.partition_id(partition.partition)
    return ids


def partitions_of(topics: Iterable[Topic]) -> dict[int, TopicPartition]:
    """Return the partitions of topics by their ids."""
    return {
        partition_id: TopicPartition(topic.name, index)
        for topic in topics
        for index, partition_id in enumerate(topic.partition_ids)
    }
