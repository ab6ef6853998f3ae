"""The producer and its transactions in an event loop."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import msgtx
from msgtx import Outcome, TopicPartition, aio, errors
from tests.aio.conftest import Held, Values
from tests.databases import PATIENCE_SECONDS
from tests.refusals import refuses
from tests.store.steps import unique


async def test_a_delivery_tells_where_the_record_is(database_url: str, topic: str, values: Values) -> None:
    async with await msgtx.aio.connect(database_url) as client, client.producer() as producer:
        first = await producer.send(topic, b"a", key=b"k", headers=[("source", b"web")], timestamp=7)
        others = [await producer.send(topic, b"%d" % i) for i in range(3)]
        assert await first == msgtx.RecordMetadata(topic, 0, 0, 7, False)
        assert [place.offset for place in await asyncio.gather(*others)] == [1, 2, 3]
        assert first.done()
        assert (await first).offset == 0
    assert values(topic) == [b"a", b"0", b"1", b"2"]


@pytest.mark.parametrize("serializer", [None, str.encode])
async def test_json_is_sent_without_the_serializer_of_values(
    database_url: str, topic: str, values: Values, serializer: Any
) -> None:
    async with (
        await aio.connect(database_url) as client,
        client.producer(value_serializer=serializer, key_serializer=str.encode) as producer,
    ):
        for number in (1, 2):  # the first one looks its topic up
            await (await producer.send(topic, json={"id": number}, key="k"))
        with refuses(errors.WrongType, name="value"):
            await producer.send(topic, "both", json=1)
    assert values(topic) == [b'{"id":1}', b'{"id":2}']


async def test_a_batch_has_one_delivery(database_url: str, wide: str) -> None:
    async with await aio.connect(database_url) as client, client.producer() as producer:
        delivery = await producer.send_batch(wide, values=[b"x"] * 100, keys=[b"%d" % i for i in range(100)])
        place = await delivery
        assert place.count == 100
        assert len(place.offsets) == 3
        assert (await (await producer.send_batch(wide, values=[]))).count == 0


async def test_a_record_that_is_refused_raises_where_its_delivery_is_awaited(database_url: str, topic: str) -> None:
    async with await aio.connect(database_url) as client, client.producer(value_serializer=str.encode) as producer:
        with pytest.raises(errors.UnknownTopicOrPartition):
            await producer.send("absent", "x")
        delivery = await producer.send(topic, "x" * 2_000_000)
        with pytest.raises(errors.RecordTooLarge):
            await delivery
        assert (await (await producer.send(topic, "x"))).offset == 0


async def test_a_serializer_runs_without_the_producers_lock(database_url: str, topic: str, values: Values) -> None:
    """It may wait for a thread that sends, as one that looks a schema up; and it is called once for each record."""
    calls: list[str] = []

    async with await aio.connect(database_url) as client:
        with ThreadPoolExecutor(1) as threads:

            def serialize(value: str) -> bytes:
                calls.append(value)
                if value == "waits":
                    threads.submit(producer.sync.send, topic, "of the other thread").result(5)
                return value.encode()

            producer = client.producer(value_serializer=serialize)
            await (await producer.send(topic, "first"))
            await (await producer.send(topic, "waits"))
            await producer.close()
    assert calls == ["first", "waits", "of the other thread"]
    assert sorted(values(topic)) == [b"first", b"of the other thread", b"waits"]


async def test_deliveries_that_nobody_awaits_complete_by_themselves(database_url: str, topic: str, values: Values) -> None:
    async with await aio.connect(database_url) as client:
        producer = client.producer()
        for i in range(10):
            await producer.send(topic, b"%d" % i)
        await producer.flush(PATIENCE_SECONDS)
        assert len(await client.run(values, topic)) == 10


async def test_a_send_takes_no_thread_when_its_topic_is_known_and_there_is_room(
    database_url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await aio.connect(database_url) as client, client.producer() as producer:
        await producer.send(topic, b"first")
        with monkeypatch.context() as patched:
            patched.setattr(producer, "_run", None)  # passes a call to a thread
            for _ in range(1_000):
                delivery = await producer.send(topic, b"x")
        assert (await delivery).offset == 1_000


async def test_a_send_without_room_lets_the_event_loop_go_on(
    database_url: str, topic: str, held: Held, values: Values
) -> None:
    """The partition becomes free only after the loop has seen that a session waits for it."""

    async def send_all(producer: aio.Producer) -> None:
        for delivery in [await producer.send(topic, b"x" * 400_000) for _ in range(10)]:
            await delivery

    async with await aio.connect(database_url) as client, client.producer(buffer_bytes=2_000_000) as producer:
        await (await producer.send(topic, b"first"))
        with held(topic=topic) as waits:
            sending = asyncio.create_task(send_all(producer))
            await waits()
            await asyncio.sleep(0.1)
            assert not sending.done()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await sending
    assert len(values(topic)) == 11


async def test_many_sends_in_a_row_let_others_have_their_turn(database_url: str, topic: str) -> None:
    async with await aio.connect(database_url) as client, client.producer() as producer:
        await producer.send(topic, b"first")
        turns = 0

        async def another() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(another())
        for _ in range(5 * aio.SENDS_IN_A_ROW):
            await producer.send(topic, b"x")
        task.cancel()
        assert turns >= 5


def test_a_delivery_that_is_no_longer_awaited_is_on_its_way(
    database_url: str, topic: str, held: Held, values: Values
) -> None:
    async def main() -> None:
        async with await aio.connect(database_url) as client, client.producer() as producer:
            await (await producer.send(topic, b"first"))
            with held(topic=topic):
                delivery = await producer.send(topic, b"second")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(delivery, 0.05)
            assert (await delivery).offset == 1

    asyncio.run(main())
    assert values(topic) == [b"first", b"second"]


def test_a_loop_that_ends_does_not_disturb_the_sender(
    client: msgtx.Client, topic: str, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer comes when no caller can receive it."""

    async def main() -> None:
        asyncio.get_running_loop().create_task(wait())
        await waits()

    async def wait() -> None:
        await aio.Delivery(future)

    producer = client.producer()
    producer.send(topic, b"first").result(PATIENCE_SECONDS)
    with held(topic=topic) as waits:
        future = producer.send(topic, b"second")
        asyncio.run(main())
        assert not future.done()
    assert future.result(PATIENCE_SECONDS).offset == 1
    assert producer.send(topic, b"third").result(PATIENCE_SECONDS).offset == 2
    assert not caplog.records


