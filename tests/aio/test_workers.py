"""`consumer.batch(session)` and `client.process_into` for an event loop: async sessions, exactly once."""

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

import msgtx
from msgtx import ProcessReport, Record, aio, errors
from msgtx.consumer.commits import Commits
from msgtx.ending import Ending
from msgtx.observer import Observer
from tests.aio.conftest import Held, Rows
from tests.aio.test_sessions import EARLIEST, LEVELS, engine_of, insert
from tests.databases import LOOK_SECONDS, PATIENCE_SECONDS
from tests.refusals import refuses
from tests.store.steps import unique

pytestmark = pytest.mark.slow

SECONDS = 30.0


@pytest.fixture
def filled(client: msgtx.Client, topic: str) -> str:
    """A topic that holds the numbers from 0 to 9."""
    with client.producer() as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    return topic


async def store(session: AsyncSession | AsyncConnection, record: Record) -> None:
    await insert(session, int(record.value or b""))


@pytest.mark.parametrize("level", LEVELS)
async def test_a_batch_comes_with_the_commit_or_is_handed_out_again(
    database_url: str, filled: str, rows: Rows, level: str
) -> None:
    failures = iter(["before", "", "behind", "savepoint", ""])
    async with (
        engine_of(database_url, level) as engine,
        await aio.connect(database_url) as client,
        client.consumer(filled, group=filled, max_poll_records=2, **EARLIEST) as consumer,
    ):
        while len(rows()) < 10:
            failure = next(failures, "")
            with contextlib.suppress(ConnectionError):
                async with AsyncSession(engine) as session:
                    async with consumer.batch(session, SECONDS) as records:
                        assert len(records) == 2
                        for record in records:
                            await store(session, record)
                        if failure == "before":
                            raise ConnectionError
                    if failure == "savepoint":
                        nested = await session.begin_nested()
                        await nested.rollback()
                    if failure == "behind":
                        raise ConnectionError
                    await session.commit()
        async with AsyncSession(engine) as session, consumer.batch(session, 0.0) as records:
            assert records == []
    assert rows() == list(range(10))


