"""The share consumer in an event loop: answers, transactions, sessions, polls that are cancelled."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

import msgtx
from msgtx import Acknowledgement, aio, errors
from tests.aio.conftest import Rows
from tests.aio.test_sessions import LEVELS, engine_of, insert
from tests.client.sharing import accept, fill
from tests.databases import PATIENCE_SECONDS
from tests.refusals import refuses
from tests.store.steps import unique

pytestmark = pytest.mark.slow

ENDLESS = 10 * PATIENCE_SECONDS


@pytest.fixture
def group(client: msgtx.Client) -> str:
    name = unique("share")
    client.admin.shares.configure(name, {"auto_offset_reset": "earliest"})
    return name


@contextlib.asynccontextmanager
async def sharing(
    worker: aio.Client, topic: str, group: str, mode: str = "implicit"
) -> AsyncIterator[tuple[aio.ShareConsumer, aio.Producer]]:
    """A member of a share group, and a transactional producer."""
    async with (
        worker.share_consumer(topic, group=group, acknowledgement_mode=mode) as consumer,
        worker.producer(transactional_id=group) as producer,
    ):
        yield consumer, producer


def left(client: msgtx.Client, group: str) -> int:
    return client.admin.shares.describe(group).lag


def test_answers_are_given_by_commit(client: msgtx.Client, database_url: str, topic: str, group: str) -> None:
    async def main() -> None:
        async with await aio.connect(database_url) as reader:
            async with reader.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
                first, second, third = await consumer.poll(PATIENCE_SECONDS)
                consumer.acknowledge(first)
                consumer.acknowledge(second, Acknowledgement.REJECT, reason="no")
                consumer.acknowledge(third, Acknowledgement.RELEASE)
                await consumer.commit()
                assert [(each.offset, each.delivery_count) for each in await consumer.poll(PATIENCE_SECONDS)] == [(2, 2)]
                with refuses(errors.InvalidRecordState, offset=0, reason="not held"):
                    consumer.acknowledge(first)
            await consumer.close()
            with refuses(errors.IllegalState, reason="closed"):
                await consumer.poll()
        assert client.admin.shares.describe(group).dead_letters == 1

    fill(client, topic, 3)
    asyncio.run(main())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("commits", [True, False])
def test_answers_are_part_of_a_session(
    client: msgtx.Client, database_url: str, topic: str, group: str, rows: Rows, level: str, commits: bool
) -> None:
    async def main() -> None:
        async with (
            engine_of(database_url, level) as engine,
            await aio.connect(database_url) as worker,
            worker.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer,
        ):
            records = await consumer.poll(PATIENCE_SECONDS)
            async with AsyncSession(engine) as session:
                await insert(session, 7)
                for record in records[:3]:
                    consumer.acknowledge(record)
                consumer.acknowledge(records[3], Acknowledgement.REJECT)
                await consumer.commit(session=session)
                await (session.commit() if commits else session.rollback())
            if not commits:  # they are held as before
                for record in records:
                    consumer.acknowledge(record, Acknowledgement.RELEASE)
                await consumer.commit()

    fill(client, topic, 4)
    asyncio.run(main())
    assert rows() == ([7] if commits else [])
    client.sweep()  # which writes what was rejected in a transaction
    assert left(client, group) == (0 if commits else 4)
    assert client.admin.shares.describe(group).dead_letters == int(commits)


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("seed", range(2))
def test_polls_that_are_cancelled_anywhere_lose_nothing(
    client: msgtx.Client, database_url: str, wide: str, group: str, mode: str, seed: int
) -> None:
    """What a cancelled poll acquired is handed out by the next one: it is neither accepted nor delivered again (I17)."""

    async def main() -> None:
        async with (
            await aio.connect(database_url) as worker,
            worker.share_consumer(wide, group=group, acknowledgement_mode=mode) as consumer,
            worker.producer(linger_ms=0) as producer,
        ):
            sending = asyncio.create_task(send(producer))
            found: list[int] = []
            cancelled = 0
            while len(found) < 200:
                try:
                    async with asyncio.timeout(chance.uniform(0, 0.02)):
                        records = await consumer.poll(ENDLESS, max_records=chance.randrange(1, 20))
                except TimeoutError:
                    cancelled += 1
                    continue
                found += [int(record.value or b"") for record in records]
                assert {record.delivery_count for record in records} == {1}
                accept(consumer.sync, records)
                if chance.random() < 0.2:
                    await consumer.commit()
            await sending
            await consumer.commit()
            assert cancelled > 0
            assert sorted(found) == list(range(200))

    async def send(producer: aio.Producer) -> None:
        for number in range(200):
            await (await producer.send(wide, b"%d" % number))

    chance = random.Random(seed)
    asyncio.run(main())
    assert left(client, group) == 0


def test_an_iteration_that_is_left_has_accepted_what_it_came_to(
    client: msgtx.Client, database_url: str, topic: str, group: str
) -> None:
    async def main() -> None:
        async with await aio.connect(database_url) as reader, reader.share_consumer(topic, group=group) as consumer:
            async for record in consumer:
                if record.offset == 6:
                    break
            await consumer.commit()
            assert left(client, group) == 3
            asyncio.get_running_loop().call_later(0.3, consumer.stop)
            assert [record.offset async for record in consumer] == [7, 8, 9]
            await consumer.commit()

    fill(client, topic, 10)
    asyncio.run(main())
    assert left(client, group) == 0


def test_a_share_consumer_that_is_closed_ends_what_waits(database_url: str, topic: str, group: str) -> None:
    async def main() -> None:
        async with await aio.connect(database_url) as worker:
            consumer = worker.share_consumer(topic, group=group)
            polling = asyncio.create_task(consumer.poll(ENDLESS))
            await asyncio.sleep(0.2)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await worker.close()
                assert await polling == []

    asyncio.run(main())


def test_a_share_consumer_that_is_closed_ends_what_waits_for_its_turn(database_url: str, topic: str, group: str) -> None:
    async def main() -> None:
        async with await aio.connect(database_url) as worker, worker.share_consumer(topic, group=group) as consumer:
            polling = [asyncio.create_task(consumer.poll(ENDLESS)) for _ in range(3)]
            iterating = [asyncio.create_task(count(consumer)) for _ in range(3)]
            await asyncio.sleep(0.2)
            begun = time.monotonic()
            await consumer.close()
            assert await asyncio.gather(*polling) == [[], [], []]
            assert await asyncio.gather(*iterating) == [0, 0, 0]
            assert time.monotonic() - begun < PATIENCE_SECONDS

    async def count(consumer: aio.ShareConsumer) -> int:
        return len([record async for record in consumer])

    asyncio.run(main())


class Oops(Exception):
    """What the user's code raises."""