# ── transactions ──


async def test_a_block_commits_and_aborts(database_url: str, topic: str, values: Values) -> None:
    async with await aio.connect(database_url) as client, client.producer(transactional_id=unique("id")) as producer:
        async with producer.transaction() as tx:
            await producer.send(topic, b"one")
        assert await client.transaction_outcome(tx.id) is Outcome.COMMITTED
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block raises at its end
            async with producer.transaction():
                await producer.send(topic, b"none")
                await producer.flush()
                raise ZeroDivisionError
        assert producer.transaction_id is not None
        assert await client.transaction_outcome(producer.transaction_id) is Outcome.ABORTED
        async with producer.transaction(timeout_ms=5_000):
            delivery = await producer.send(topic, b"two")
        assert delivery.done()
    assert values(topic) == [b"one", b"two"]


def test_a_block_that_is_cancelled_aborts_and_the_producer_goes_on(database_url: str, topic: str, values: Values) -> None:
    async def main() -> None:
        async with await aio.connect(database_url) as client, client.producer(transactional_id=unique("id")) as producer:
            with pytest.raises(TimeoutError):  # noqa: PT012 - the block is cancelled at its end
                async with asyncio.timeout(0.2), producer.transaction():
                    await producer.send(topic, b"none")
                    await producer.flush()
                    await asyncio.sleep(PATIENCE_SECONDS)
            assert producer.transaction_id is not None
            assert await client.transaction_outcome(producer.transaction_id) is Outcome.ABORTED
            async with producer.transaction():
                await producer.send(topic, b"one")

    asyncio.run(main())
    assert values(topic) == [b"one"]


@pytest.mark.parametrize("times", [1, 3])
def test_a_block_whose_end_is_cancelled_before_a_thread_is_free_aborts(
    database_url: str, topic: str, held: Held, values: Values, times: int
) -> None:
    """The commit has not begun; without an abort the transaction would stay open, and the producer unusable."""

    async def main() -> None:
        async with (
            await aio.connect(database_url, pool_size=1) as client,
            client.producer(transactional_id=unique("id")) as producer,
        ):
            busy = threading.Event()
            inside, leave = asyncio.Event(), asyncio.Event()

            async def block() -> None:
                async with producer.transaction():
                    await producer.send(topic, b"none")
                    await producer.flush()
                    inside.set()
                    await leave.wait()

            working = asyncio.create_task(block())
            await inside.wait()
            waiting = asyncio.create_task(client.run(busy.wait, PATIENCE_SECONDS))  # the only thread
            await asyncio.sleep(0.05)
            leave.set()
            await asyncio.sleep(0.05)
            for _ in range(times):
                working.cancel()
                await asyncio.sleep(0.01)
            busy.set()
            with pytest.raises(asyncio.CancelledError):
                await working
            await waiting
            assert producer.transaction_id is not None
            assert await client.transaction_outcome(producer.transaction_id) is Outcome.ABORTED
            async with producer.transaction():
                await producer.send(topic, b"one")

    asyncio.run(main())
    assert values(topic) == [b"one"]


