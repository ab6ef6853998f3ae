"""Children of a fork: whatever they call of their parent's objects is answered at once, and harms the parent nothing."""

import asyncio
import contextlib
import functools
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.orm import Session

import msgtx
from msgtx import Acknowledgement, TopicPartition, aio, errors, metrics, orm
from msgtx.consumer.consumer import Consumer
from msgtx.database.schema import migrate
from msgtx.producer.producer import Producer
from msgtx.shares.share_consumer import ShareConsumer
from tests.client.steps import SECONDS, store
from tests.databases import Connection

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of Python 3.12: it is what this is about
STUCK_SECONDS = 10.0
NOT_ASSIGNED = "{} is not assigned to this consumer"
REFUSED, FINE = "refused", "fine"
Calls = dict[str, tuple[str, Callable[[], object]]]
SETTINGS: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}


class StuckError(BaseException):
    """A call that does not come back."""


def outcome_of(call: Callable[[], object]) -> str:
    """Make a call in the child, and return what came of it."""
    signal.setitimer(signal.ITIMER_REAL, STUCK_SECONDS)
    try:
        call()
    except errors.IllegalState as error:
        return REFUSED if "before a fork" in str(error) else f"{error}"
    except StuckError:
        return "stuck"
    except BaseException as error:  # noqa: BLE001 - the parent looks at it
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return FINE


def in_a_child(calls: Calls) -> dict[str, str]:
    """Make calls in a child, one after the other. Returns those that came out otherwise than they should."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:

            def stuck(*_: object) -> None:
                raise StuckError

            signal.signal(signal.SIGALRM, stuck)
            outcomes = {name: outcome_of(call) for name, (_, call) in calls.items()}
            os.write(writing, json.dumps(outcomes).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        outcomes = json.loads(told.read() or b"{}")
    os.waitpid(child, 0)
    return {name: outcomes.get(name, "") for name, (expected, _) in calls.items() if outcomes.get(name) != expected}


def refused(owner: object, *methods: str) -> Calls:
    """Calls without arguments that are refused."""
    return {name: (REFUSED, getattr(owner, name)) for name in methods}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@contextlib.contextmanager
def held(*locks: Any) -> Iterator[None]:
    """Have another thread hold locks, as it may at any fork."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as block:
            for lock in locks:
                block.enter_context(lock)
            taken.set()
            over.wait(SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(SECONDS)
    try:
        yield
    finally:
        over.set()
        thread.join()


def enter(block: Any) -> None:
    with block:
        pass


def in_loop(call: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], object]:
    return lambda: asyncio.run(call())


async def awaited(given: Any) -> object:
    return await given


def test_a_child_that_was_forked_in_a_callback_waits_for_its_own_producer(
    client: msgtx.Client, database_url: str, topic: str
) -> None:
    wrong: list[object] = []

    def send() -> None:
        with msgtx.connect(database_url) as own, own.producer() as producer:
            producer.send(topic, b"from the child").result(SECONDS)

    with client.producer(linger_ms=0) as producer:
        producer.send(topic, b"v", on_delivery=lambda _: wrong.append(in_a_child({"send": (FINE, send)})))
        producer.flush(SECONDS)
    assert wrong == [{}]


