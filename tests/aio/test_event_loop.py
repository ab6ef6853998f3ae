"""The event loop waits for nothing: neither for the database, nor for a lock under which a thread waits for it."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import msgtx
from msgtx import TopicPartition, aio
from tests.links import Link

SECONDS = 30.0
PAUSE_SECONDS = 0.2  # in which each call comes to where it waits
SETTINGS: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
Call = Callable[[], Coroutine[Any, Any, object]]


async def sends(producer: aio.Producer, topic: str) -> None:
    deliveries = [await producer.send(topic, b"a"), await producer.send(topic, b"b", dedup_key="b")]
    deliveries.append(await producer.send(topic, b"c"))
    for delivery in deliveries:
        await delivery


async def in_transactions(producer: aio.Producer, topic: str) -> None:
    async with producer, producer.transaction():
        await (await producer.send(topic, b"a"))


async def reads(consumer: aio.Consumer, topic: str) -> None:
    await consumer.subscribe([topic])
    await consumer.poll(SECONDS)
    await consumer.commit()


async def direct(client: aio.Client, consumer: aio.Consumer, share: aio.ShareConsumer, topic: str) -> None:
    """What is not awaited."""
    for _ in range(20):
        consumer.assignment()
        with contextlib.suppress(msgtx.errors.MsgtxError):
            consumer.pause([TopicPartition(topic, 0)])
        with contextlib.suppress(msgtx.errors.MsgtxError):
            consumer.resume([TopicPartition(topic, 0)])
        with contextlib.suppress(msgtx.errors.MsgtxError):
            consumer.group_metadata()
        with contextlib.suppress(msgtx.errors.MsgtxError, AttributeError):
            share.acknowledge(None)  # type: ignore[arg-type]
        client.producer()
        client.consumer(topic, group=topic, **SETTINGS)
        client.share_consumer(topic, group=f"{topic}-share")
        await asyncio.sleep(PAUSE_SECONDS / 40)


def test_no_call_holds_the_loop_up_while_the_database_says_nothing(
    database_url: str, client: msgtx.Client, topic: str, wide: str
) -> None:
    """First calls of each kind of object, several at once: they ask for ids, topics, memberships and connections."""
    with client.producer() as filling:
        for name in (topic, wide):
            filling.send(name, b"x").result(SECONDS)
    link = Link(database_url)

    async def main() -> bool:
        async with await aio.connect(link.url, pool_size=3) as other:
            producer, transactional = other.producer(), other.producer(transactional_id=topic)
            consumer = other.consumer(topic, group=topic, **SETTINGS)
            share = other.share_consumer(topic, group=f"{topic}-share")
            calls: list[Call] = [
                *[lambda: sends(producer, topic)] * 3,
                lambda: sends(producer, wide),
                lambda: producer.send_batch(topic, [b"d"]),
                lambda: in_transactions(transactional, wide),
                lambda: reads(consumer, topic),
                lambda: share.poll(0.1),
                other.topics.list,
                lambda: other.snapshot([topic]),
                lambda: direct(other, consumer, share, topic),
            ]
            link.freeze()
            stuck = threading.Event()
            rescue = threading.Timer(SECONDS / 3, lambda: (stuck.set(), link.thaw()))  # else nothing would thaw it
            rescue.start()
            working = [asyncio.ensure_future(call()) for call in calls]
            await asyncio.sleep(PAUSE_SECONDS)
            rescue.cancel()
            link.thaw()
            await asyncio.gather(*working)
            return stuck.is_set()

    try:
        assert not asyncio.run(main())
    finally:
        link.close()


@pytest.mark.parametrize("what", ["producer", "consumer", "share consumer"])
def test_an_object_is_closed_while_the_database_says_nothing(
    database_url: str, client: msgtx.Client, topic: str, what: str
) -> None:
    """The loop goes on meanwhile."""
    link = Link(database_url)

    async def main() -> bool:
        async with await aio.connect(link.url) as other:
            made: Any
            if what == "producer":
                made = other.producer()
                await (await made.send(topic, b"a"))
                await made.send(topic, b"b")
            elif what == "consumer":
                made = other.consumer(topic, group=topic, **SETTINGS)
                await made.subscribe([topic])
            else:
                made = other.share_consumer(topic, group=f"{topic}-share")
                await made.poll(0)
            link.freeze()
            stuck = threading.Event()
            rescue = threading.Timer(SECONDS / 3, lambda: (stuck.set(), link.thaw()))
            rescue.start()
            closing = asyncio.ensure_future(made.close())
            await asyncio.sleep(PAUSE_SECONDS)
            made.sync.closed  # noqa: B018 - it is asked in the loop
            rescue.cancel()
            link.thaw()
            await closing
            return stuck.is_set()

    try:
        assert not asyncio.run(main())
    finally:
        link.close()
