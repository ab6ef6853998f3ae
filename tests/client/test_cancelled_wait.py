"""I9: a COMMIT whose wait for the synchronous standby was cancelled is no acknowledgement (decision 0167)."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.orm import Session

import msgtx
from msgtx import Outcome, TransactionId
from msgtx.database.calls import query
from msgtx.database.connection import Connection
from msgtx.database.pool import Engine
from msgtx.database.retry import retried
from msgtx.store.append.append import append, append_and_decide
from msgtx.store.spark import BatchName, decide_batch
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.seal import seal
from tests.client.steps import SECONDS
from tests.databases import connect
from tests.replication import Pair
from tests.store.steps import Writer, new_partition, unique

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(pair: Pair) -> str:
    made = pair.primary.create_database()
    with msgtx.connect(made) as client:
        client.topics.create("t", partitions=2)
    return made


@dataclass
class Stage:
    """A client, and what a case prepares before nothing is confirmed any more."""

    client: msgtx.Client
    url: str
    closing: ExitStack

    def producer(self, transactional_id: str | None = None) -> msgtx.Producer:
        """Return a producer that is closed in the end."""
        return self.closing.enter_context(self.client.producer(transactional_id=transactional_id, retry_backoff_ms=5))

    def sent(self) -> tuple[msgtx.Producer, TransactionId]:
        """Return a producer with a record in an open transaction, and its name."""
        producer = self.producer(unique("id"))
        transaction = producer.begin_transaction()
        producer.send("t", b"a")
        producer.flush()
        return producer, transaction.id

    def again(self, ask: Callable[[Connection], Any]) -> Callable[[], Any]:
        """Return a call that is repeated as long as its answer is lost."""

        def call() -> Any:
            with Engine(self.url) as engine:

                def attempt() -> Any:
                    with engine.connection() as connection:
                        return ask(connection)

                return retried(attempt, deadline=time.monotonic() + SECONDS, pause=0.005)

        return call

    def repeated(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Return a call of the client's that is repeated as long as its answer is lost."""
        return lambda: retried(call, deadline=time.monotonic() + SECONDS, pause=0.005)


def send(stage: Stage) -> Callable[[], Any]:
    producer = stage.producer()
    producer.send("t", b"before").result(SECONDS)
    return lambda: producer.send("t", b"a").result(SECONDS)


def commit_in_one_call(stage: Stage) -> Callable[[], Any]:
    with connect(stage.url) as connection:
        writer = Writer(connection)
        row = writer.row(new_partition(connection), b"a")
    return stage.again(lambda connection: append_and_decide(connection, writer.name, [row]))


def commit(stage: Stage) -> Callable[[], Any]:
    producer, _ = stage.sent()
    return lambda: producer.commit_transaction(SECONDS)


def abort(stage: Stage) -> Callable[[], Any]:
    producer, _ = stage.sent()
    return lambda: producer.abort_transaction(SECONDS)


def prepare(stage: Stage) -> Callable[[], Any]:
    producer, _ = stage.sent()
    return lambda: producer.prepare_transaction(SECONDS)


def seal_for_a_session(stage: Stage) -> Callable[[], Any]:
    """Its session may be on the new primary already."""
    with connect(stage.url) as connection:
        writer = Writer(connection)
        append(connection, [writer.row(new_partition(connection), b"a")])
    return stage.again(lambda connection: seal(connection, writer.name, "session", tails=writer.tails))


def completion(stage: Stage) -> Callable[[], Any]:
    producer, _ = stage.sent()
    token = producer.prepare_transaction(SECONDS)
    return stage.repeated(lambda: stage.client.complete(token, commit=True))


def resolution(stage: Stage) -> Callable[[], Any]:
    _, name = stage.sent()
    return stage.repeated(lambda: stage.client.transaction_outcome(name, resolve=True))


def outcome(stage: Stage) -> Callable[[], Any]:
    """Another client asks for a decision that is stored."""
    producer, name = stage.sent()
    producer.commit_transaction(SECONDS)
    return stage.repeated(lambda: stage.client.transaction_outcome(name))


def new_epoch(stage: Stage) -> Callable[[], Any]:
    with connect(stage.url) as connection:
        first = init_producer_id(connection, None, timeout_ms=60_000)
    return stage.again(lambda connection: init_producer_id(connection, None, timeout_ms=60_000, expected=first))


def batch_of_spark(stage: Stage) -> Callable[[], Any]:
    of = BatchName(unique("app"), "", 0)
    return stage.again(lambda connection: decide_batch(connection, of, []))


def batch_that_is_begun_again(stage: Stage) -> Callable[[], Any]:
    of = BatchName(unique("app"), "", 0)
    with connect(stage.url) as connection:
        decide_batch(connection, of, [])
    return stage.again(lambda connection: query(connection, "select msgtx.begin_batch(%s, %s)", of.app_id, of.batch_id))


