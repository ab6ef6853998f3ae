"""Mirrors between msgtx and Kafka: every record once, whatever is killed, and never a part of a transaction."""

import random
from collections.abc import Callable
from typing import Final

import msgtx
from tests.kafka.broker import Broker
from tests.kafka.conftest import Kafka
from tests.mirror.conftest import columns

Unique = Callable[[str], str]
PARTITIONS: Final = 3
IN_EACH: Final = 8  # records of a transaction


def contents(client: msgtx.Client, topic: str) -> dict[tuple[str, int], list[tuple[object, ...]]]:
    """Return what a reader of committed records gets, by partition, without its offsets."""
    found: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    if topic in client.topics.list():
        for record in client.read(client.snapshot([topic])):
            found.setdefault((record.topic, record.partition), []).append(columns(record))
    return found


def fill(client: msgtx.Client, topic: str, transactions: int, *, seed: int = 1) -> None:
    """Store transactions over all partitions, every fifth of them aborted. The key names the transaction."""
    drawn = random.Random(seed)
    with client.producer(transactional_id=f"fill-{topic}-{seed}") as producer:
        for number in range(transactions):
            producer.begin_transaction()
            for each in range(IN_EACH):
                producer.send(
                    topic,
                    None if drawn.random() < 0.1 else drawn.randbytes(drawn.randrange(200)),
                    key=b"%d-%d" % (seed, number),
                    partition=each % PARTITIONS,
                    timestamp=1_700_000_000_000 + number,
                    headers=[("n", b"%d" % each), ("none", None)] if drawn.random() < 0.3 else None,
                )
            if number % 5 == 4:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def test_from_msgtx_to_kafka_and_back_all_is_the_same(
    client: msgtx.Client, make_database: Callable[..., str], broker: Broker, kafka: Kafka, unique: Unique
) -> None:
    topic, name = unique("there"), unique("mirror")
    client.topics.create(topic, partitions=PARTITIONS, retention_ms=-1)
    fill(client, topic, 20)
    assert client.mirror(topic, name=name, target=broker.url, until_caught_up=True).records == 16 * IN_EACH
    assert client.mirror(topic, name=name, target=broker.url, until_caught_up=True).records == 0
    assert kafka.contents(topic) == contents(client, topic)
    with msgtx.connect(make_database()) as back:
        report = back.mirror(topic, name=name, source=broker.url, until_caught_up=True, max_records=50)
        assert report.records == 16 * IN_EACH
        assert contents(back, topic) == contents(client, topic)
        assert not list(back.admin.verify().violations)
        (found,) = back.admin.mirrors.list()
        assert found.source_address == broker.url.partition("?")[0]
