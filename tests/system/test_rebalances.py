"""A rebalance between poll and commit: at least once with plain commits, exactly once with `process`."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from msgtx import Client, Consumer, ProcessReport, Record, TopicPartition, errors
from tests.databases import wait_until
from tests.store.steps import unique
from tests.system.scenarios import READING

pytestmark = pytest.mark.slow

RECORDS: Final = 20
SECONDS: Final = 30.0
QUICK: Final = {"session_timeout_ms": 600, "heartbeat_interval_ms": 100}


@pytest.fixture
def topic(client: Client) -> str:
    """A topic of two partitions with ten records in each."""
    name = unique("rebalanced")
    client.topics.create(name, partitions=2)
    with client.producer() as producer:
        for number in range(RECORDS):
            producer.send(name, b"%d" % number, partition=number % 2)
    return name


@pytest.fixture
def join(client: Client, topic: str) -> Iterator[Callable[..., Consumer]]:
    """Members of one group; they are closed at the end."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Consumer:
            consumer = stack.enter_context(client.consumer(group=topic, **{**READING, **QUICK, **settings}))
            consumer.subscribe([topic])
            return consumer

        yield make


def handled(consumer: Consumer, count: int) -> Counter[bytes | None]:
    """Poll `count` records: they are processed, but not committed yet."""
    found: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.poll(0.1, count - len(found))
    return Counter(record.value for record in found)


def no_heartbeat(consumer: Consumer) -> None:
    """As if its process were stopped: it sends nothing to the group, and learns nothing."""
    membership = consumer.subscription.membership
    assert membership is not None
    membership._closing = True
    membership._waiter.wake()


ALL: Final[Counter[bytes | None]] = Counter(b"%d" % number for number in range(RECORDS))


# ── at least once ──


@pytest.mark.parametrize("how", ["it is stopped", "it takes too long"])
def test_a_member_that_loses_its_partitions_between_poll_and_commit_has_them_repeated_and_its_commit_refused(
    how: str, join: Callable[..., Consumer]
) -> None:
    slow = join(max_poll_interval_ms=300 if how == "it takes too long" else 300_000)
    done = handled(slow, 5)
    slow.commit()
    done += (in_hand := handled(slow, 6))
    if how == "it is stopped":
        no_heartbeat(slow)
    successor = join()
    repeated = handled(successor, RECORDS - 5)
    successor.commit()
    done += repeated
    assert in_hand < repeated, "records in hand come again"

    with pytest.raises(errors.UnknownMember):
        slow.commit()  # the zombie continues
    assert done.keys() == ALL.keys(), "at least once"
    assert done - ALL == in_hand, "and only records in hand come twice"
    assert sum(at.offset for at in successor.committed().values() if at is not None) == RECORDS


def test_a_zombie_that_polls_on_joins_again_and_repeats_nothing_that_is_committed(join: Callable[..., Consumer]) -> None:
    zombie = join(max_poll_interval_ms=300)
    done = handled(zombie, 6)
    with join() as successor:
        done += handled(successor, RECORDS)
        successor.commit()
        assert zombie.poll(0) == []
        wait_until(lambda: successor.poll(0.01) == [] and zombie.poll(0.01) == [] and len(zombie.assignment()) == 1,
                   "the partitions are divided again")  # fmt: skip
    assert sum(done.values()) == RECORDS + 6


def test_a_handover_waits_for_the_owners_poll_and_repeats_only_what_it_had_not_committed(
    client: Client, join: Callable[..., Consumer], topic: str
) -> None:
    owner = join()
    done = handled(owner, RECORDS)
    owner.commit({TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 7})
    other = join()
    for _ in range(10):
        assert other.poll(0.02) == [], "the owner holds on to what it polled"
    wait_until(lambda: owner.poll(0.01) == [] and len(owner.assignment()) == 1, "it gives one away")
    (moved,) = {TopicPartition(topic, 0), TopicPartition(topic, 1)} - owner.assignment()
    done += (repeated := handled(other, 3 if moved.partition else 0))
    assert other.poll(0.1) == []
    assert done - ALL == repeated
    assert client.admin.groups.describe(topic).members == 2


# ── exactly once ──


@pytest.mark.parametrize("batch", [False, True])
def test_a_worker_that_loses_its_partitions_within_a_transaction_leaves_each_output_once(
    batch: bool, client: Client, topic: str
) -> None:
    """I10, I11: the successor gets what it had in hand; its own transaction is refused, and it continues with new input."""
    target = f"out-{topic}"
    client.topics.create(target, partitions=2)
    in_hand, go_on, stop = threading.Event(), threading.Event(), threading.Event()
    reports: dict[str, ProcessReport] = {}

    def work(name: str, transform: Callable[[Any], Any], **config: object) -> threading.Thread:
        def run() -> None:
            reports[name] = client.process(
                topic, to=target, group=topic, transactional_id=f"{topic}-{name}", transform=transform, batch=batch,
                transaction_ms=10, stop=stop, consumer_config={**QUICK, **config},
            )  # fmt: skip

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def same(given: Any) -> list[bytes]:
        return [record.value for record in (given if batch else [given])]

    def slow(given: Any) -> list[bytes]:
        if not in_hand.is_set():
            in_hand.set()
            go_on.wait(SECONDS)
        return same(given)

    workers = [work("slow", slow, max_poll_interval_ms=300)]
    assert in_hand.wait(SECONDS)
    workers.append(work("successor", same))
    with client.consumer(target, auto_offset_reset="earliest") as reader:
        found = handled(reader, RECORDS)
        assert found == ALL, "the successor did all of it"
        go_on.set()
        wait_until(lambda: len(client.admin.groups.members(topic)) == 2, "the zombie joins again")
        with client.producer() as producer:
            for number in range(RECORDS):
                producer.send(topic, b"more %d" % number, partition=number % 2)
        found += handled(reader, RECORDS)
        stop.set()
        for worker in workers:
            worker.join()
        found += Counter(record.value for record in reader.poll(0.2))
    assert found == ALL + Counter(b"more %d" % number for number in range(RECORDS)), "exactly once"
    assert reports["slow"].aborted >= 1
    assert reports["slow"].records_in + reports["successor"].records_in == 2 * RECORDS
