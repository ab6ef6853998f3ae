"""Everyday work over links that take a call in pieces: a Unix socket, and a network with small buffers and a delay (I1)."""

import asyncio
import concurrent.futures
import os
from collections.abc import Callable, Iterator

import pytest

import msgtx
from msgtx import aio, errors
from tests.databases import PATIENCE_SECONDS
from tests.links import Link, slow_link, unix_link

pytestmark = pytest.mark.slow

SECONDS = PATIENCE_SECONDS
VALUES = [os.urandom(250).hex().encode() for _ in range(500)]


@pytest.fixture(scope="module", params=[unix_link, slow_link], ids=["unix", "slow"])
def link(request: pytest.FixtureRequest, database_url: str) -> Iterator[Link]:
    with request.param(database_url) as made:
        yield made


@pytest.fixture
def far(link: Link) -> Iterator[msgtx.Client]:
    """A client at the other end of the link."""
    with msgtx.connect(link.url) as client:
        yield client


@pytest.fixture
def topic(far: msgtx.Client, unique: Callable[[str], str]) -> str:
    return far.topics.create(unique("far"), partitions=6).name


def read_all(client: msgtx.Client, topic: str, count: int) -> list[bytes | None]:
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        found: list[bytes | None] = []
        while len(found) < count:
            polled = consumer.poll(SECONDS, max_records=10_000)
            assert polled, f"{len(found)} of {count} arrived"
            found += [record.value for record in polled]
        return found


def test_bulk_sends_arrive_once(far: msgtx.Client, topic: str) -> None:
    """Several calls are in flight, each of up to 2 MB: no buffer between the two holds a whole one."""
    with far.producer() as producer:
        futures = [producer.send(topic, VALUES[n % 500]) for n in range(16_000)]
        producer.flush(SECONDS)
        assert all(future.exception(0) is None for future in futures)
    assert sorted(read_all(far, topic, 16_000)) == sorted(VALUES * 32)  # type: ignore[type-var]


def test_columns_arrive_once(far: msgtx.Client, topic: str) -> None:
    with far.producer() as producer:
        futures = [producer.send_batch(topic, VALUES, partition=index % 6) for index in range(24)]
        assert sum(future.result(SECONDS).count for future in futures) == 12_000
    assert sorted(read_all(far, topic, 12_000)) == sorted(VALUES * 24)  # type: ignore[type-var]


def test_transactions_commit_and_abort(far: msgtx.Client, topic: str) -> None:
    with far.producer(transactional_id=topic) as producer:
        for wanted in (True, False, True):
            producer.begin_transaction()
            for _ in range(8):
                producer.send_batch(topic, VALUES)
            if wanted:
                producer.commit_transaction(SECONDS)
            else:
                producer.abort_transaction(SECONDS)
        with producer.transaction():
            producer.send(topic, b"one call")
    assert len(read_all(far, topic, 8_001)) == 8_001


def test_what_is_consumed_is_produced_with_its_offsets(far: msgtx.Client, topic: str, unique: Callable[[str], str]) -> None:
    target = far.topics.create(unique("target"), partitions=2).name
    with far.producer() as producer:
        producer.send_batch(topic, VALUES * 4).result(SECONDS)
    report = far.process(
        topic, to=target, group=topic, transactional_id=topic, transform=lambda record: record.value, idle_timeout=2.0
    )
    assert report.records_out == 2_000
    assert len(read_all(far, target, 2_000)) == 2_000


def test_an_event_loop_sends_as_much(link: Link, topic: str) -> None:
    async def work() -> list[int]:
        async with await aio.connect(link.url) as client, client.producer() as producer:
            deliveries = [await producer.send_batch(topic, VALUES) for _ in range(16)]
            return [(await delivery).count for delivery in deliveries]

    assert asyncio.run(work()) == [500] * 16


def test_a_large_fetch_comes_in_pieces(far: msgtx.Client, topic: str) -> None:
    large = os.urandom(900_000)
    with far.producer() as producer:
        for future in [producer.send(topic, large, partition=0) for _ in range(6)]:
            future.result(SECONDS)
    assert read_all(far, topic, 6) == [large] * 6


def test_a_link_that_is_cut_in_the_middle_of_a_call_loses_and_doubles_nothing(
    link: Link, far: msgtx.Client, topic: str
) -> None:
    with far.producer(retry_backoff_ms=5) as producer:
        futures = []
        for n in range(8_000):
            futures.append(producer.send(topic, b"%d" % n + VALUES[n % 500]))
            if n % 2_000 == 1_500:
                link.cut()
        producer.flush(SECONDS)
        assert [future.exception(0) for future in futures if future.exception(0) is not None] == []
    assert len(set(read_all(far, topic, 8_000))) == 8_000


def test_silence_in_the_middle_of_a_call_ends_in_time_and_a_retry_doubles_nothing(
    link: Link, far: msgtx.Client, topic: str
) -> None:
    """The call may have been stored or not: repeated under its sequences, it is stored once."""
    with far.producer(request_timeout_ms=500, retry_backoff_ms=5) as producer:
        producer.send(topic, b"before", partition=0).result(SECONDS)
        link.freeze()
        with concurrent.futures.ThreadPoolExecutor(1) as background:
            sent = background.submit(producer.send_batch, topic, VALUES * 8, partition=0)
            with pytest.raises(TimeoutError):
                sent.result(SECONDS).result(1.5)
            link.thaw()
            assert sent.result(SECONDS).result(SECONDS).count == 4_000
    assert len(read_all(far, topic, 4_001)) == 4_001


def test_silence_past_the_delivery_timeout_fails_the_records(link: Link, far: msgtx.Client, topic: str) -> None:
    with far.producer(delivery_timeout_ms=1_000, retry_backoff_ms=5) as producer:
        producer.send(topic, b"before").result(SECONDS)
        link.freeze()
        try:
            failed = producer.send_batch(topic, VALUES * 4).exception(SECONDS)
        finally:
            link.thaw()
        assert isinstance(failed, errors.DeliveryTimeout)
