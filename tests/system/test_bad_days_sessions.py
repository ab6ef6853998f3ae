"""Bad days: a user's session that is idle in a transaction, and a server that takes no more connections."""

import concurrent.futures
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import msgtx
from msgtx import Outcome, OutputRecord, Producer, TopicPartition, errors, orm, protocol
from msgtx.client import Client
from msgtx.protocol import Batch
from tests.cli.program import Ended
from tests.databases import Connection, Server, wait_until
from tests.store.steps import unique
from tests.system.scenarios import FAST, PATIENCE_SECONDS, READING, read_all, stable

pytestmark = pytest.mark.slow

_numbers = itertools.count(1)


@pytest.fixture
def user(database_url: str) -> Iterator[sqlalchemy.Connection]:
    """A user's session; what it leaves open is rolled back at the end."""
    engine = sqlalchemy.create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        yield connection
        connection.rollback()
    engine.dispose()


@pytest.fixture
def topic(client: Client) -> str:
    name = unique("idle")
    client.topics.create(name, partitions=2)
    return name


@pytest.fixture
def impatient(database_url: str, connection: Connection) -> Iterator[None]:
    """The functions wait briefly for a lock instead of ten seconds."""
    waiting = ("append", "append_and_decide", "decide", "init_producer_id", "fence_producer")
    for name in waiting:
        connection.execute(f"alter function msgtx.{name} set lock_timeout = '50ms'")
    yield
    for name in waiting:
        connection.execute(f"alter function msgtx.{name} set lock_timeout = '10s'")


def finish(client: Client, topic: str, transactional_id: str, *values: str) -> None:
    """Produce, read back, and see everything settled."""
    with client.producer(transactional_id=transactional_id, **FAST) as producer:
        for value in values:
            with producer.transaction():
                producer.send(topic, value.encode(), partition=0)
    client.sweep()
    assert [value for _, value in read_all(client, topic)[0]][-len(values) :] == list(values)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_an_old_snapshot_holds_nobody_up(client: Client, topic: str, user: sqlalchemy.Connection, isolation: str) -> None:
    """P21: a forgotten session, pg_dump, a long report."""
    user = user.execution_options(isolation_level=isolation)
    user.execute(sqlalchemy.text("select count(*) from msgtx.record_batch"))
    with client.producer(transactional_id=topic, **FAST) as producer:
        producer.begin_transaction(timeout_ms=1)
        producer.send(topic, b"overdue", partition=0).result(PATIENCE_SECONDS)
        wait_until(lambda: client.sweep() and stable(client, topic), "the sweep ends it")
        producer.abort_transaction()
    finish(client, topic, topic, "a", "b")
    states = {listing.state for listing in client.admin.transactions.list(pattern=topic)}
    assert states == {"CompleteCommit"}


def test_a_lock_on_a_business_row_is_nothing_to_msgtx(
    client: Client, topic: str, user: sqlalchemy.Connection, connection: Connection
) -> None:
    connection.execute("create table if not exists account (id int primary key, balance int)")
    connection.execute("insert into account values (1, 0) on conflict do nothing")
    user.execute(sqlalchemy.text("select * from account where id = 1 for update"))
    finish(client, topic, topic, "a")


def test_an_append_in_an_open_session_holds_its_partition_and_its_producer_and_nothing_else(
    client: Client, topic: str, user: sqlalchemy.Connection, impatient: None, database_url: str, shell: Callable[..., Ended]
) -> None:
    """P32. Others wait, get LockTimeout, and continue when the session ends; readers continue up to there."""
    held, free = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with client.producer(linger_ms=0, **FAST) as producer:
        producer.send(topic, b"before", partition=0).result(PATIENCE_SECONDS)
    session = protocol.init_producer_id(user, f"{topic}-user", 60_000)
    user.commit()
    batch = Batch(held, *session, 0, [OutputRecord(b"theirs")], transaction_number=0)
    (result,) = protocol.append(user, [batch])
    assert result.error is None

    # The free partition, a reader, a sweep, a look: none of them waits.
    with client.producer(transactional_id=f"{topic}-free", **FAST) as producer, producer.transaction():
        producer.send(topic, b"free", partition=1)
    with client.consumer(topic, **READING) as reader:
        found = {record.value for _ in range(2) for record in reader.poll(1.0)}
        assert found == {b"before", b"free"}
        assert shell(database_url, "sweep").code == 0
        assert shell(database_url, "transactions", "list").code == 0

        # These are held back: a producer of that partition, and a successor of that id.
        hasty = client.producer(linger_ms=0, retry_backoff_ms=1, delivery_timeout_ms=100)
        with hasty, pytest.raises(errors.DeliveryTimeout, match="lock timeout"):
            hasty.send(topic, b"late", partition=0).result(PATIENCE_SECONDS)
        successor = client.producer(transactional_id=f"{topic}-user", **FAST)
        with pytest.raises(errors.LockTimeout):
            successor.init_transactions(timeout=0.1)
        with pytest.raises(errors.LockTimeout) as raised:
            client.admin.transactions.fence(f"{topic}-user")
        assert raised.value.retriable
        ended = shell(database_url, "transactions", "fence", f"{topic}-user", "--yes")
        assert ended.code == 1
        assert "lock timeout" in ended.err
        with client.producer(linger_ms=0, **FAST) as patient:
            waiting = patient.send(topic, b"patient", partition=0)
            assert not waiting.done()
            user.rollback()
            assert waiting.result(PATIENCE_SECONDS).offset == 1
        successor.init_transactions()
        successor.close()
        assert [record.value for record in reader.poll(PATIENCE_SECONDS)] == [b"patient"]
    assert {p: [value for _, value in rows] for p, rows in read_all(client, topic).items()} == {
        0: ["before", "patient"], 1: ["free"],
    }  # fmt: skip
    assert free != held