def test_a_producer_of_the_parent_sends_nothing_and_waits_for_nothing(client: msgtx.Client, wide: str) -> None:
    with client.producer(linger_ms=60_000) as producer, client.producer() as unused:
        future = producer.send(wide, b"a", partition=0)
        batch = producer.send_batch(wide, [b"b"], partition=1)
        keyed = producer.send(wide, b"c", partition=2, dedup_key="c")
        calls: Calls = {
            "send": (REFUSED, lambda: producer.send(wide, b"x")),
            "send to another topic": (REFUSED, lambda: producer.send("another", b"x")),
            "send, keyed": (REFUSED, lambda: producer.send(wide, b"x", dedup_key="x")),
            "first send": (REFUSED, lambda: unused.send(wide, b"x")),
            "send_batch": (REFUSED, lambda: producer.send_batch(wide, [b"x"])),
            **refused(producer, "flush", "begin_transaction", "init_transactions"),
            **refused(future, "result", "exception"),
            "done": (FINE, future.done),
            "callback": (REFUSED, lambda: future.add_done_callback(print)),
            "keyed result": (REFUSED, keyed.result),
            "close": (FINE, producer.close),
            "leave": (FINE, lambda: producer.__exit__(None, None, None)),
            "closed": (FINE, lambda: producer.closed),
            "send, closed": (REFUSED, lambda: producer.send(wide, b"x")),
        }
        with held(producer._accumulator.lock, client.runtime._lock):
            assert in_a_child(calls) == {}
        assert batch.result(SECONDS).count == 1
        producer.flush(SECONDS)
        assert future.result(SECONDS).offset == 0
        assert keyed.result(SECONDS).offset >= 0
        assert unused.send(wide, b"d").result(SECONDS).offset >= 0


def test_a_transaction_of_the_parent_is_neither_committed_nor_aborted(
    client: msgtx.Client, topic: str, unique: Callable[[str], str]
) -> None:
    with client.producer(transactional_id=unique("id")) as producer:
        with producer.transaction() as transaction:
            producer.send(topic, b"a").result(SECONDS)
            calls: Calls = {
                "send": (REFUSED, lambda: producer.send(topic, b"x")),
                "send_batch": (REFUSED, lambda: producer.send_batch(topic, [b"x"])),
                **refused(producer, "flush", "init_transactions", "begin_transaction", "commit_transaction"),
                **refused(producer, "abort_transaction", "prepare_transaction"),
                "send_offsets_to_transaction": (REFUSED, lambda: producer.send_offsets_to_transaction({}, "g")),
                "send_acknowledgements_to_transaction": (
                    REFUSED,
                    lambda: producer.send_acknowledgements_to_transaction(None),  # type: ignore[arg-type]
                ),
                "transaction": (REFUSED, lambda: enter(producer.transaction())),
                "prepare": (REFUSED, transaction.prepare),
                "transaction_id": (FINE, lambda: producer.transaction_id),
                "prepared_transaction": (FINE, lambda: producer.prepared_transaction),
                "closed": (FINE, lambda: producer.closed),
                "close": (FINE, producer.close),
            }
            parts = {"begins_here", "send_at_once", "settle"}  # of calls above, for an event loop
            assert public(Producer) <= calls.keys() | parts
            with held(producer._accumulator.lock):
                assert in_a_child(calls) == {}
            producer.send(topic, b"b")
        assert client.transaction_outcome(transaction.id) is msgtx.Outcome.COMMITTED


