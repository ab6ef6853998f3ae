"""Bad days: the server's disk is full. Nothing acknowledged is lost or doubled, and all continues when there is room."""

import concurrent.futures
import random
from collections.abc import Callable, Iterator

import pytest

from msgtx import Outcome, TopicPartition, errors
from msgtx.client import Client
from tests.cli.program import Ended
from tests.databases import wait_until
from tests.small_disk import SmallDisk, small_disk
from tests.store.steps import unique
from tests.system.scenarios import FAST, PATIENCE_SECONDS, READING

pytestmark = pytest.mark.long

LEFT = 512 * 1024  # for the first records; then no other page has room
PAGE = 8192
LARGE = 20_000  # bytes of a record, random, so it cannot be compressed
_chance = random.Random(20_241_121)


@pytest.fixture(scope="module")
def disk() -> Iterator[SmallDisk]:
    with small_disk() as made:
        yield made


@pytest.fixture(scope="module")
def database_url(disk: SmallDisk) -> str:
    return disk.server.create_database()


@pytest.fixture
def topic(client: Client) -> str:
    name = unique("full")
    client.topics.create(name, partitions=2)
    return name


@pytest.fixture(autouse=True)
def _room(disk: SmallDisk) -> Iterator[None]:
    yield
    disk.empty()
    disk.start()


def large(number: int) -> bytes:
    return b"%d " % number + _chance.randbytes(LARGE)


def numbers(client: Client, topic: str) -> dict[int, list[int]]:
    """Read a topic to its end: the numbers of its records, by partition."""
    seen: dict[int, list[int]] = {}
    with client.consumer(topic, **READING) as reader:
        while any(reader.offset_lag().values()):
            for record in reader.poll(PATIENCE_SECONDS):
                seen.setdefault(record.partition, []).append(int((record.value or b"").split(b" ")[0]))
    return seen


def test_producers_wait_for_room_and_lose_nothing(
    disk: SmallDisk,
    client: Client,
    topic: str,
    database_url: str,
    shell: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = 100
    with client.producer(transactional_id=f"{topic}-open", **FAST) as transactional:
        name = transactional.begin_transaction().id
        transactional.send(topic, large(-1), partition=1).result(PATIENCE_SECONDS)
        with client.producer(linger_ms=0, **FAST) as producer:
            futures = [producer.send(topic, large(number), partition=0) for number in range(total // 10)]
            assert [future.result(PATIENCE_SECONDS).offset for future in futures] == list(range(total // 10))
            disk.fill(LEFT)
            futures += [producer.send(topic, large(number), partition=0) for number in range(total // 10, total)]
            wait_until(lambda: disk.free < PAGE, "the disk is full")
            assert disk.alive

            # Other clients get the reason in one line.
            hasty = client.producer(linger_ms=0, retry_backoff_ms=10, delivery_timeout_ms=200)
            with hasty:
                refused = hasty.send_batch(topic, [large(-2)] * 20, partition=1)
                with pytest.raises(errors.DeliveryTimeout, match="No space left on device"):
                    refused.result(PATIENCE_SECONDS)
            monkeypatch.setenv("MSGTX_DELIVERY_TIMEOUT_MS", "200")
            lines = b"".join(b"-2 %s\n" % _chance.randbytes(LARGE).hex().encode() for _ in range(40))
            ended = shell(database_url, "produce", topic, "--partition", "1", stdin=lines)
            assert ended.code == 1
            assert "No space left on device" in ended.err
            assert shell(database_url, "topics", "list").code == 0
            assert client.transaction_outcome(name) is Outcome.OPEN
            assert not all(future.done() for future in futures)

            disk.empty()
            assert [future.result(PATIENCE_SECONDS).offset for future in futures] == list(range(total))
        transactional.send(topic, large(-3), partition=1)
        transactional.commit_transaction()
    client.sweep()
    seen = numbers(client, topic)
    assert seen[0] == list(range(total))
    assert [number for number in seen[1] if number != -2] == [-1, -3]


def test_a_server_that_panics_for_lack_of_wal_goes_on_when_there_is_room(
    disk: SmallDisk, client: Client, topic: str, database_url: str, shell: Callable[..., Ended]
) -> None:
    """The server ends itself: what was acknowledged is there after its next start, and clients continue by themselves."""
    total = 60
    with (
        client.producer(linger_ms=0, **FAST) as producer,
        client.producer(transactional_id=topic, **FAST) as transactional,
        client.consumer(topic, **READING) as reader,
        concurrent.futures.ThreadPoolExecutor(1) as threads,
    ):
        futures = [producer.send(topic, large(number), partition=0) for number in range(total // 2)]
        acknowledged = [future.result(PATIENCE_SECONDS).offset for future in futures]
        transactional.begin_transaction()
        transactional.send(topic, large(-1), partition=1).result(PATIENCE_SECONDS)
        disk.fill(0)
        disk.panic()
        wait_until(lambda: not disk.alive, "the server has ended itself")
        ended = shell(database_url, "topics", "list")
        assert ended.code == 3
        futures += [producer.send(topic, large(number), partition=0) for number in range(total // 2, total)]
        reading = threads.submit(reader.poll, PATIENCE_SECONDS)
        with pytest.raises(errors.OutcomeUnknown):
            transactional.commit_transaction(timeout=0.1)
        disk.empty()
        disk.start()
        assert reading.result()
        assert [future.result(PATIENCE_SECONDS).offset for future in futures] == list(range(total))
        assert acknowledged == list(range(total // 2))
        try:
            transactional.commit_transaction()
        except errors.TransactionAborted:  # nothing had flushed its record
            transactional.abort_transaction()
            with transactional.transaction():
                transactional.send(topic, large(-1), partition=1)
    client.sweep()
    assert numbers(client, topic) == {0: list(range(total)), 1: [-1]}
    assert client.admin.partitions.describe(TopicPartition(topic, 1)).last_stable_offset >= 1
