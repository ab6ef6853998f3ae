"""Bad days: a pooler in transaction mode between clients and the server. Every call may use another session."""

import concurrent.futures
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import msgtx
from msgtx import TopicPartition, errors, orm
from msgtx.client import Client
from msgtx.database import connection as connections
from msgtx.database.pool import POOLED_SECONDS, Engine
from tests.cli.program import Ended
from tests.databases import Connection, backend, connect, wait_until
from tests.faults import Faults
from tests.pooler import pooler
from tests.system.scenarios import FAST, PATIENCE_SECONDS, READING, SCENARIOS, anomalies_of, read_all

pytestmark = pytest.mark.slow

SESSIONS = 3  # of the server, for all clients together


@pytest.fixture(scope="module")
def url(database_url: str) -> Iterator[str]:
    """The module's database, through the pooler."""
    with pooler(database_url, size=SESSIONS) as running:
        yield running.url(database_url)


@pytest.fixture
def pooled(url: str) -> Iterator[Client]:
    with msgtx.connect(url) as client:
        yield client


def test_calls_of_one_connection_meet_several_sessions(url: str) -> None:
    """Shows that the test works: a statement prepared in one session is unknown in the next one."""
    with connect(url) as one, connect(url) as other:
        one.prepare_threshold = 0
        one.execute("select 1 as prepared")
        before = one.execute("select pg_backend_pid()").fetchone()
        other.autocommit = False
        for _ in range(SESSIONS):  # a session in a transaction is not free for others
            if other.execute("select pg_backend_pid()").fetchone() == before:
                break
            other.rollback()
        with pytest.raises((psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)):
            [one.execute(f"select {number // 2} as prepared") for number in range(4 * SESSIONS)]
        other.rollback()


def test_a_pooler_is_noticed_and_a_server_is_not_taken_for_one(pooled: Client, client: Client) -> None:
    assert pooled.runtime.engine.pooled
    with pooled.runtime.engine.connection() as connection:
        assert connection.prepare_threshold is None
    assert not client.runtime.engine.pooled
    with client.runtime.engine.connection() as connection:
        assert connection.prepare_threshold == 0
    for each in (pooled, client):
        engine = each.engine()
        with engine.connect() as session:
            driver = session.connection.driver_connection
            assert driver is not None
            assert (driver.prepare_threshold is None) == (each is pooled)
        engine.dispose()


def test_a_connection_to_a_pooler_is_used_for_a_second(pooled: Client) -> None:
    """I1: the next one asks who answers, and so notices that the pooler leads to another primary."""
    with pooled.runtime.engine.connection() as one:
        assert isinstance(one, connections.Connection)
        one.opened_at -= POOLED_SECONDS
    with pooled.runtime.engine.connection() as other:
        assert other is not one


def test_every_program_does_behind_a_pooler_what_it_does_without(pooled: Client) -> None:
    """Idempotent and transactional producers, offsets, aborts, fencing, timeouts, sweeps: all at once, on few sessions."""

    def run(name: str) -> list[str]:
        return anomalies_of(pooled, f"pooled-{name}", name)

    with concurrent.futures.ThreadPoolExecutor(len(SCENARIOS)) as threads:
        found = dict(zip(SCENARIOS, threads.map(run, SCENARIOS), strict=True))
    assert found == {name: [] for name in SCENARIOS}


@pytest.mark.parametrize("level", ["READ COMMITTED", "SERIALIZABLE"])
def test_users_sessions_publish_and_commit_offsets_through_it(
    pooled: Client, client: Client, url: str, unique: Callable[[str], str], level: str
) -> None:
    source, output = unique("source"), unique("output")
    for name in (source, output):
        client.topics.create(name)
    with client.producer() as producer:
        for number in range(4):
            producer.send(source, b"%d" % number)
    engine = sqlalchemy.create_engine(
        sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"), isolation_level=level,
        poolclass=sqlalchemy.NullPool, connect_args={"prepare_threshold": None},
    )  # fmt: skip
    with (
        pooled.consumer(source, group=source, max_poll_records=1, **READING) as consumer,
        pooled.producer(transactional_id=output) as producer,
    ):
        for number, ending in enumerate(["commit", "rollback", "commit", "commit"]):
            with Session(engine) as session:
                with consumer.batch(session, PATIENCE_SECONDS) as records:
                    orm.publish(session, output, records[0].value, partition=0)
                with producer.transaction(session=session):
                    producer.send(output, b"sent %d" % number)
                getattr(session, ending)()
    values = sorted(record.value or b"" for record in client.read(client.snapshot([output])))
    assert values == [b"0", b"1", b"2", b"sent 0", b"sent 2", b"sent 3"]
    assert client.admin.groups.describe(source).lag == 1