def test_a_consumer_of_the_parent_hands_out_nothing(client: msgtx.Client, topic: str) -> None:
    store(client, topic, b"0", b"1", b"2")
    partition = TopicPartition(topic, 0)
    with client.consumer(topic, group=topic, **SETTINGS) as consumer:
        iterator = iter(consumer)
        first = next(iterator)
        calls: Calls = {
            "next": (REFUSED, lambda: next(iterator)),
            "iter": (REFUSED, lambda: next(iter(consumer))),
            "poll": (REFUSED, lambda: consumer.poll(0)),
            "batch": (REFUSED, lambda: enter(consumer.batch(Session(), 0))),
            **refused(consumer, "commit", "rewind", "seek_to_beginning", "seek_to_end", "lag", "offset_lag"),
            **refused(consumer, "group_metadata", "_transaction_offsets"),
            "commit, in the background": (REFUSED, lambda: consumer.commit(wait=False)),
            "commit_starts": (FINE, consumer.committing.commit_starts),
            "subscribe": (REFUSED, lambda: consumer.subscribe([topic])),
            "assign": (REFUSED, lambda: consumer.assign([partition])),
            "seek": (REFUSED, lambda: consumer.seek(partition, 0)),
            "seek_to_time": (REFUSED, lambda: consumer.seek_to_time(0)),
            "position": (REFUSED, lambda: consumer.position(partition)),
            "committed": (REFUSED, lambda: consumer.committed([partition])),
            "beginning_offsets": (REFUSED, lambda: consumer.beginning_offsets([partition])),
            "end_offsets": (REFUSED, lambda: consumer.end_offsets([partition])),
            "offsets_for_times": (REFUSED, lambda: consumer.offsets_for_times({partition: 0})),
            "_known_lag": (FINE, consumer._known_lag),
            "assignment": (FINE, consumer.assignment),
            "keep_partitions": (FINE, lambda: enter(consumer.subscription.keep_partitions())),
            "pause": (NOT_ASSIGNED.format(partition), lambda: consumer.pause([partition])),
            "resume": (NOT_ASSIGNED.format(partition), lambda: consumer.resume([partition])),
            "stop": (FINE, consumer.stop),
            "closed": (FINE, lambda: consumer.closed),
            "close": (FINE, consumer.close),
            "leave": (FINE, lambda: consumer.__exit__(None, None, None)),
        }
        parts = {"riding", "begin", "settle", "take_back", "require_by_session"}  # of `poll`, `batch` and `commit`
        assert public(Consumer) <= calls.keys() | parts
        with held(consumer._sole_use._lock):
            assert in_a_child(calls) == {}
        assert [first.value, next(iterator).value] == [b"0", b"1"]
        consumer.commit()
        found = consumer.committed([partition])[partition]
        assert found is not None
        assert found.offset == 2
        assert [record.value for record in consumer.poll(SECONDS)] == [b"2"]


def test_a_share_consumer_of_the_parent_answers_for_nothing(client: msgtx.Client, topic: str) -> None:
    store(client, topic, b"0", b"1", b"2")
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"})
    with client.share_consumer(topic, group=topic, acknowledgement_mode="explicit") as share:
        iterator = iter(share)
        record = next(iterator)
        calls: Calls = {
            "next": (REFUSED, lambda: next(iterator)),
            "poll": (REFUSED, lambda: share.poll(0)),
            "acknowledge": (REFUSED, lambda: share.acknowledge(record, Acknowledgement.ACCEPT)),
            **refused(share, "commit", "transaction_answers", "rewind"),
            "riding": (REFUSED, lambda: enter(share.rides.accepting(None, [record], ""))),  # type: ignore[arg-type]
            "accepting": (REFUSED, lambda: share.answering.accepting([record])),
            "dead_letter_topic": (REFUSED, share.answering.dead_letter_topic),
            "renew": (REFUSED, lambda: share.answering.renew([record])),  # type: ignore[list-item]
            "held": (FINE, lambda: share.holdings.of([record])),
            "batch": (REFUSED, lambda: enter(share.batch(Session(), 0))),
            "stop": (FINE, share.stop),
            "closed": (FINE, lambda: share.closed),
            "close": (FINE, share.close),
        }
        parts = {"begin", "settle", "undo"}  # of `poll` and `batch`
        assert public(ShareConsumer) <= calls.keys() | parts
        with held(share._sole_use._lock):
            assert in_a_child(calls) == {}
        share.acknowledge(record)
        for other in (next(iterator), next(iterator)):
            share.acknowledge(other)
        share.commit()
    assert client.admin.shares.describe(topic).lag == 0


