"""Every kind of client, in steps: it works, then does what may be lost, then learns of it.

A kind is a generator. What it has done at its first `yield` is kept, what it has done at its second may be lost. Behind that
it goes on, and returns what its program was told: the names of errors, and of loggers with a warning.
"""

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import aio, errors, orm
from tests.cli.program import Ended, Program
from tests.client.steps import SECONDS, Reader, store
from tests.databases import as_djangos, wait_until

Told = set[str]
Steps = Generator[None, None, Told]
FIRST: Final[dict[str, Any]] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
QUICK: Final[dict[str, Any]] = {"retry_backoff_ms": 5}


class Log(logging.Handler):
    """What msgtx logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@dataclass
class Place:
    """A database with the topics `t` and `out`, at whichever server takes writes, and one that no event reaches."""

    url: str
    standby_url: str
    elsewhere: str
    log: Log
    expected: list[bytes] = field(default_factory=lambda: [b"kept", b"next"])  # at the end

    @contextlib.contextmanager
    def client(self, **options: Any) -> Iterator[msgtx.Client]:
        with msgtx.connect(self.url, **options) as client:
            yield client

    def store(self, value: bytes) -> None:
        """Store a record with a client of its own, which knows nothing of before."""
        with self.client() as client:
            store(client, "t", value)

    def has(self, *values: bytes, topic: str = "t", url: str | None = None) -> bool:
        """Whether the topic has these records."""
        with msgtx.connect(url or self.url) as client:
            return [record.value for record in client.read(client.snapshot([topic]))] == [*values]

    def warned(self, thread: str, since: int = 0) -> Told:
        """Return the logger of sessions if it has warned of a move in this thread; once."""
        words = [
            record.name
            for record in self.log.records[since:]
            if record.name == "msgtx.session"
            and (record.threadName or "").startswith(thread)
            and "the database has moved" in record.getMessage()
        ]
        assert len(words) < 2, "it warns once"
        return {*words}


def told(call: Callable[[], Any]) -> Told:
    """Make a call; return the error that it raises."""
    try:
        call()
    except errors.MsgtxError as error:
        return {type(error).__name__}
    return set()


def polled(reader: Reader) -> list[Any]:
    """Return the values of the next records, through an outage."""

    def once() -> list[msgtx.Record]:
        with contextlib.suppress(errors.DatabaseUnavailable):
            return list(reader.poll(1.0))
        return []

    return [record.value for record in wait_until(once, "a record comes")]


# ── producers ──


def idempotent_producer(at: Place) -> Steps:
    with at.client() as client, client.producer(**QUICK) as producer:
        producer.send("t", b"kept").result(SECONDS)
        yield
        producer.send("t", b"lost").result(SECONDS)
        yield
        return told(lambda: producer.send("t", b"next").result(SECONDS))


def transactional_producer(at: Place) -> Steps:
    with at.client() as client, client.producer(transactional_id="id", **QUICK) as producer:

        def commit(value: bytes) -> None:
            with producer.transaction():
                producer.send("t", value)

        commit(b"kept")
        yield
        commit(b"lost")
        yield
        return told(lambda: commit(b"next"))


def producer_of_asyncio(at: Place) -> Steps:
    with asyncio.Runner() as runner:
        client = runner.run(_awaited(aio.connect(at.url)))
        producer = client.producer(**QUICK)

        async def send(value: bytes) -> None:
            await (await producer.send("t", value))

        try:
            runner.run(send(b"kept"))
            yield
            runner.run(send(b"lost"))
            yield
            return told(lambda: runner.run(send(b"next")))
        finally:
            runner.run(client.close())


async def _awaited(connecting: Any) -> Any:
    return await connecting


def msgtx_produce(at: Place) -> Steps:
    """The command, which gets a line at each step."""
    program = Program(at.url)
    with program.start("produce", "t") as process:
        assert process.stdin is not None
        process.stdin.write(b"kept\n")
        wait_until(lambda: at.has(b"kept"), "the line is stored")
        yield
        process.stdin.write(b"lost\n")
        wait_until(lambda: at.has(b"kept", b"lost"), "the line is stored")
        yield
        return _of_command(program.ended(process, b"next\n"))


def _of_command(ended: Ended) -> Told:
    """Return the error that a command has ended with. Warnings stand before it."""
    if ended.code == 0:
        return set()
    assert ended.code == 1
    words = {"has lost acknowledged records": "RecordsLost", "is no longer in the log": "LogTruncated"}
    return {name for part, name in words.items() if part in ended.err.splitlines()[-1]}


# ── readers ──


def _read(at: Place, consumer: msgtx.Consumer) -> Steps:
    """Read a topic that another one writes; nothing is committed after `lost`, which another record replaces."""
    at.store(b"kept")
    assert polled(consumer) == [b"kept"]
    yield
    at.store(b"lost")
    assert polled(consumer) == [b"lost"]
    yield
    at.store(b"next")
    return told(lambda: polled(consumer))


def member_of_a_group(at: Place) -> Steps:
    with at.client() as client, client.consumer("t", group="g", **FIRST) as consumer:
        return (yield from _read(at, consumer))


def consumer_without_a_group(at: Place) -> Steps:
    with at.client() as client, client.consumer("t", **FIRST) as consumer:
        return (yield from _read(at, consumer))


def reader_of_the_standby(at: Place) -> Steps:
    """With `read_url`: it has not seen what the standby does not have."""
    with at.client(read_url=at.standby_url) as client, client.consumer("t", **FIRST) as consumer:
        at.store(b"kept")
        assert polled(consumer) == [b"kept"]
        yield
        at.store(b"lost")
        yield
        at.store(b"next")
        return told(lambda: wait_until(lambda: b"next" in polled(consumer), "it reads on"))


def msgtx_consume(at: Place) -> Steps:
    """The command, which prints a line for each record."""
    at.store(b"kept")
    program = Program(at.url)
    with program.start("consume", "t", "--group", "g", "--from-beginning", "-o", "jsonl") as process:
        assert process.stdout is not None

        def line() -> Any:
            assert process.stdout is not None
            return json.loads(process.stdout.readline() or '{"value": null}')["value"]

        assert line() == "kept"
        yield
        at.store(b"lost")
        assert line() == "lost"
        yield
        at.store(b"next")
        if line() == "next":
            process.terminate()
            program.ended(process)
            return set()
        return _of_command(program.ended(process))


def member_of_a_share_group(at: Place) -> Steps:
    """The records whose answers were lost come again, after it was told."""
    with at.client() as client:
        client.admin.shares.configure("s", {"auto_offset_reset": "earliest"})
        at.store(b"kept")
        with client.share_consumer("t", group="s", max_poll_records=1) as member:
            yield
            assert polled(member) == [b"kept"]
            member.commit()
            yield
            is_lossy = b"lost" not in at.expected
            if is_lossy:
                found = told(lambda: polled(member))
                assert polled(member) == [b"kept"], "its answer was lost, so it comes again"
                member.commit()
            at.store(b"next")
            assert polled(member) == [b"next"]
            return found if is_lossy else set()


def reads_with_the_orm(at: Place) -> Steps:
    with at.client() as client, contextlib.closing(_Disposed(client.engine())) as owner:

        def seen() -> list[Any]:
            with Session(owner.engine) as session:
                rows = session.scalars(sqlalchemy.select(orm.CommittedRecord).order_by(orm.CommittedRecord.offset))
                return [row.value for row in rows]

        at.store(b"kept")
        assert seen() == [b"kept"]
        yield
        at.store(b"lost")
        assert seen() == [b"kept", b"lost"]
        yield
        at.store(b"next")
        assert seen() == at.expected
        return set()


@dataclass
class _Disposed:
    """An engine for `contextlib.closing`."""

    engine: sqlalchemy.Engine

    def close(self) -> None:
        self.engine.dispose()


# ── workers ──


@contextlib.contextmanager
def _running(work: Callable[[threading.Event], Any], name: str) -> Iterator[Future[Any]]:
    """Run a worker until the end of the block."""
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix=name) as thread:
        running = thread.submit(work, stop)
        try:
            yield running
        finally:
            stop.set()


def _worked(at: Place, has: Callable[..., bool], running: Future[Any], thread: str) -> Steps:
    """Let a worker handle a record at each step."""
    at.store(b"kept")
    wait_until(lambda: has(b"kept") or running.done(), "the worker handles it")
    yield
    at.store(b"lost")
    wait_until(lambda: has(b"kept", b"lost") or running.done(), "the worker handles it")
    yield
    at.store(b"next")
    wait_until(lambda: _answers(lambda: has(*at.expected)) or running.done(), "the worker handles it")
    if running.done():
        return told(running.result)
    return at.warned(thread)


def _answers(ask: Callable[[], bool]) -> bool:
    with contextlib.suppress(errors.DatabaseUnavailable):
        return ask()
    return False


def worker_of_process(at: Place) -> Steps:
    def work(stop: threading.Event) -> Any:
        return client.process(
            "t", to="out", transform=lambda record: record.value, group="g", transactional_id="id", stop=stop,
            auto_offset_reset="earliest",
        )  # fmt: skip

    with at.client() as client, _running(work, "process") as running:
        return (yield from _worked(at, lambda *values: at.has(*values, topic="out"), running, "process"))


def worker_of_process_into(at: Place) -> Steps:
    """Its rows and its offsets are lost together."""

    def handle(session: Session, record: msgtx.Record) -> None:
        session.execute(sqlalchemy.text("insert into handled (value) values (:value)"), {"value": record.value})

    def has(*values: bytes) -> bool:
        with psycopg.connect(at.url) as connection:
            found = connection.execute("select value from handled order by number").fetchall()
        return [bytes(value) for (value,) in found] == [*values]

    with at.client() as client, contextlib.closing(_Disposed(client.engine())) as owner:
        with psycopg.connect(at.url) as connection:
            connection.execute("create table handled (number serial, value bytea)")

        def work(stop: threading.Event) -> Any:
            return client.process_into(
                sessionmaker(owner.engine), handle, "t", group="g", stop=stop, auto_offset_reset="earliest"
            )

        with _running(work, "into") as running:
            return (yield from _worked(at, has, running, "into"))


def mirror_from_it(at: Place) -> Steps:
    with at.client() as client, msgtx.connect(at.elsewhere) as target:

        def work(stop: threading.Event) -> Any:
            return client.mirror("t", name="mirror", target=target, stop=stop)

        with _running(work, "mirror-from") as running:
            return (yield from _worked(at, lambda *values: at.has(*values, url=at.elsewhere), running, "mirror-from"))


def mirror_to_it(at: Place) -> Steps:
    """Its progress and the records are lost together: it copies them again."""
    at.expected = [b"kept", b"lost", b"next"]
    with at.client() as client, msgtx.connect(at.elsewhere) as source:

        def copied(stop: threading.Event) -> Any:
            return client.mirror("t", name="mirror", source=source, stop=stop)

        with _running(copied, "mirror-to") as running:
            inside = Place(at.elsewhere, "", "", at.log, at.expected)
            return (yield from _worked(inside, at.has, running, "mirror-to"))


# ── services that publish in sessions of their own ──


def _published(at: Place, publish: Callable[[bytes], Any]) -> Steps:
    publish(b"kept")
    yield
    publish(b"lost")
    yield
    before = len(at.log.records)
    for value in (b"next", b"last"):
        publish(value)
    return at.warned(threading.current_thread().name, before)


def publish_with_sqlalchemy(at: Place) -> Steps:
    made = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(at.url, prepare_threshold=None), pool_pre_ping=True
    )
    with contextlib.closing(_Disposed(made)):

        def publish(value: bytes) -> None:
            with Session(made) as session:
                msgtx.publish(session, "t", value)
                session.commit()

        return (yield from _published(at, publish))


def publish_with_psycopg(at: Place) -> Steps:
    def publish(value: bytes) -> None:
        with psycopg.connect(at.url, prepare_threshold=None) as connection:
            msgtx.publish(connection, "t", value)

    return (yield from _published(at, publish))


def publish_with_asyncpg(at: Place) -> Steps:
    async def publish(value: bytes) -> None:
        connection = await asyncpg.connect(at.url, statement_cache_size=0)
        try:
            async with connection.transaction():
                await aio.publish(connection, "t", value)
        finally:
            await connection.close()

    with asyncio.Runner() as runner:
        return (yield from _published(at, lambda value: runner.run(publish(value))))


def publish_with_django(at: Place) -> Steps:
    """Each publish is a request of its own."""
    from django.db import close_old_connections, connections, transaction

    import tests.django.conftest  # noqa: F401 - it makes Django's settings
    from msgtx.django import publish as publish_in_block

    given = {**as_djangos(at.url), "OPTIONS": {"target_session_attrs": "read-write"}}
    connections.settings = connections.configure_settings({"default": {"ENGINE": "django.db.backends.dummy"}, "shop": given})

    def publish(value: bytes) -> None:
        close_old_connections()
        with transaction.atomic(using="shop"):
            publish_in_block("t", value)

    try:
        return (yield from _published(at, publish))
    finally:
        connections["shop"].close()
        del connections["shop"]


KINDS: Final[dict[str, Callable[[Place], Steps]]] = {
    "idempotent producer": idempotent_producer,
    "transactional producer": transactional_producer,
    "producer of msgtx.aio": producer_of_asyncio,
    "msgtx produce": msgtx_produce,
    "member of a group": member_of_a_group,
    "consumer without a group": consumer_without_a_group,
    "reader of the standby": reader_of_the_standby,
    "msgtx consume": msgtx_consume,
    "member of a share group": member_of_a_share_group,
    "reads with SQLAlchemy": reads_with_the_orm,
    "worker of process": worker_of_process,
    "worker of process_into": worker_of_process_into,
    "mirror from it": mirror_from_it,
    "mirror to it": mirror_to_it,
    "publish, SQLAlchemy": publish_with_sqlalchemy,
    "publish, psycopg": publish_with_psycopg,
    "publish, asyncpg": publish_with_asyncpg,
    "publish, Django": publish_with_django,
}
