"""Retention and compaction beside producers and consumers of the library, all at once (internals: cleaning)."""

import concurrent.futures
import random
import threading

import pytest

import msgtx
from msgtx import TopicPartition
from msgtx.coordinator.compactor import Compactor
from msgtx.coordinator.sweep import Sweeper
from msgtx.store.sweeps import sweeps
from tests.store.steps import unique

SECONDS = 30.0
TRANSACTIONS = 60
KEYS = [b"key-%d" % n for n in range(12)]


def clean(client: msgtx.Client, stop: threading.Event) -> None:
    """Retention, compaction, markers and floors, without a pause."""
    sweeper = Sweeper(["markers", "floors"])
    with client.runtime.engine.connection() as connection:
        while not stop.is_set():
            sweeper.round(connection)
            for step in (sweeps.remove_old_batches, Compactor(min_dirty_ratio=0, rows_at_once=3)):
                after = None
                while (after := step(connection, after, None).after) is not None:
                    pass


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_cleaning_beside_producers_and_consumers_changes_nothing_but_what_it_removes(
    client: msgtx.Client, policy: str
) -> None:
    topic, dice = unique("cleaned"), random.Random(policy)
    client.topics.create(
        topic, cleanup_policy=policy, delete_retention_ms=0, retention_bytes=-1 if policy == "compact" else 2_000
    )
    place, committed = TopicPartition(topic, 0), {}
    got: list[msgtx.Record] = []
    done = threading.Event()

    def produce() -> None:
        try:
            with client.producer(transactional_id=topic) as producer:
                for number in range(TRANSACTIONS):
                    aborts, sent = dice.random() < 0.3, []
                    producer.begin_transaction()
                    for _ in range(dice.randrange(1, 5)):
                        key = dice.choice(KEYS)
                        value = b"aborted" if aborts else None if dice.random() < 0.1 else b"%d" % number
                        sent.append((producer.send(topic, value, key=key), key, value))
                        if dice.random() < 0.5:
                            producer.flush(SECONDS)
                    if aborts:
                        producer.abort_transaction()
                        continue
                    producer.commit_transaction()
                    committed.update({future.result(SECONDS).offset: (key, value) for future, key, value in sent})
        finally:
            done.set()

    def consume() -> None:
        with client.consumer(topic, auto_offset_reset="earliest") as consumer:
            while not done.is_set() or consumer.lag()[place]:
                got.extend(consumer.poll(0.2))

    stop = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        cleaner = executor.submit(clean, client, stop)
        try:
            for other in (executor.submit(produce), executor.submit(consume)):
                other.result(SECONDS)
        finally:
            stop.set()
        cleaner.result(SECONDS)
    offsets = [record.offset for record in got]
    assert offsets == sorted(set(offsets)), "in order, each once"
    assert all(committed[record.offset] == (record.key, record.value) for record in got)
    newest = {key: (offset, value) for offset, (key, value) in sorted(committed.items())}
    last = {record.key: (record.offset, record.value) for record in got}
    start = client.admin.partitions.describe(place).log_start_offset
    for key, (offset, value) in newest.items():
        assert last.get(key) == (offset, value) or value is None or offset < start, (
            "a reader gets the newest record of each key"
        )

    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        left = {}
        while consumer.lag().get(place, 1):
            left.update({record.offset: (record.key, record.value) for record in consumer.poll(0.2)})
    expected = {offset: pair for offset, pair in committed.items() if offset >= start}
    if policy == "delete":
        assert left == expected
    else:
        assert left.items() <= expected.items()
        for offset, value in newest.values():
            assert offset in left or value is None or offset < start
        assert start > 0 or policy == "compact"
    assert client.admin.verify([topic]).violations == []