def test_a_commit_that_is_cancelled_is_waited_for(database_url: str, topic: str, held: Held, values: Values) -> None:
    """It cannot be undone, and no other task may use the producer until it is answered."""

    async def main() -> None:
        # With the linger of every day the record could be sent before the commit, and its append would be what waits.
        async with (
            await aio.connect(database_url) as client,
            client.producer(transactional_id=unique("id"), linger_ms=60_000) as producer,
        ):
            assert producer.sync._state.producer is not None
            with held(producer_id=producer.sync._state.producer.producer_id) as waits:
                await producer.begin_transaction()
                await producer.send(topic, b"one")
                committing = asyncio.create_task(producer.commit_transaction())
                await waits()
                for _ in range(3):
                    committing.cancel()
                    await asyncio.sleep(0.01)
                assert not committing.done()
            with pytest.raises(asyncio.CancelledError):
                await committing
            assert producer.transaction_id is not None
            assert await client.transaction_outcome(producer.transaction_id) is Outcome.COMMITTED
            async with producer.transaction():
                await producer.send(topic, b"two")

    asyncio.run(main())
    assert values(topic) == [b"one", b"two"]


async def test_a_call_that_is_cancelled_before_its_turn_is_not_done(database_url: str, topic: str, held: Held) -> None:
    other = unique("never")
    async with await aio.connect(database_url, pool_size=1) as client, client.producer() as producer:
        await (await producer.send(topic, b"first"))
        with held(topic=topic):
            await producer.send(topic, b"second")
            flushing = asyncio.create_task(producer.flush())
            await asyncio.sleep(0)
            creating = asyncio.create_task(client.topics.create(other))
            await asyncio.sleep(0)
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
            assert not flushing.done()
        await flushing
        assert other not in await client.topics.list()


async def test_the_five_calls_by_name_and_a_transaction_that_was_kept(database_url: str, topic: str, values: Values) -> None:
    name = unique("id")
    async with await aio.connect(database_url) as client:
        producer = client.producer(transactional_id=name)
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send(topic, b"one")
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.send(topic, b"none")
        await producer.abort_transaction()
        tx = await producer.begin_transaction(timeout_ms=5_000)
        await producer.send(topic, b"two")
        token = await tx.prepare()
        successor = client.producer(transactional_id=name)
        await successor.init_transactions(keep_prepared=True)
        assert successor.prepared_transaction == token
        assert await client.complete(token, commit=True) is Outcome.COMMITTED
        async with successor.transaction():
            await successor.send(topic, b"three")
        with pytest.raises(errors.ProducerFenced):
            async with producer.transaction():
                await producer.send(topic, b"none")
        await producer.close()
        await producer.close()
        with pytest.raises(errors.IllegalState):
            await producer.begin_transaction()
    assert values(topic) == [b"one", b"two", b"three"]


async def test_offsets_go_with_a_transaction(database_url: str, topic: str, wide: str) -> None:
    group = unique("group")
    async with (
        await aio.connect(database_url) as client,
        client.producer(transactional_id=unique("id")) as producer,
        client.consumer(topic, group=group, enable_auto_commit=False, auto_offset_reset="earliest") as consumer,
    ):
        async with producer.transaction():
            for i in range(5):
                await producer.send(topic, b"%d" % i)
        assert len(await consumer.poll(PATIENCE_SECONDS, max_records=3)) == 3
        async with producer.transaction() as tx:
            await producer.send(wide, b"x")
            await tx.send_offsets(consumer)
        partition = TopicPartition(topic, 0)
        assert await consumer.committed() == {partition: msgtx.OffsetAndMetadata(3)}
        async with producer.transaction() as tx:
            await tx.send_offsets({partition: 4}, consumer.group_metadata())
        assert await consumer.committed() == {partition: msgtx.OffsetAndMetadata(4)}


# ── the client ──


async def test_the_client_has_what_is_used_every_day_and_runs_the_rest(database_url: str) -> None:
    name = unique("topic")
    async with await aio.connect(database_url, pool_size=2) as client:
        assert (await client.topics.create(name, partitions=2, retention_ms=1_000)).partitions == 2
        assert (await client.topics.alter(name, partitions=3)).partitions == 3
        assert name in await client.topics.list()
        cut = await client.snapshot([name])
        assert set(cut.ends.values()) == {0}
        assert await client.run(lambda: list(client.sync.read(cut))) == []
        assert await client.run(client.sync.admin.groups.list, states=None) is not None
        assert isinstance(await client.sweep(dry_run=True), msgtx.SweepReport)
        await client.topics.delete(name)
        with pytest.raises(errors.UnknownTopicOrPartition):
            await client.topics.describe(name)
    await client.close()
    with pytest.raises(errors.IllegalState):
        await client.topics.list()


def test_a_client_that_nobody_waits_for_any_more_is_closed(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[msgtx.Client] = []

    def connect(*arguments: object, **named: object) -> msgtx.Client:
        begun.set()
        opened.append(real(database_url))
        return opened[-1]

    async def main() -> None:
        connecting = asyncio.create_task(aio.connect(database_url))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting

    begun = threading.Event()
    real = msgtx.connect
    monkeypatch.setattr("msgtx.client.connect", connect)
    asyncio.run(main())
    assert [client.closed for client in opened] == [True]