@pytest.mark.parametrize("how", ["commit", "batch"])
async def test_offsets_that_wait_for_earlier_ones_let_the_event_loop_go_on(
    database_url: str, filled: str, rows: Rows, held: Held, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    waiting = threading.Event()
    settle = Commits.settle

    def watched(commits: Commits) -> None:
        waiting.set()
        settle(commits)

    async def ride(consumer: aio.Consumer, session: AsyncSession) -> None:
        if how == "batch":
            async with consumer.batch(session, SECONDS) as records:
                for record in records:
                    await store(session, record)
        else:
            for record in await consumer.poll(SECONDS):
                await store(session, record)
            await consumer.commit(session=session)

    monkeypatch.setattr(Commits, "settle", watched)
    async with (
        engine_of(database_url) as engine,
        await aio.connect(database_url) as client,
        client.consumer(filled, group=filled, max_poll_records=2, request_timeout_ms=5_000, **EARLIEST) as consumer,
        AsyncSession(engine) as session,
    ):
        await consumer.poll(SECONDS)
        with held(group=filled) as waits:
            await consumer.commit(wait=False)
            await waits()
            riding = asyncio.create_task(ride(consumer, session))
            while not waiting.is_set():
                await asyncio.sleep(LOOK_SECONDS)
            assert not riding.done()
        await riding
        await session.commit()
    assert rows() == [2, 3]


async def test_a_batch_that_cannot_ride_is_handed_out_again(database_url: str, filled: str) -> None:
    async with await aio.connect(database_url) as client, client.consumer(filled, group=filled, **EARLIEST) as consumer:
        for _ in range(2):
            with refuses(TypeError, name="session"):
                async with consumer.batch("session", SECONDS):  # type: ignore[arg-type]
                    pass
        assert (await consumer.poll(SECONDS))[0].offset == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("batch", [False, True])
async def test_each_record_is_a_row_whatever_is_raised(
    database_url: str, filled: str, rows: Rows, level: str, batch: bool
) -> None:
    failures = [ConnectionError("mail server"), ConnectionError("again")]
    told: list[ProcessReport] = []

    async def handler(session: AsyncSession, given: Any) -> None:
        for record in given if batch else [given]:
            await store(session, record)
            if record.value == b"5" and failures:
                raise failures.pop()

    async with engine_of(database_url, level) as engine, await aio.connect(database_url) as client:
        factory = async_sessionmaker(engine)
        report = await client.process_into(
            factory, handler, filled, group=filled, idle_timeout=0.2, batch=batch, on_commit=told.append
        )
        await asyncio.sleep(0)
        assert told[-1] == report
        assert (report.records_in, report.failed) == (10, 0)
    assert rows() == list(range(10))


async def test_a_poisoned_record_is_a_dead_letter(database_url: str, client: msgtx.Client, filled: str, rows: Rows) -> None:
    grave = f"{filled}-grave"
    client.topics.create(grave)

    async def handler(connection: AsyncConnection, record: Record) -> None:
        if record.value == b"5":
            await connection.execute(text("select 1 / 0"))
        await store(connection, record)

    async with engine_of(database_url) as engine, await aio.connect(database_url) as made:
        settings = {"failure": msgtx.DeadLetter(grave, 0), "idle_timeout": 0.2}
        await made.process_into(engine.connect, handler, filled, group=filled, **settings)
    assert rows() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [record.value for record in client.read(client.snapshot([grave]))] == [b"5"]


def test_a_cancelled_worker_rolls_back_and_leaves_its_group(
    database_url: str, client: msgtx.Client, filled: str, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def handler(session: AsyncSession, record: Record) -> None:
            await store(session, record)
            if record.value == b"5":
                begun.set()
                await asyncio.sleep(PATIENCE_SECONDS)

        async with engine_of(database_url) as engine, await aio.connect(database_url) as made:
            working = asyncio.create_task(
                made.process_into(async_sessionmaker(engine), handler, filled, group=filled, max_poll_records=1)
            )
            await begun.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]

    with caplog.at_level(logging.WARNING, "msgtx.process"):
        asyncio.run(main())
    assert rows() == [0, 1, 2, 3, 4]
    assert client.admin.groups.members(filled) == []
    assert caplog.messages == [], "no record has failed"


def test_a_worker_that_is_cancelled_between_two_transactions_begins_no_other(
    database_url: str, filled: str, rows: Rows
) -> None:
    """Its thread may have polled by then."""

    class Polls(Observer):
        def received(self, *_: object) -> None:
            polled.release()

    async def main() -> None:
        def cancel(report: ProcessReport) -> None:
            working.cancel()
            gone_on.append(polled.acquire(timeout=PATIENCE_SECONDS) and polled.acquire(timeout=PATIENCE_SECONDS))

        async with engine_of(database_url) as engine, await aio.connect(database_url) as made:
            made.sync.observe(Polls())
            working = asyncio.create_task(
                made.process_into(
                    async_sessionmaker(engine), store, filled, group=filled, max_poll_records=1, on_commit=cancel
                )
            )
            with pytest.raises(asyncio.CancelledError):
                await working

    polled = threading.Semaphore(0)
    gone_on: list[bool] = []
    asyncio.run(main())
    assert gone_on == [True]
    assert rows() == [0]


async def test_a_handler_that_rolls_its_session_back_has_failed(
    database_url: str, filled: str, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """Else rows of other records would be gone, and their offsets not. No record is at fault: it waits."""
    failures = [b"5"] * 4

    async def handler(session: AsyncSession, record: Record) -> None:
        if record.value in failures:
            failures.pop()
            await session.rollback()
        else:
            await store(session, record)

    with caplog.at_level(logging.WARNING, "msgtx.process"):
        async with engine_of(database_url) as engine, await aio.connect(database_url) as made:
            factory = async_sessionmaker(engine)
            report = await made.process_into(factory, handler, filled, group=filled, failure=msgtx.Skip(0), idle_timeout=0.2)
    assert (rows(), report.failed) == ([*range(10)], 0)
    assert "session.begin_nested()" in caplog.text


@pytest.mark.parametrize("how", ["event", "close", "SIGTERM"])
async def test_a_worker_ends_behind_its_transaction(database_url: str, filled: str, rows: Rows, how: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        stop = threading.Event() if how == "event" else None

        async def handler(session: AsyncSession, record: Record) -> None:
            await store(session, record)
            if record.value == b"5":
                match how:
                    case "event":
                        assert stop is not None
                        stop.set()
                    case "close":
                        closing.append(asyncio.create_task(made.close()))
                    case _:
                        signal.raise_signal(signal.SIGTERM)
                await asyncio.sleep(0.3)

        closing: list[asyncio.Task[None]] = []
        async with engine_of(database_url) as engine, await aio.connect(database_url) as made:
            report = await made.process_into(
                async_sessionmaker(engine), handler, filled, group=filled, max_poll_records=1, stop=stop
            )
            assert report.records_in == 6
            for task in closing:
                await task
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert rows() == [0, 1, 2, 3, 4, 5]


async def test_a_client_whose_threads_all_run_workers_ends_them(
    database_url: str, client: msgtx.Client, filled: str
) -> None:
    """Its close needs no thread of theirs: none is free before it has ended them."""
    target = unique("target")
    client.topics.create(target)

    begun, stop = threading.Event(), threading.Event()
    made = await aio.connect(database_url, pool_size=1)
    process = functools.partial(made.sync.process, filled, to=target, group=filled, transactional_id=filled, stop=stop)
    working = asyncio.create_task(made.run(process, transform=lambda record: begun.set()))
    while not begun.is_set():
        await asyncio.sleep(LOOK_SECONDS)
    asyncio.get_running_loop().call_later(PATIENCE_SECONDS, stop.set)
    await made.close()
    assert not stop.is_set()
    assert (await working).transactions > 0


@pytest.fixture
def default_sigterm() -> Iterator[None]:
    """SIGTERM is nobody's."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("default_sigterm")
async def test_a_sigterm_ends_all_workers_of_a_program(database_url: str, filled: str) -> None:
    begun: set[str] = set()

    async def worker(made: aio.Client, factory: async_sessionmaker[AsyncSession], group: str) -> None:
        async def handler(session: AsyncSession, record: Record) -> None:
            begun.add(group)

        await made.process_into(factory, handler, filled, group=group)

    async with engine_of(database_url) as engine, await aio.connect(database_url) as made, asyncio.timeout(SECONDS):
        groups = [unique("group") for _ in range(3)]
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                tasks.create_task(worker(made, async_sessionmaker(engine), group))
            while len(begun) < 3:
                await asyncio.sleep(LOOK_SECONDS)
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("default_sigterm")
async def test_a_handler_of_sigterm_that_came_while_a_worker_ran_stays(database_url: str, filled: str) -> None:
    def mine(*_: object) -> None:
        pass

    async def handler(session: AsyncSession, record: Record) -> None:
        signal.signal(signal.SIGTERM, mine)

    async with engine_of(database_url) as engine, await aio.connect(database_url) as made:
        await made.process_into(async_sessionmaker(engine), handler, filled, group=filled, idle_timeout=0.2)
    assert signal.getsignal(signal.SIGTERM) is mine


@pytest.mark.usefixtures("default_sigterm")
def test_a_sigterm_is_left_to_those_who_end_a_worker_themselves() -> None:
    def within(stop: threading.Event | None) -> Any:
        with Ending(stop).by_sigterm():
            return signal.getsignal(signal.SIGTERM)

    assert within(None) is not signal.SIG_DFL
    assert within(threading.Event()) is signal.SIG_DFL
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        assert thread.submit(within, None).result() is signal.SIG_DFL, "only the main thread may handle it"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert within(None) is signal.SIG_IGN


@pytest.mark.usefixtures("default_sigterm")
def test_a_sigterm_ends_the_worker_that_is_left_when_another_has_ended() -> None:
    with (left := Ending(None)).by_sigterm():
        with Ending(None).by_sigterm():
            pass
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        signal.raise_signal(signal.SIGTERM)
    assert left.is_set()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_handler_does_not_close_its_own_client(database_url: str, filled: str, rows: Rows) -> None:
    """It would wait for the worker, and the worker for it."""

    async with engine_of(database_url) as engine, await aio.connect(database_url) as made:

        async def handler(session: AsyncSession, record: Record) -> None:
            await store(session, record)
            await made.close()

        with refuses(errors.IllegalState, reason="handler"):
            await made.process_into(async_sessionmaker(engine), handler, filled, group=filled, failure=msgtx.Stop())
    assert rows() == []


def test_an_awaited_task_that_was_cancelled_is_an_error_as_any(database_url: str, filled: str, rows: Rows) -> None:
    async def handler(session: AsyncSession, record: Record) -> None:
        if record.value == b"2":
            task = asyncio.ensure_future(asyncio.sleep(SECONDS))
            task.cancel()
            await task
        await store(session, record)

    async def main() -> None:
        async with engine_of(database_url) as engine, await aio.connect(database_url) as made:
            factory = async_sessionmaker(engine)
            options = {"failure": msgtx.Skip(0), "idle_timeout": 0.2}
            report = await made.process_into(factory, handler, filled, group=filled, **options)  # type: ignore[arg-type]
            assert report.failed == 1

    asyncio.run(main())
    assert rows() == [0, 1, 3, 4, 5, 6, 7, 8, 9]


async def test_what_is_not_for_an_event_loop_is_refused(database_url: str, filled: str) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://")
    async with await aio.connect(database_url) as client:
        with refuses(TypeError, name="session_factory"):
            await client.process_into(lambda: sqlalchemy.orm.Session(engine), store, filled, group=filled)
        with refuses(errors.WrongType, name="failure"):
            await client.process_into(AsyncSession, store, filled, group=filled, failure="dead-letter")