def test_a_client_of_the_parent_makes_nothing_and_asks_nothing(client: msgtx.Client, topic: str) -> None:
    """As when a server makes it before it forks its workers: each of them makes one of its own."""
    transaction = msgtx.TransactionId(1, 0, 0)
    cut = client.snapshot([topic])
    consumed = {"group": topic, "transactional_id": topic, "transform": lambda _: None}
    calls: Calls = {
        **refused(client, "producer", "consumer", "sweep"),
        "share_consumer": (REFUSED, lambda: client.share_consumer(topic, group=topic)),
        "process": (REFUSED, lambda: client.process(topic, to=f"{topic}-out", **consumed)),
        "process_into": (REFUSED, lambda: client.process_into(Session, lambda *_: None, topic, group=topic)),
        "complete": (REFUSED, lambda: client.complete(f"{transaction}@{client.runtime.engine.incarnation}", commit=True)),
        "mirror": (REFUSED, lambda: client.mirror(topic, name=topic, target=client)),
        "snapshot": (REFUSED, lambda: client.snapshot([topic])),
        "snapshots": (FINE, lambda: client.snapshots),
        "read": (REFUSED, lambda: list(client.read(cut))),
        "transaction_outcome": (REFUSED, lambda: client.transaction_outcome(transaction)),
        "topics": (FINE, lambda: client.topics),
        "topics.list": (REFUSED, client.topics.list),
        "topics.create": (REFUSED, lambda: client.topics.create("another")),
        "admin.groups.list": (REFUSED, client.admin.groups.list),
        "admin.shares": (REFUSED, lambda: client.admin.shares.describe(topic)),
        "admin.doctor": (REFUSED, client.admin.doctor),
        "admin.coordinators": (REFUSED, client.admin.coordinators),
        "admin.verify": (REFUSED, client.admin.verify),
        "a connection": (REFUSED, client.runtime.engine.dedicated),
        "find": (REFUSED, lambda: client.find(topic, key="k")),
        "find_before": (REFUSED, lambda: client.find_before(topic, 0)),
        "search": (REFUSED, lambda: client.search(topic)),
        "observe": (FINE, lambda: client.observe(msgtx.observer.Observer())),
        "engine": (FINE, client.engine),  # new connections
        "async_engine": (FINE, client.async_engine),
        "url": (FINE, lambda: client.url),
        "secret_url": (FINE, lambda: client.secret_url),
        "leave": (FINE, lambda: client.__exit__(None, None, None)),
        "closed": (FINE, lambda: client.closed),
        "close": (FINE, client.close),
        "close the pool": (FINE, client.runtime.engine.close),
    }  # fmt: skip
    assert public(msgtx.Client) <= calls.keys()
    client.topics.list()
    with held(client.runtime._lock):
        assert in_a_child(calls) == {}
    assert topic in client.topics.list()


def test_a_new_client_in_the_child_works_beside_the_parents(client: msgtx.Client, topic: str, database_url: str) -> None:
    def work() -> None:
        with msgtx.connect(database_url) as own, own.producer() as producer:
            producer.send(topic, b"child", partition=0).result(SECONDS)

    with client.producer() as producer:
        producer.send(topic, b"parent", partition=0).result(SECONDS)
        assert in_a_child({"work": (FINE, work)}) == {}
        assert producer.send(topic, b"parent", partition=0).result(SECONDS).offset == 2


def test_an_async_client_of_the_parent_waits_for_nothing(database_url: str, topic: str, client: msgtx.Client) -> None:
    async def made() -> Calls:
        other = await aio.connect(database_url)
        producer = other.producer(linger_ms=60_000)
        delivery = await producer.send(topic, b"a")
        consumer = other.consumer(topic, group=topic, **SETTINGS)
        await consumer.subscribe([topic])
        share = other.share_consumer(topic, group=f"{topic}-share")
        await consumer._turn.acquire()  # as a poll that is under way has it
        return {
            "send": (REFUSED, in_loop(lambda: producer.send(topic, b"x"))),
            "send_batch": (REFUSED, in_loop(lambda: producer.send_batch(topic, [b"x"]))),
            "delivery": (REFUSED, in_loop(lambda: awaited(delivery))),
            "flush": (REFUSED, in_loop(producer.flush)),
            "begin_transaction": (REFUSED, in_loop(producer.begin_transaction)),
            "producer.close": (FINE, in_loop(producer.close)),
            "poll": (REFUSED, in_loop(lambda: consumer.poll(0))),
            "commit": (REFUSED, in_loop(consumer.commit)),
            "seek_to_end": (REFUSED, in_loop(consumer.seek_to_end)),
            "consumer.close": (FINE, in_loop(consumer.close)),
            "share.poll": (REFUSED, in_loop(lambda: share.poll(0))),
            "share.commit": (REFUSED, in_loop(share.commit)),
            "share.close": (FINE, in_loop(share.close)),
            "topics.list": (REFUSED, in_loop(other.topics.list)),
            "run": (REFUSED, in_loop(lambda: other.run(print))),
            "snapshot": (REFUSED, in_loop(lambda: other.snapshot([topic]))),
            "close": (FINE, in_loop(other.close)),
            "parent": (REFUSED, other.sync.producer),
        }

    calls = asyncio.run(made())
    assert in_a_child(calls) == {}
    held_by = calls["parent"][1]
    held_by().close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", ["_exit", "exit", "return", "raise"])