MODES = pytest.mark.parametrize("mode", ["implicit", "explicit"])


@MODES
@pytest.mark.parametrize("way", ["a block", "begin and abort", "a poll inside", "rewind"])
def test_what_a_failed_transaction_was_for_is_handed_out_again(
    client: msgtx.Client, database_url: str, topic: str, wide: str, group: str, mode: str, way: str
) -> None:
    async def main() -> None:
        async with await aio.connect(database_url) as worker, sharing(worker, topic, group, mode) as (consumer, producer):

            async def polled() -> list[msgtx.ShareRecord]:
                records = await consumer.poll(PATIENCE_SECONDS, 1)
                accept(consumer.sync, records)
                return records

            async def failing() -> None:
                async with producer.transaction():
                    for _ in range(2 if way == "a poll inside" else 1):
                        await producer.send(wide, b"lost")
                        await polled()
                    raise Oops

            if way == "a poll inside":
                with contextlib.suppress(Oops):
                    await failing()
            else:
                await polled()
                if way == "begin and abort":
                    await producer.begin_transaction()
                    await producer.abort_transaction()
                elif way == "rewind":
                    await consumer.rewind()
                else:
                    with contextlib.suppress(Oops):
                        async with producer.transaction():
                            raise Oops
            for _ in range(2):
                async with producer.transaction() as tx:
                    for record in await polled():
                        await producer.send(wide, record.value)
                    await tx.send_acknowledgements(consumer)

    fill(client, topic, 2)
    asyncio.run(main())
    assert left(client, group) == 0
    assert sorted(record.value or b"" for record in client.read(client.snapshot([wide]))) == [b"0", b"1"]