def test_a_program_consumes_with_sql_through_it(client: Client, url: str, unique: Callable[[str], str]) -> None:
    """Each SQL transaction may have another session. It waits by `wait_for_records`: nothing would notify it."""
    topic, group = unique("topic"), unique("group")
    client.topics.create(topic, partitions=2)
    sent, found = [f"{number}" for number in range(20)], []
    with connect(url) as session:
        session.prepare_threshold = None
        for value in sent:
            session.execute("select msgtx.publish(%s, value => %s, key => %s)", [topic, value, value])
        for rolls_back in itertools.cycle((True, False)):
            if session.execute("select msgtx.wait_for_records(%s, %s, '0 s')", [topic, group]).fetchone() == (False,):
                break
            with session.transaction(force_rollback=rolls_back):
                taken = session.execute("select value from msgtx.take(%s, %s, max_records => 3)", [topic, group]).fetchall()
            found += [value.decode() for (value,) in taken if not rolls_back]
    assert sorted(found) == sorted(sent)
    assert client.admin.groups.describe(group).lag == 0


def test_many_calls_in_flight_stay_in_order(pooled: Client) -> None:
    """A pipeline of SQL transactions, beside others that change sessions."""
    total = 400
    pooled.topics.create("ordered", partitions=2)

    def send(number: int) -> None:
        with pooled.producer(linger_ms=0, **FAST) as producer:
            futures = [producer.send("ordered", f"{number}/{i}".encode(), partition=number) for i in range(total)]
            assert [future.result(PATIENCE_SECONDS).offset for future in futures] == list(range(total))

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(send, range(2)))
    seen = read_all(pooled, "ordered")
    assert [value for _, value in seen[1]] == [f"1/{i}" for i in range(total)]


def test_consume_transform_produce(pooled: Client) -> None:
    for name in ("raw", "cooked"):
        pooled.topics.create(name, partitions=2)
    with pooled.producer(**FAST) as producer:
        for number in range(100):
            producer.send("raw", str(number).encode(), partition=number % 2)
    report = pooled.process(
        "raw", to="cooked", group="cook", transactional_id="cook", transaction_ms=5, idle_timeout=0.2,
        transform=lambda record: msgtx.OutputRecord(record.value, partition=record.partition), **FAST,
    )  # fmt: skip
    assert report.records_out == 100
    seen = read_all(pooled, "cooked")
    assert {p: [int(value) for _, value in rows] for p, rows in seen.items()} == {
        0: [*range(0, 100, 2)],
        1: [*range(1, 100, 2)],
    }