def test_a_child_of_a_handler_does_not_end_what_its_parent_commits(
    client: msgtx.Client, topic: str, app: sqlalchemy.Engine, connection: Connection, end: str
) -> None:
    """It has the session, too, and leaves it: else its ROLLBACK would reach the server by the parent's connection."""
    connection.execute(f'create table "{topic}" (v int)')
    store(client, topic, b"0", b"1", b"2")
    parent = os.getpid()

    def handler(session: Session, record: msgtx.Record) -> None:
        session.execute(text(f'insert into "{topic}" values ({int(record.value or b"")})'))
        child = os.fork()
        if child == 0:
            signal.alarm(int(SECONDS))
            match end:
                case "_exit":
                    os._exit(0)
                case "exit":
                    sys.exit(0)
                case "raise":
                    raise ZeroDivisionError
                case _:
                    return
        os.waitpid(child, 0)
        session.execute(text(f'insert into "{topic}" values ({10 + int(record.value or b"")})'))

    try:
        client.process_into(lambda: Session(app), handler, topic, group=topic, idle_timeout=0.2)
    finally:
        if os.getpid() != parent:
            os._exit(0)
    rows = [row for (row,) in connection.execute(f'select v from "{topic}" order by v').fetchall()]
    assert rows == [0, 1, 2, 10, 11, 12]


def test_children_of_a_worker_obey_sigterm(
    client: msgtx.Client, topic: str, output: str, request: pytest.FixtureRequest
) -> None:
    """Those of a handler, in the worker's thread and in another one: from their beginning on."""
    store(client, topic, b"a")
    codes: list[int | None] = []

    def child() -> None:
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(SECONDS,))
        process.start()
        process.terminate()
        process.join(SECONDS / 2)
        codes.append(process.exitcode)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))

    def transform(_: msgtx.Record) -> None:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        child()
        thread = threading.Thread(target=child)
        thread.start()
        thread.join()

    client.process(topic, to=output, group=topic, transactional_id=topic, transform=transform, idle_timeout=0.2)
    assert codes == [-signal.SIGTERM, -signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_publish_in_the_child_of_a_session_is_lost_alone(
    client: msgtx.Client, topic: str, app: sqlalchemy.Engine, connection: Connection
) -> None:
    with Session(app) as session:
        session.execute(text("select 1"))
        orm.publish(session, topic, b"a")

        def commit() -> None:
            with contextlib.suppress(sqlalchemy.exc.OperationalError, errors.DatabaseUnavailable):
                session.commit()
            with contextlib.suppress(sqlalchemy.exc.OperationalError):
                session.close()

        assert in_a_child({"commit": (FINE, commit)}) == {}
        session.execute(text("select 1"))
        session.commit()
    assert connection.execute("select value from msgtx.committed_records_now where topic = %s", [topic]).fetchall() == [
        (b"a",)
    ]


def test_the_locks_of_modules_are_free_in_a_child() -> None:
    locks = {"upgrade": migrate._ALEMBIC_LOCK, "metrics": metrics._making}
    calls: Calls = {name: (FINE, functools.partial(enter, lock)) for name, lock in locks.items()}
    with held(*locks.values()):
        assert in_a_child(calls) == {}