CASES = (
    send, commit, commit_in_one_call, abort, prepare, seal_for_a_session, completion, resolution, outcome, new_epoch,
    batch_of_spark, batch_that_is_begun_again,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
def test_no_call_is_answered_before_the_standby_has_what_it_did(
    case: Callable[[Stage], Callable[[], Any]], pair: Pair, url: str
) -> None:
    """Also not the call that is repeated, which writes nothing; however often the wait is cancelled."""
    with msgtx.connect(url) as client, ExitStack() as closing, ThreadPoolExecutor(1) as threads:
        act = case(Stage(client, url, closing))
        with pair.nothing_confirmed():
            acting = threads.submit(act)
            for _ in range(3):
                pair.cancel_waits(acting)
        acting.result(SECONDS)


def test_a_role_that_hears_no_warnings_hears_this_one(pair: Pair, url: str) -> None:
    with connect(url) as connection:
        user = connection.info.user
        connection.execute(f"alter role {user} set client_min_messages = error")
    try:
        with msgtx.connect(url) as client, ExitStack() as closing, ThreadPoolExecutor(1) as threads:
            act = send(Stage(client, url, closing))
            with pair.nothing_confirmed():
                acting = threads.submit(act)
                pair.cancel_waits(acting)
                pair.cancel_waits(acting)
            acting.result(SECONDS)
    finally:
        with connect(url) as connection:
            connection.execute(f"alter role {user} reset client_min_messages")


@pytest.mark.parametrize("kind", ["sqlalchemy", "psycopg"])
def test_the_log_says_so_of_a_session_of_the_user(kind: str, pair: Pair, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once; its COMMIT is answered with success by PostgreSQL, and nobody could handle an error."""
    with msgtx.connect(url) as client, ExitStack() as closing, ThreadPoolExecutor(1) as threads:
        engine = client.engine()
        closing.callback(engine.dispose)
        made: Any = Session(engine) if kind == "sqlalchemy" else psycopg.connect(url)
        session = closing.enter_context(made)
        for _ in range(2):
            msgtx.publish(session, "t", b"a")
            session.commit()
        msgtx.publish(session, "t", b"b")
        with pair.nothing_confirmed():
            committing = threads.submit(session.commit)
            pair.cancel_waits(committing)
            committing.result(SECONDS)
    assert [record.levelname for record in caplog.records if record.name == "msgtx.session"] == ["WARNING"]


@pytest.mark.parametrize("is_pooled", [False, True])
def test_the_log_says_so_of_a_connection_of_asyncpg(
    is_pooled: bool, pair: Pair, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also the second time that its pool gives it out; the pool has nothing to warn of (a warning fails the test)."""
    asyncio.run(publish_unconfirmed(is_pooled, pair, url))
    assert [record.levelname for record in caplog.records if record.name == "msgtx.session"] == ["WARNING"]


async def publish_unconfirmed(is_pooled: bool, pair: Pair, url: str) -> None:
    """Publish on a connection of asyncpg, then again while nothing is confirmed, and cancel the wait of that COMMIT."""
    owner: Any = await (asyncpg.create_pool(url, min_size=1, max_size=1) if is_pooled else asyncpg.connect(url))

    async def publish(value: bytes) -> None:
        connection = await owner.acquire() if is_pooled else owner
        async with connection.transaction():
            await msgtx.aio.publish(connection, "t", value)
        if is_pooled:
            await owner.release(connection)

    await publish(b"a")
    with pair.nothing_confirmed(), ThreadPoolExecutor(1) as threads:
        publishing = asyncio.ensure_future(publish(b"b"))
        answered: Future[None] = Future()  # for the thread that cancels
        publishing.add_done_callback(lambda _: answered.set_result(None))
        await asyncio.get_running_loop().run_in_executor(threads, pair.cancel_waits, answered)
        await asyncio.wait_for(publishing, SECONDS)
    await asyncio.sleep(0)  # asyncpg calls its listeners in the next round of the loop
    await owner.close()


def test_nothing_that_was_acknowledged_is_missing_after_the_failover(own_pair: Pair) -> None:
    """The calls that wait when the primary is killed are repeated on the standby: stored once, I1."""
    url = own_pair.primary.create_database()
    own_pair.catch_up()
    with (
        msgtx.connect(own_pair.on_either(url)) as client,
        ThreadPoolExecutor(2) as threads,
        client.producer(retry_backoff_ms=5) as producer,
        client.producer(transactional_id="id", retry_backoff_ms=5) as other,
    ):
        client.topics.create("t", partitions=1)
        producer.send("t", b"before").result(SECONDS)
        transaction = other.begin_transaction()
        other.send("t", b"committed")
        other.flush()  # an append waits for no standby: records sent after the cut are lost with the primary
        own_pair.catch_up()
        own_pair.fall_behind()
        own_pair.confirm_by("walreceiver")
        sending = threads.submit(lambda: producer.send("t", b"sent").result(SECONDS))
        committing = threads.submit(other.commit_transaction, SECONDS)
        for _ in range(2):
            own_pair.cancel_waits(sending)
            own_pair.cancel_waits(committing)
        own_pair.fail_over()
        sending.result(SECONDS)
        committing.result(SECONDS)
        assert client.transaction_outcome(transaction.id) is Outcome.COMMITTED
        found = [record.value for record in client.read(client.snapshot(["t"]))]
    assert sorted(found) == [b"before", b"committed", b"sent"]