def test_what_an_open_session_has_appended_shows_when_it_commits(
    client: Client, topic: str, user: sqlalchemy.Connection
) -> None:
    """P1, P33: readers that continued meanwhile have skipped none of it; its time began when it appended."""
    session = protocol.init_producer_id(user, f"{topic}-user", 60_000)
    user.commit()
    name = msgtx.TransactionId(*session, 0)
    partition = TopicPartition(topic, 0)
    protocol.append(user, [Batch(partition, *session, 0, [OutputRecord(b"theirs")], transaction_number=0)])
    with client.consumer(topic, **READING) as reader, concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert reader.poll(0) == []
        with client.producer(linger_ms=0, **FAST) as producer:
            behind = producer.send(topic, b"behind", partition=0)
            client.sweep()
            protocol.decide(user, name, Outcome.COMMITTED, {partition: 0}, {topic: {partition: 1}})
            polling = threads.submit(reader.poll, PATIENCE_SECONDS)
            user.commit()
            assert behind.result(PATIENCE_SECONDS).offset == 1
        seen = [record.value for record in polling.result()]
        while len(seen) < 2:
            seen += [record.value for record in reader.poll(PATIENCE_SECONDS)]
        assert seen == [b"theirs", b"behind"]
    assert client.transaction_outcome(name) is Outcome.COMMITTED


# ── sessions that decide what the library wrote ──


