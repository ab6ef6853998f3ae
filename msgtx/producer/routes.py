"""The topics that a producer sends to, with their partitions."""

import random

from msgtx import errors
from msgtx.producer.batches import Accumulator, Lane
from msgtx.producer.calls import ProducerCalls
from msgtx.producer.state import ProducerStatus
from msgtx.store.topics.topics import Topic, Topics


class Route:
    """A topic with its lanes, kept so that `send` needs one look-up for a record."""

    __slots__ = ("count", "lanes", "limit", "sticky", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.count = len(topic.partition_ids)
        self.limit = topic.max_message_bytes
        self.lanes: list[Lane | None] = [None] * self.count
        self.sticky = random.randrange(self.count)  # noqa: S311 - spreads load, guards nothing


class Routes:
    """The topics of a producer. `known`: by name, the topics that it has sent to."""

    def __init__(self, topics: Topics, accumulator: Accumulator, state: ProducerStatus, calls: ProducerCalls) -> None:
        self.known: dict[str, Route] = {}
        self._topics = topics
        self._accumulator = accumulator
        self._state = state
        self._calls = calls

    def find(self, name: str) -> Route:
        """Return a topic's route. Raise `UnknownTopicOrPartition`; `DatabaseUnavailable` after `max_block_ms`."""
        topic = self._calls.answered(lambda: self._topics(name, False), self._calls.deadline())
        assert topic is not None, "only a look at a topic as it is now finds none"
        return self.known.setdefault(name, Route(topic))

    def lane(self, route: Route, partition: int) -> Lane:
        """Return the lane of a partition. The caller holds the lock."""
        lane = route.lanes[partition]
        if lane is None:
            lane = route.lanes[partition] = self._accumulator.lane(route.topic, partition)
        return lane

    def partition_id(self, name: str, partition: int) -> int:
        """Return the id of a partition. Raise `UnknownTopicOrPartition`."""
        topic = self._topics(name, False)
        assert topic is not None, "only a look at a topic as it is now finds none"
        return topic.partition_id(partition)

    def refresh(self, name: str) -> Topic | None:
        """Look at a topic as it is now. Returns None if there is none."""
        topic = self._topics(name, True)
        if topic is not None:
            self.changed(topic)
        return topic

    def changed(self, topic: Topic) -> None:
        """Note the changes of a topic: another limit, more partitions, or a deletion and a new topic of the name."""
        with self._state.lock:
            route = self.known.get(topic.name)
            if route is None or topic.is_older_than(route.topic):
                return
            if topic.partition_ids[: route.count] != route.topic.partition_ids:
                self.known[topic.name] = Route(topic)
                self._made_again(topic)
            else:
                route.topic, route.limit = topic, topic.max_message_bytes
                route.lanes += [None] * (len(topic.partition_ids) - route.count)
                route.count = len(route.lanes)

    def _made_again(self, topic: Topic) -> None:
        """Send the records buffered for a topic to the partitions that it has now."""
        self._accumulator.lead_to(topic)
        transaction = self._state.transaction
        if transaction is not None and any(tp.topic == topic.name for tp in transaction.tails):
            self._state.fail(
                errors.UnknownTopicOrPartition(
                    f"{topic.name} was deleted and made again within the transaction: what it had is gone",
                    topic=topic.name,
                    reason="made again",
                )
            )
