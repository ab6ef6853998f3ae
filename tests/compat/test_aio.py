"""The facade's asyncio classes."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import msgtx
from msgtx.compat.confluent_kafka import KafkaException, Message, Producer, TopicPartition
from msgtx.compat.confluent_kafka.aio import AIOConsumer, AIOProducer

WAIT = 60.0


def config(**others: Any) -> dict[str, Any]:
    return {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False, **others}


def test_the_future_of_a_message_is_the_stored_message(topic: str) -> None:
    async def main() -> None:
        async with AIOProducer({"linger.ms": 1}) as producer:
            futures = [await producer.produce(topic, value=str(i), headers={"h": "1"}) for i in range(3)]
            stored = await asyncio.wait_for(asyncio.gather(*futures), WAIT)
            assert [message.offset() for message in stored] == [0, 1, 2]
            with pytest.raises(KafkaException):
                await producer.produce(topic, value="x", partition=9)
        with pytest.raises(RuntimeError, match="closed"):
            await producer.produce(topic)

    asyncio.run(main())


def test_a_full_queue_is_awaited(topic: str) -> None:
    async def main() -> None:
        async with AIOProducer({"queue.buffering.max.messages": 2}) as producer:
            futures = [await producer.produce(topic, value=str(i)) for i in range(10)]
            stored = await asyncio.wait_for(asyncio.gather(*futures), WAIT)
            assert [message.offset() for message in stored] == list(range(10))

    asyncio.run(main())


def test_the_loop_does_not_wait_for_a_topic_that_is_looked_up(topic: str, client: msgtx.Client) -> None:
    client.topics.create(f"{topic}-2")
    threads: list[threading.Thread] = []

    async def main() -> None:
        async with AIOProducer({}) as producer:
            await producer.produce(topic, value="a")
            inner = producer._producer._inner()
            send = inner.send

            def noted(*args: Any, **kwargs: Any) -> Any:
                threads.append(threading.current_thread())
                return send(*args, **kwargs)

            inner.send = noted  # type: ignore[method-assign]
            for name in (topic, f"{topic}-2", f"{topic}-2"):
                await producer.produce(name, value="b")

    asyncio.run(main())
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


def test_a_callback_awaits_calls_of_its_own_consumer(make_producer: Callable[..., Producer], topic: str) -> None:
    send(make_producer(), topic, 3)
    told: list[list[TopicPartition]] = []

    async def main() -> None:
        consumer = AIOConsumer(config())

        async def on_assign(given: AIOConsumer, partitions: list[TopicPartition]) -> None:
            assert given is consumer
            partitions[0].offset = 1
            await given.assign(partitions)
            told.append(await given.assignment())

        await consumer.subscribe([topic], on_assign=on_assign)
        message = await consumer.poll(WAIT)
        assert message is not None
        assert message.offset() == 1
        await consumer.commit(message, asynchronous=False)
        assert [each.offset for each in await consumer.committed([TopicPartition(topic, 0)])] == [2]
        await consumer.close()
        with pytest.raises(RuntimeError, match="closed"):
            await consumer.poll(0)

    asyncio.run(main())
    assert [(each.topic, each.partition) for each in told[0]] == [(topic, 0)]


def test_an_exception_of_a_callback_leaves_the_poll(make_producer: Callable[..., Producer], topic: str) -> None:
    send(make_producer(), topic, 1)

    async def fail(*_: object) -> None:
        raise LookupError("the program's own")

    async def main() -> None:
        async with AIOConsumer(config()) as consumer:
            await consumer.subscribe([topic], on_assign=fail)
            with pytest.raises(LookupError, match="the program's own"):
                await consumer.poll(WAIT)

    asyncio.run(main())


def test_a_message_of_a_cancelled_poll_comes_with_the_next(make_producer: Callable[..., Producer], topic: str) -> None:
    producer = make_producer()
    send(producer, topic, 1)

    async def main() -> list[Message | None]:
        async with AIOConsumer(config()) as consumer:
            await consumer.subscribe([topic])
            found = [await consumer.poll(WAIT)]
            waiting = asyncio.create_task(consumer.poll(WAIT))
            await asyncio.sleep(0)  # it has begun
            waiting.cancel()
            await asyncio.wait([waiting])
            await asyncio.to_thread(send, producer, topic, 1)
            found.append(await consumer.poll(WAIT))
            return found

    assert [message.offset() for message in asyncio.run(main()) if message is not None] == [0, 1]


def test_cancelled_polls_lose_and_double_nothing_that_is_committed_by_itself(
    make_producer: Callable[..., Producer], topic: str, unique: Callable[[str], str]
) -> None:
    """Whenever a poll is cancelled: each message is returned once, by this consumer or by the next one of its group."""
    count, given = 30, config(**{"group.id": unique("group"), "enable.auto.commit": True, "auto.commit.interval.ms": 1})
    send(make_producer(), topic, count)

    async def read(consumer: AIOConsumer, most: int, cancels: int) -> list[int | None]:
        found: list[int | None] = []
        for number in range(cancels):
            poll = consumer.poll(WAIT) if number % 2 else consumer.consume(2, WAIT)
            waiting: asyncio.Task[Any] = asyncio.ensure_future(poll)
            for _ in range(number % 7):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                got = waiting.result()
                found += [each.offset() for each in (got if isinstance(got, list) else [got])]
        while len(found) < most:
            message = await consumer.poll(WAIT)
            assert message is not None
            found.append(message.offset())
        cut_off = asyncio.ensure_future(consumer.poll(WAIT))
        await asyncio.sleep(0)
        cut_off.cancel()
        await asyncio.wait([cut_off])
        return found if cut_off.cancelled() else [*found, cut_off.result().offset()]

    async def main() -> list[int | None]:
        found: list[int | None] = []
        for most in (10, count - 10):
            async with AIOConsumer(given) as consumer:
                await consumer.subscribe([topic])
                found += await read(consumer, most, cancels=5)
        return found

    assert asyncio.run(main()) == list(range(count))


def test_a_transaction_is_awaited(topic: str) -> None:
    async def main() -> None:
        async with AIOProducer({"transactional.id": "t"}) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            stored = await producer.produce(topic, value="a")
            await producer.commit_transaction()
            assert (await asyncio.wait_for(stored, WAIT)).offset() == 0
            await producer.begin_transaction()
            lost = await producer.produce(topic, value="b")
            await producer.abort_transaction()
            await asyncio.gather(lost, return_exceptions=True)  # it may have been stored before it was aborted

    asyncio.run(main())


def send(producer: Producer, topic: str, count: int) -> None:
    for number in range(count):
        producer.produce(topic, str(number))
    assert producer.flush(WAIT) == 0


def test_a_consumer_may_be_closed_twice() -> None:
    async def main() -> None:
        async with AIOConsumer(config()) as consumer:
            await consumer.close()
        with pytest.raises(RuntimeError, match="closed"):
            await consumer.poll(0)

    asyncio.run(main())