@pytest.fixture
def sessions(client: Client, connection: Connection) -> Iterator[sqlalchemy.Engine]:
    """The application's own engine, and its table."""
    connection.execute("create table if not exists made (name text)")
    engine = sqlalchemy.create_engine(client.secret_url.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


def rows(connection: Connection, name: str) -> int:
    return len(connection.execute("select from made where name = %s", [name]).fetchall())


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_session_that_forgets_what_it_sealed_holds_readers_up_until_its_timeout(
    client: Client,
    topic: str,
    sessions: sqlalchemy.Engine,
    connection: Connection,
    clock: Callable[..., None],
    isolation: str,
) -> None:
    """P32, I12: then all others continue, and its COMMIT is refused with its rows."""
    with (
        Session(sessions.execution_options(isolation_level=isolation)) as session,
        client.producer(transactional_id=topic, **FAST) as producer,
    ):
        session.execute(sqlalchemy.text("insert into made values (:name)"), {"name": topic})
        with producer.transaction(session=session) as transaction:
            for partition in range(2):
                producer.send(topic, b"forgotten", partition=partition)
            transaction.send_offsets({TopicPartition(topic, 0): 0}, topic)
        with client.producer(linger_ms=0, **FAST) as other:
            assert [other.send(topic, b"behind", partition=n).result(PATIENCE_SECONDS).offset for n in range(2)] == [1, 1]
        client.sweep()
        assert read_all(client, topic) == {}
        clock("61 seconds")
        wait_until(lambda: client.sweep() and read_all(client, topic) == {0: [(1, "behind")], 1: [(1, "behind")]}, "swept")
        with pytest.raises(errors.TransactionAborted):
            session.commit()
        assert client.transaction_outcome(transaction.id) is Outcome.ABORTED
        assert rows(connection, topic) == 0
        with producer.transaction():
            producer.send(topic, b"next", partition=0)
    with client.consumer(group=topic, **READING) as member:
        assert member.committed([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): None}
    finish(client, topic, topic, "last")


@pytest.mark.parametrize("how", ["sealed", "published"])
def test_a_session_that_stands_still_before_its_commit_is_ended_and_all_go_on(
    client: Client, topic: str, sessions: sqlalchemy.Engine, connection: Connection, how: str
) -> None:
    """P32: no client waits for its COMMIT's locks longer than the server tolerates an idle session.

    What it publishes locks nothing before its COMMIT.
    """
    held = how != "published"
    stands, goes_on = threading.Event(), threading.Event()
    limits: list[str] = []

    def stand_still(user: sqlalchemy.Connection) -> None:
        limits.append(user.exec_driver_sql("show idle_in_transaction_session_timeout").scalar_one())
        if held:
            user.exec_driver_sql("set local idle_in_transaction_session_timeout = '200ms'")
        stands.set()
        assert goes_on.wait(PATIENCE_SECONDS)

    def work(session: Session, producer: Producer) -> None:
        session.execute(sqlalchemy.text("insert into made values (:name)"), {"name": topic})
        if how == "published":
            orm.publish(session, topic, b"still", partition=0)
        else:
            with producer.transaction(session=session):
                producer.send(topic, b"still", partition=0)
        sqlalchemy.event.listen(sessions, "commit", stand_still)  # after the library's own
        session.commit()

    with (
        Session(sessions) as session,
        client.producer(transactional_id=topic, **FAST) as producer,
        concurrent.futures.ThreadPoolExecutor(1) as threads,
    ):
        working = threads.submit(work, session, producer)
        try:
            assert stands.wait(PATIENCE_SECONDS)
            client.sweep()
            with client.producer(linger_ms=0, **FAST) as other:
                assert other.send(topic, b"beside", partition=1).result(PATIENCE_SECONDS).offset == 0
                behind = other.send(topic, b"behind", partition=0)
                client.producer(transactional_id=topic, **FAST).init_transactions()
                behind.result(PATIENCE_SECONDS)
        finally:
            goes_on.set()
        with pytest.raises(sqlalchemy.exc.DBAPIError) if held else contextlib.nullcontext():
            working.result(PATIENCE_SECONDS)
    assert limits == ["5s" if held else "0"]
    assert rows(connection, topic) == (0 if held else 1)
    client.sweep()
    seen = {partition: [value for _, value in found] for partition, found in read_all(client, topic).items()}
    assert seen == {0: ["behind"] if held else ["behind", "still"], 1: ["beside"]}
    finish(client, topic, topic, "last")


# ── no more connections ──


@pytest.fixture
def limited(server: Server, database_url: str) -> Iterator[Callable[[int], str]]:
    """A role with a connection limit: `limited(2)` makes it, or changes the limit, and returns its address."""
    name = f"{server.role}_limited_{next(_numbers)}"
    with server.administrator() as administrator:
        administrator.execute(f"create role {name} login password '{server.password}' in role {server.role}")

        def limit(connections: int) -> str:
            administrator.execute(f"alter role {name} connection limit {connections}")
            return sqlalchemy.make_url(database_url).set(username=name).render_as_string(hide_password=False)

        yield limit
        end_sessions(server, limit(0))
        administrator.execute(f"drop role {name}")


def end_sessions(server: Server, url: str) -> None:
    """End every session of a role."""
    with server.administrator() as administrator:
        administrator.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = %s",
            [sqlalchemy.make_url(url).username],
        )


def test_a_reached_limit_is_told_and_clients_go_on_when_there_is_room(
    limited: Callable[[int], str], topic: str, shell: Callable[..., Ended]
) -> None:
    url = limited(0)
    for arguments, stdin in (("topics list", b""), (f"produce {topic}", b"a\n"), (f"consume {topic}", b""), ("sweep", b"")):
        ended = shell(url, *arguments.split(), stdin=stdin)
        assert ended.code == 3, arguments
        assert "too many connections" in ended.err
        assert "have the limit raised" in ended.err
    with pytest.raises(errors.DatabaseUnavailable, match="too many connections"):
        msgtx.connect(url)
    limited(1)
    with msgtx.connect(url) as theirs, theirs.consumer(topic, **READING) as reader:
        # One connection for a sender, a reader, and a listener that gets none; a thread without one asks again.
        with theirs.producer(linger_ms=0, **FAST) as producer:
            futures = [producer.send(topic, b"%d" % number, partition=0) for number in range(20)]
            assert [future.result(PATIENCE_SECONDS).offset for future in futures] == list(range(20))
        assert reader.poll(PATIENCE_SECONDS)


def test_a_client_that_lost_its_connections_at_the_limit_gets_them_back(
    limited: Callable[[int], str], client: Client, topic: str, server: Server
) -> None:
    url = limited(4)
    with msgtx.connect(url) as theirs, theirs.producer(transactional_id=topic, **FAST) as producer:
        with producer.transaction():
            producer.send(topic, b"before", partition=0)
        limited(0)
        end_sessions(server, url)
        producer.begin_transaction()
        waiting = producer.send(topic, b"meanwhile", partition=0)
        with pytest.raises(errors.OutcomeUnknown, match="too many connections"):
            producer.commit_transaction(timeout=0.2)
        limited(4)
        producer.commit_transaction()
        assert waiting.result(PATIENCE_SECONDS).offset == 1
    assert [value for _, value in read_all(client, topic)[0]] == ["before", "meanwhile"]
