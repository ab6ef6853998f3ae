"""Fixtures of the tests of the facade: it connects to the module's database."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import msgtx
from msgtx.compat import confluent_kafka as kafka
from msgtx.database.opening import VARIABLE

WAIT = 60.0


@dataclass
class Group:
    """Two members of a group; the second one is still to join."""

    topic: str
    producer: kafka.Producer
    first: kafka.Consumer
    second: kafka.Consumer


@pytest.fixture(autouse=True)
def _database(client: msgtx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The facade finds its database where every client finds it."""
    monkeypatch.setenv(VARIABLE, client.secret_url)


@pytest.fixture
def topic(client: msgtx.Client, unique: Callable[[str], str]) -> str:
    """A topic of one partition."""
    name = unique("topic")
    client.topics.create(name)
    return name


@pytest.fixture
def make_producer() -> Iterator[Callable[..., kafka.Producer]]:
    """Makes producers, and closes them."""
    made: list[kafka.Producer] = []

    def make(**config: Any) -> kafka.Producer:
        made.append(kafka.Producer({"bootstrap.servers": "nowhere:9092", **config}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def send(make_producer: Callable[..., kafka.Producer]) -> Callable[..., None]:
    """Sends values to a topic: they are stored when it returns."""
    producer = make_producer()

    def send(topic: str, *values: str) -> None:
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(WAIT) == 0

    return send


@pytest.fixture
def make_consumer(unique: Callable[[str], str]) -> Iterator[Callable[..., kafka.Consumer]]:
    """Makes consumers that read from the beginning, and closes them."""
    made: list[kafka.Consumer] = []

    def make(**config: Any) -> kafka.Consumer:
        given = {"bootstrap.servers": "nowhere:9092", "group.id": unique("group"), "auto.offset.reset": "earliest"}
        made.append(kafka.Consumer({**given, **config}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def group(
    make_producer: Callable[..., kafka.Producer],
    make_consumer: Callable[..., kafka.Consumer],
    client: msgtx.Client,
    unique: Callable[[str], str],
) -> Group:
    """A group whose first member has read a record of each partition, and a producer with an open transaction."""
    topic, source = unique("wide"), make_producer()
    producer = make_producer(**{"transactional.id": unique("id")})
    client.topics.create(topic, partitions=2)
    for each in (0, 1):
        source.produce(topic, "a", partition=each)
    source.flush(WAIT)
    given = {"group.id": unique("group"), "heartbeat.interval.ms": 50, "enable.auto.commit": False}
    first, second = make_consumer(**given), make_consumer(**given)
    first.subscribe([topic])
    found = [first.poll(WAIT) for _ in range(2)]
    assert [message and message.value() for message in found] == [b"a", b"a"]
    producer.init_transactions(WAIT)
    producer.begin_transaction()
    return Group(topic, producer, first, second)