@MODES
def test_a_batch_is_committed_with_an_async_session_or_handed_out_again(
    client: msgtx.Client, database_url: str, topic: str, group: str, rows: Rows, mode: str
) -> None:
    async def main() -> None:
        async with (
            engine_of(database_url) as engine,
            await aio.connect(database_url) as worker,
            worker.share_consumer(topic, group=group, acknowledgement_mode=mode) as consumer,
        ):
            for fails in ("in the block", "behind it", "not at all"):
                with contextlib.suppress(Oops):
                    async with AsyncSession(engine) as session:
                        async with consumer.batch(session, PATIENCE_SECONDS, 1) as records:
                            for record in records:
                                await insert(session, 10 * record.delivery_count + record.offset)
                                if mode == "explicit":
                                    consumer.acknowledge(record, Acknowledgement.ACCEPT)
                            if fails == "in the block":
                                raise Oops
                        if fails == "behind it":
                            raise Oops
                        await session.commit()
            async with AsyncSession(engine) as session, consumer.batch(session, 0) as records:
                assert records == []

    fill(client, topic, 1)
    asyncio.run(main())
    assert left(client, group) == 0
    assert rows() == [30]


def test_transactions_of_other_tasks_are_nobody_elses(
    client: msgtx.Client, database_url: str, topic: str, group: str
) -> None:
    """Each task has a share consumer and a producer; those of the one fail while the other one is at work."""

    async def main() -> None:
        at_work, failed = asyncio.Event(), asyncio.Event()

        async def fails() -> None:
            async with sharing(worker, topic, f"{group}-2") as (consumer, producer):
                await at_work.wait()
                await consumer.poll(0)
                with contextlib.suppress(Oops):
                    async with producer.transaction():
                        raise Oops
                failed.set()

        async def works() -> None:
            async with sharing(worker, topic, group) as (consumer, producer):
                await consumer.poll(PATIENCE_SECONDS)
                async with producer.transaction() as tx:
                    at_work.set()
                    await failed.wait()
                    await tx.send_acknowledgements(consumer)

        async with await aio.connect(database_url) as worker:
            await asyncio.gather(fails(), works())

    fill(client, topic, 2)
    asyncio.run(main())
    assert left(client, group) == 0


def test_a_transaction_of_a_child_task_is_not_its_parents(
    client: msgtx.Client, database_url: str, topic: str, group: str
) -> None:
    """A child inherits the context of its parent, and not what the parent polled."""

    async def main() -> None:
        async with await aio.connect(database_url) as worker, sharing(worker, topic, group) as (consumer, producer):

            async def fails() -> None:
                with contextlib.suppress(Oops):
                    async with producer.transaction():
                        raise Oops

            await consumer.poll(PATIENCE_SECONDS)
            await asyncio.create_task(fails())
            await consumer.commit()

    fill(client, topic, 2)
    asyncio.run(main())
    assert left(client, group) == 0


def test_a_task_below_an_open_transaction_accepts_what_it_polls(
    client: msgtx.Client, database_url: str, topic: str, group: str
) -> None:
    async def main() -> None:
        async with await aio.connect(database_url) as worker, sharing(worker, topic, group) as (consumer, producer):

            async def polls() -> None:
                for _ in range(2):
                    assert len(await consumer.poll(PATIENCE_SECONDS, 1)) == 1
                assert left(client, group) == 1

            async with producer.transaction():
                await asyncio.create_task(polls())

    fill(client, topic, 2)
    asyncio.run(main())