def test_a_waiting_consumer_polls_and_leaves_no_listener_behind(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A LISTEN would stay in a session that others use. Waiting must not be a busy loop."""
    faults = Faults()
    with caplog.at_level(logging.INFO), Client(Engine(url, connect=faults.connect)) as client:
        client.topics.create("quiet")
        with client.consumer("quiet", **READING) as consumer, client.producer(linger_ms=0, **FAST) as producer:
            assert consumer.poll(0) == []
            faults.crossed.clear()
            assert consumer.poll(1.0) == []
            asked = faults.crossed.count("before fetch_batches")
            assert 5 <= asked <= 20, f"{asked} fetches in a second of silence"
            with concurrent.futures.ThreadPoolExecutor(1) as threads:
                polling = threads.submit(consumer.poll, PATIENCE_SECONDS)
                wait_until(lambda: faults.crossed.count("before fetch_batches") > asked, "the consumer looks again")
                producer.send("quiet", b"here")
                assert [record.value for record in polling.result()] == [b"here"]
        assert not any("listen" in name.lower() for name in faults.crossed)
    assert [record for record in caplog.records if record.name.startswith("msgtx")] == []


def test_an_idle_session_in_a_transaction_keeps_one_session_and_no_more(url: str, pooled: Client) -> None:
    """A user's open transaction occupies one session of the pooler; the others remain in use."""
    pooled.topics.create("beside")
    with connect(url) as user:
        user.autocommit = False
        user.execute("select 1")
        with pooled.producer(linger_ms=0, **FAST) as producer:
            assert producer.send("beside", b"value").result(PATIENCE_SECONDS).offset == 0
        user.rollback()


def test_sessions_that_end_behind_the_pooler_lose_nothing(pooled: Client, connection: Connection, database_url: str) -> None:
    pooled.topics.create("behind", partitions=2)
    ended = 0
    with pooled.producer(linger_ms=0, **FAST) as producer:
        for number in range(30):
            futures = [producer.send("behind", f"{number}/{i}".encode(), partition=i) for i in range(2)]
            ended += len(
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                    " and pid <> pg_backend_pid() and backend_type = 'client backend'"
                ).fetchall()
            )
            for future in futures:
                future.result(PATIENCE_SECONDS)
    assert ended >= 10
    seen = _again(lambda: read_all(pooled, "behind"))
    assert {p: [value for _, value in rows] for p, rows in seen.items()} == {
        p: [f"{number}/{p}" for number in range(30)] for p in (0, 1)
    }


def _again(call: Callable[[], dict[int, list[tuple[int, str]]]]) -> dict[int, list[tuple[int, str]]]:
    """Repeat an administrator's call, which may get a session that has ended from the pooler."""
    for _ in range(SESSIONS + 1):
        try:
            return call()
        except errors.DatabaseUnavailable:
            continue
    raise AssertionError("the pooler's sessions are not renewed")


def test_the_commands(
    make_database: Callable[..., str],
    shell: Callable[..., Ended],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From an empty database on, through the pooler."""
    direct = make_database(schema=False)
    (tmp_path / "shout.py").write_text("def transform(record):\n    return record.value.upper()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pooler(direct, size=SESSIONS) as running:
        address = running.url(direct)
        for arguments, stdin in (
            ("db init", b""),
            ("topics create in --partitions 2", b""),
            ("topics create out", b""),
            ("produce in", b"a\nb\n"),
            ("produce in --transactional-id shell --transaction-size 1", b"c\nd\n"),
            ("process in out shout:transform --group g --transactional-id t --idle-timeout 0.2", b""),
            ("transactions fence shell --yes", b""),
            ("sweep", b""),
            ("db check", b""),
        ):
            ended = shell(address, *arguments.split(), stdin=stdin)
            assert ended.code == 0, (arguments, ended.err)
        ended = shell(address, "consume", "out", "--from-beginning", "--no-follow")
        assert (ended.code, sorted(ended.out.split())) == (0, [b"A", b"B", b"C", b"D"])
        ended = shell(address, "transactions", "list", "-o", "jsonl")
        assert {row["transactional_id"] for row in ended.rows} == {"shell", "t"}


def test_a_database_that_the_pooler_cannot_reach_is_told_in_one_line(url: str, shell: Callable[..., Ended]) -> None:
    missing = url.rsplit("/", 1)[0] + "/msgtx_test_no_such_database"
    ended = shell(missing, "topics", "list")
    assert ended.code in {2, 3}
    assert "no_such_database" in ended.err


def test_what_a_session_sees_of_the_clients_is_the_pooler(pooled: Client, connection: Connection) -> None:
    """A transaction's backend is a session of the pooler, which shows nothing about the client."""
    pooled.topics.create("seen")
    with pooled.producer(transactional_id="seen", **FAST) as producer:
        producer.begin_transaction()
        producer.send("seen", b"value").result(PATIENCE_SECONDS)
        found = connection.execute(
            "select t.database_backend, t.client_process is not null from msgtx.transaction t"
            " join msgtx.producer p using (producer_id) where p.transactional_id = 'seen'"
        ).fetchone()
        assert found is not None
        assert found[0] != backend(connection)
        assert found[1]
        assert pooled.admin.partitions.describe(TopicPartition("seen", 0)).last_stable_offset == 0
        producer.commit_transaction()
