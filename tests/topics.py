"""A topic with records, for tests of what becomes of it."""

import pytest

import msgtx
from tests.store.steps import unique


@pytest.fixture
def topic(client: msgtx.Client) -> str:
    """A topic with three records."""
    name = unique("topic")
    client.topics.create(name)
    produce(client, name, 3)
    return name


def produce(client: msgtx.Client, topic: str, count: int) -> None:
    """Send so many records to a topic, and wait until they are stored."""
    with client.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)
