"""The consumer in an event loop: iteration, polls that are cancelled, Ctrl-C."""

import asyncio
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import msgtx
from msgtx import OffsetAndMetadata, TopicPartition, aio, errors
from tests.databases import PATIENCE_SECONDS
from tests.refusals import refuses
from tests.store.steps import unique

pytestmark = pytest.mark.slow

ENDLESS = 10 * PATIENCE_SECONDS
EARLIEST = {"auto_offset_reset": "earliest", "enable_auto_commit": False}


def fill(client: msgtx.Client, topic: str, count: int) -> None:
    with client.producer() as producer:
        for i in range(count):
            producer.send(topic, b"%d" % i)


@contextmanager
def soon() -> Iterator[None]:
    """The block ends long before the wait that it cuts short would have ended."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < PATIENCE_SECONDS


def test_iterating_yields_records_until_it_is_stopped(client: msgtx.Client, database_url: str, wide: str) -> None:
    async def main() -> list[msgtx.Record]:
        found = []
        async with await aio.connect(database_url) as reader, reader.consumer(wide, **EARLIEST) as consumer:
            async for record in consumer:
                found.append(record)
                if len(found) == 100:
                    asyncio.get_running_loop().call_later(0.05, consumer.stop)
        return found

    fill(client, wide, 100)
    assert sorted(int(record.value or b"") for record in asyncio.run(main())) == list(range(100))


async def test_the_position_is_exact_wherever_an_iteration_is_left(
    client: msgtx.Client, database_url: str, topic: str
) -> None:
    async def upto(consumer: aio.Consumer, last: int):  # type: ignore[no-untyped-def]
        async for record in consumer:
            yield record
            if record.offset == last:
                return

    group, partition = unique("group"), TopicPartition(topic, 0)
    fill(client, topic, 10)
    async with await aio.connect(database_url) as reader, reader.consumer(topic, group=group, **EARLIEST) as consumer:
        async for record in consumer:
            if record.offset == 6:
                break
        assert await consumer.position(partition) == 7
        await consumer.commit()
    async with await aio.connect(database_url) as reader, reader.consumer(topic, group=group, **EARLIEST) as consumer:
        assert [record.offset async for record in upto(consumer, 9)] == [7, 8, 9]


async def test_a_poll_ends_with_its_time_and_with_stop(database_url: str, topic: str) -> None:
    async with await aio.connect(database_url) as client, client.consumer(topic) as consumer:
        assert await consumer.poll(0) == []
        asyncio.get_running_loop().call_later(0.1, consumer.stop)
        with soon():
            assert await consumer.poll(ENDLESS) == []
        with pytest.raises(errors.InvalidRequest):
            await consumer.poll(ENDLESS, max_records=0)
        async with client.producer() as producer:
            await (await producer.send(topic, b"x"))
        assert len(await consumer.poll(PATIENCE_SECONDS)) == 1


async def test_a_poll_that_is_cancelled_ends_soon_and_the_consumer_goes_on(
    client: msgtx.Client, database_url: str, topic: str
) -> None:
    async with await aio.connect(database_url) as reader, reader.consumer(topic, **EARLIEST) as consumer:
        with soon(), pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.poll(ENDLESS), 0.2)
        await reader.run(fill, client, topic, 3)
        assert len(await consumer.poll(PATIENCE_SECONDS)) == 3
        waiting = asyncio.create_task(anext(aiter(consumer)))
        await asyncio.sleep(0.1)
        for _ in range(3):
            waiting.cancel()
            await asyncio.sleep(0)
        with soon(), pytest.raises(asyncio.CancelledError):
            await waiting
        await reader.run(fill, client, topic, 1)
        assert (await anext(aiter(consumer))).offset == 3


@pytest.mark.parametrize("seed", range(3))
async def test_polls_that_are_cancelled_anywhere_lose_nothing(database_url: str, wide: str, seed: int) -> None:
    """The next poll returns records that arrive while a poll is cancelled; a commit does not pass them."""

    async def send(producer: aio.Producer) -> None:
        for i in range(300):
            await (await producer.send(wide, b"%d" % i))

    chance = random.Random(seed)
    async with (
        await aio.connect(database_url) as client,
        client.consumer(wide, group=unique("group"), **EARLIEST) as consumer,
        client.producer(linger_ms=0) as producer,
    ):
        sending = asyncio.create_task(send(producer))
        found: list[int] = []
        cancelled = 0
        while len(found) < 300:
            try:
                async with asyncio.timeout(chance.uniform(0, 0.02)):
                    records = await consumer.poll(ENDLESS, max_records=chance.randrange(1, 20))
            except TimeoutError:
                cancelled += 1
                continue
            found += [int(record.value or b"") for record in records]
            if chance.random() < 0.1:
                await consumer.commit()
                await consumer.rewind()
        await sending
        assert cancelled > 0
        assert sorted(found) == list(range(300))


async def test_calls_of_several_tasks_come_one_after_the_other(client: msgtx.Client, database_url: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    fill(client, topic, 5)
    async with (
        await aio.connect(database_url) as reader,
        reader.consumer(topic, group=unique("group"), **EARLIEST) as consumer,
    ):
        assert len(await consumer.poll(PATIENCE_SECONDS)) == 5
        polling = asyncio.create_task(consumer.poll(0.3))
        await asyncio.sleep(0.05)
        await asyncio.gather(consumer.commit(), consumer.lag(), consumer.position(partition))
        assert polling.done()
        assert await consumer.committed() == {partition: OffsetAndMetadata(5)}


async def test_places_are_asked_for_and_changed(client: msgtx.Client, database_url: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    fill(client, topic, 5)
    async with await aio.connect(database_url) as reader:
        consumer = reader.consumer(group=unique("group"), **EARLIEST)
        with pytest.raises(errors.IllegalState):
            await consumer.poll()
        await consumer.assign([partition])
        assert consumer.assignment() == {partition}
        await consumer.seek(partition, 3)
        assert await consumer.position(partition) == 3
        assert await consumer.lag() == await consumer.offset_lag() == {partition: 2}
        consumer.pause([partition])
        assert await consumer.poll(0.05) == []
        consumer.resume([partition])
        assert [record.offset for record in await consumer.poll(PATIENCE_SECONDS)] == [3, 4]
        await consumer.commit({partition: 4})
        await consumer.rewind()
        assert await consumer.position(partition) == 4
        await consumer.seek_to_beginning()
        assert await consumer.position(partition) == 0
        assert await consumer.end_offsets() == {partition: 5}
        assert consumer.group_metadata().member_id is None
        await consumer.close()
        await consumer.close()
        with pytest.raises(errors.IllegalState):
            await consumer.poll()


async def test_a_consumer_that_is_closed_ends_what_waits(database_url: str, topic: str) -> None:
    async def count(consumer: aio.Consumer) -> int:
        return len([record async for record in consumer])

    async with await aio.connect(database_url) as client:
        consumers = [client.consumer(topic) for _ in range(2)]
        for consumer in consumers:
            await consumer.subscribe([topic])
        polling = asyncio.create_task(consumers[0].poll(ENDLESS))
        iterating = asyncio.create_task(count(consumers[1]))
        await asyncio.sleep(0.1)
        with soon():
            await client.close()
            assert await polling == []
            assert await iterating == 0


async def test_a_consumer_that_is_closed_ends_what_waits_for_its_turn(database_url: str, topic: str) -> None:
    """Tasks may share it: a poll that waits for another one would else begin before the close has its turn."""

    async def count(consumer: aio.Consumer) -> int:
        return len([record async for record in consumer])

    async with await aio.connect(database_url) as client, client.consumer(topic) as consumer:
        polling = [asyncio.create_task(consumer.poll(ENDLESS)) for _ in range(3)]
        iterating = [asyncio.create_task(count(consumer)) for _ in range(3)]
        await asyncio.sleep(0.1)
        with soon():
            await consumer.close()
            assert await asyncio.gather(*polling) == [[], [], []]
            assert await asyncio.gather(*iterating) == [0, 0, 0]
        with refuses(errors.IllegalState, reason="closed"):
            await consumer.poll(0)


async def test_rebalance_callbacks_are_plain_functions_in_the_consumers_thread(
    client: msgtx.Client, database_url: str, wide: str
) -> None:
    async def never(_: object) -> None:
        raise AssertionError

    assigned: list[list[TopicPartition]] = []
    with client.producer() as producer:
        for i in range(30):
            producer.send(wide, b"x", partition=i % 3)
    async with await aio.connect(database_url) as reader:
        settings = {"group": unique("group"), "heartbeat_interval_ms": 50, **EARLIEST}
        async with reader.consumer(**settings) as first, reader.consumer(**settings) as second:
            await first.subscribe([wide], on_assign=assigned.append, on_revoke=lambda tps: first.sync.commit())
            assert len(assigned[0]) == 3
            assert len(await first.poll(PATIENCE_SECONDS)) > 0
            await second.subscribe([wide])
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not second.assignment():
                    await asyncio.gather(first.poll(0.05), second.poll(0.05))
            committed = await second.committed()
            assert all(committed.values()), "the first one committed what it gave away"
            with refuses(TypeError, name="on_revoke"):
                await first.subscribe([wide], on_revoke=never)


async def test_a_consumer_that_cannot_subscribe_is_closed(database_url: str) -> None:
    async with await aio.connect(database_url) as client:
        consumer = client.consumer("absent", group="group")
        with pytest.raises(errors.UnknownTopicOrPartition):
            await consumer.__aenter__()
        assert consumer.sync.closed
        with pytest.raises(errors.ConfigError, match="auto_offset_reset"):
            client.consumer("absent", auto_offset_rest="earliest")


PROGRAM = """
import asyncio, signal, sys
from msgtx import aio

signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background is told to ignore it

async def main():
    async with await aio.connect(sys.argv[1]) as client:
        async with client.consumer(sys.argv[2], group=sys.argv[3], auto_offset_reset="earliest") as consumer:
            if sys.argv[4] == "poll":
                print(len(await consumer.poll(60)), flush=True)
                await consumer.poll(600)
            else:
                async for record in consumer:
                    print(record.offset, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["poll", "iterate"])
def test_ctrl_c_ends_a_program_that_waits_and_commits_where_it_was(
    client: msgtx.Client, database_url: str, topic: str, way: str
) -> None:
    fill(client, topic, 1)
    group = unique("group")
    command = [sys.executable, "-c", PROGRAM, database_url, topic, group, way]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch = threading.Timer(PATIENCE_SECONDS, program.kill)
    watch.start()
    assert program.stdout is not None
    assert program.stdout.readline()
    time.sleep(0.2)
    program.send_signal(signal.SIGINT)
    _, complaints = program.communicate()
    watch.cancel()
    assert complaints.rstrip().endswith("KeyboardInterrupt")
    assert "never" not in complaints
    assert program.returncode == -signal.SIGINT
    committed = {each.partition: each.current_offset for each in client.admin.groups.describe(group).partitions}
    assert committed == {0: 1}
