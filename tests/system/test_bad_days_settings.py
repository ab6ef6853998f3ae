"""Bad days: settings that an administrator gave the role. Each works, or fails with an error that names it."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy
from psycopg import sql

import msgtx
from msgtx import OffsetAndMetadata, Outcome, TopicPartition, errors
from msgtx.client import Client
from tests.cli.program import Ended
from tests.databases import PATIENCE_SECONDS, Connection, Server, connect
from tests.faults import CrashServer, crash_server
from tests.system.scenarios import FAST, READING, SCENARIOS, anomalies_of, read_all

pytestmark = pytest.mark.slow

_numbers = itertools.count(1)
HARMLESS = {
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "50ms",
    "idle_session_timeout": "250ms",
    "TimeZone": "Asia/Kathmandu",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "client_encoding": "latin1",
    "synchronous_commit": "off",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "plan_cache_mode": "force_custom_plan",
    "enable_indexscan": "off",
    "default_transaction_deferrable": "on",
    "session_replication_role": "replica",
    "row_security": "off",
    "client_min_messages": "debug5",
    "extra_float_digits": "-15",
}
REFUSED = {
    "default_transaction_isolation": ("serializable", "repeatable read"),
    "default_transaction_read_only": ("on",),
}
NAMES = "grüße-€-日本"  # of a transactional id, a group, a header: not all of it exists in Latin 1
# Objects that a user's program may find before pg_catalog, if its search_path puts them there.
HOSTILE = """
create schema evil;
create domain evil.int8 as pg_catalog.int4;
create domain evil.int4 as pg_catalog.text;
create domain evil.text as pg_catalog.bytea;
create domain evil.bool as pg_catalog.text;
create domain evil.timestamptz as pg_catalog.text;
create table evil.record_batch (partition_id int);
create function evil.set_config(text, text, boolean) returns text language plpgsql as $$
    begin raise 'evil.set_config was called'; end $$;
create function evil.pg_notify(text, text) returns void language plpgsql as $$
    begin raise 'evil.pg_notify was called'; end $$;
create function evil.clock_timestamp() returns timestamptz language sql return timestamptz '1999-01-01';
create function evil.pg_backend_pid() returns int language sql return 0;
create function evil.hashtext(text) returns int language sql return 0;
create function evil.equal(bigint, bigint) returns boolean language sql return false;
create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.equal);
grant usage on schema evil to public;
"""
STANDS_ON_EVIL = """
    select count(*) from pg_depend d
    join pg_proc p on p.pronamespace = 'evil'::regnamespace and d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid
    where d.deptype = 'n' and d.classid in ('pg_proc'::regclass, 'pg_rewrite'::regclass, 'pg_attrdef'::regclass)"""


@contextmanager
def role_with(server: Server, url: str, setting: str, value: str) -> Iterator[str]:
    """Make a role with the owner's rights and this setting; yields its address."""
    name = f"{server.role}_with_{next(_numbers)}"
    with server.administrator() as administrator:
        administrator.execute(f"create role {name} login password '{server.password}' in role {server.role}")
        administrator.execute(
            sql.SQL("alter role {} set {} = {}").format(sql.Identifier(name), sql.SQL(setting), sql.SQL(_values(value)))
        )
        try:
            yield sqlalchemy.make_url(url).set(username=name).render_as_string(hide_password=False)
        finally:
            administrator.execute(f"drop role {name}")


def _values(value: str) -> str:
    return ", ".join(f"'{part.strip()}'" for part in value.split(","))


def use_everything(client: Client, run: str) -> None:
    """Use names, times and bytes that a setting might spoil; the same client reads them back."""
    before = client.topics.create(run, partitions=2)
    source = TopicPartition(run, 0)
    value = bytes(range(256))
    headers = [(NAMES, NAMES.encode()), ("back\\slash'", None)]
    with client.producer(transactional_id=f"{NAMES}-{run}", **FAST) as producer:
        with producer.transaction() as transaction:
            producer.send(run, value, key=b"\\x5c", partition=0, timestamp=1_234_567_890_123, headers=headers)
            producer.flush(PATIENCE_SECONDS)
            transaction.send_offsets({source: OffsetAndMetadata(1, NAMES)}, f"{NAMES}-{run}")
        described = client.admin.transactions.describe(f"{NAMES}-{run}")
    assert described.decided_by == "client"
    with client.consumer(group=f"{NAMES}-{run}", **READING) as consumer:
        consumer.assign([source])
        assert consumer.committed([source]) == {source: OffsetAndMetadata(1, NAMES)}
        consumer.seek(source, 0)
        (record,) = consumer.poll(PATIENCE_SECONDS)
        assert (record.key, record.value, list(record.headers)) == (b"\\x5c", value, headers)
        found = consumer.offsets_for_times({source: 1_234_567_890_000})[source]
        assert found is not None
        assert found.timestamp == record.timestamp == 1_234_567_890_123
        consumer.commit({source: OffsetAndMetadata(0, "")})
    assert client.topics.describe(run) == before


def run_programs(client: Client, run: str, names: Iterable[str] = ("commit", "timeout")) -> None:
    """Check programs of the crash sweep, without a crash, against the checker."""
    for name in names:
        assert anomalies_of(client, f"{run}-{name}", name) == [], name


@pytest.mark.parametrize("setting", HARMLESS)
def test_a_setting_of_the_role_changes_nothing(
    setting: str, server: Server, database_url: str, client: Client, shell: Callable[..., Ended]
) -> None:
    run = f"with-{setting}"
    with role_with(server, database_url, setting, HARMLESS[setting]) as url:
        with msgtx.connect(url) as theirs:
            use_everything(theirs, run)
            run_programs(theirs, run)
        ended = shell(url, "produce", run, "--partition", "1", stdin=f"{NAMES}\n".encode())
        assert ended.code == 0, ended.err
        ended = shell(url, "consume", run, "--from-beginning", "--no-follow", "--partition", "1")
        assert (ended.code, ended.out.decode()) == (0, f"{NAMES}\n"), ended.err
        theirs_told = shell(url, "transactions", "list", "-o", "jsonl").out
        theirs_read = shell(url, "consume", run, "--from-beginning", "--no-follow", "-o", "jsonl").out
    assert theirs_told == shell(database_url, "transactions", "list", "-o", "jsonl").out
    assert theirs_read == shell(database_url, "consume", run, "--from-beginning", "--no-follow", "-o", "jsonl").out


@pytest.mark.parametrize(("setting", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_a_setting_that_msgtx_cannot_work_with_is_named(
    setting: str, value: str, server: Server, database_url: str, client: Client, shell: Callable[..., Ended]
) -> None:
    """I16: nothing is written, and what is stored can be read."""
    topic = f"named-{setting}-{value[0]}"
    client.topics.create(topic)
    with client.producer(linger_ms=0, **FAST) as producer:
        producer.send(topic, b"there").result(PATIENCE_SECONDS)
    with role_with(server, database_url, setting, value) as url, msgtx.connect(url) as theirs:
        with pytest.raises(errors.ConfigError, match=setting), theirs.producer(**FAST) as producer:
            producer.send(topic, b"refused").result(PATIENCE_SECONDS)
        with pytest.raises(errors.ConfigError, match=setting):
            theirs.producer(transactional_id=topic, **FAST).init_transactions()
        with pytest.raises(errors.ConfigError, match=setting):
            theirs.sweep()
        with theirs.consumer(topic, **READING) as consumer:
            assert [record.value for record in consumer.poll(PATIENCE_SECONDS)] == [b"there"]
        ended = shell(url, "produce", topic, stdin=b"refused\n")
        assert ended.code == 2
        assert setting in ended.err
        assert shell(url, "consume", topic, "--from-beginning", "--no-follow").out == b"there\n"


def test_the_schema_is_made_whatever_the_isolation_of_the_role(
    make_database: Callable[..., str], server: Server, shell: Callable[..., Ended]
) -> None:
    url = make_database(schema=False)
    with role_with(server, url, "default_transaction_isolation", "serializable") as theirs:
        for command in ("init", "upgrade", "check"):
            assert shell(theirs, "db", command).code == 0
        with server.administrator(sqlalchemy.make_url(url).database) as administrator:
            administrator.execute(f"reassign owned by {sqlalchemy.make_url(theirs).username} to {server.role}")


def test_objects_of_the_user_are_never_taken_for_the_systems(
    make_database: Callable[..., str], server: Server, shell: Callable[..., Ended]
) -> None:
    """search_path has a schema before pg_catalog, both when msgtx is installed and when it is used."""
    url = make_database(schema=False)
    name = sqlalchemy.make_url(url).database
    with server.administrator(name) as administrator:
        administrator.execute(HOSTILE)
    with role_with(server, url, "search_path", "evil, pg_catalog, public") as theirs:
        ended = shell(theirs, "db", "init")
        assert ended.code == 0, ended.err
        with msgtx.connect(theirs) as client:
            use_everything(client, "hostile")
            run_programs(client, "hostile", SCENARIOS)
        assert shell(theirs, "db", "check").code == 0
        with server.administrator(name) as administrator:
            assert administrator.execute(STANDS_ON_EVIL).fetchone() == (0,)
            administrator.execute(f"reassign owned by {sqlalchemy.make_url(theirs).username} to {server.role}")


def test_a_statement_timeout_is_named_and_nothing_is_lost_when_it_ends(
    server: Server, database_url: str, client: Client, connection: Connection, shell: Callable[..., Ended]
) -> None:
    """Another session holds the partition: each attempt is canceled, and repeated until its time is over."""
    client.topics.create("timed")
    (partition,) = connection.execute(
        "select p.partition_id from msgtx.partition p join msgtx.topic t using (topic_id) where t.name = 'timed'"
    ).fetchone() or (0,)
    with role_with(server, database_url, "statement_timeout", "60ms") as url, msgtx.connect(url) as theirs:
        connection.execute("select pg_advisory_lock(1836279555, %s)", [partition])
        hasty = theirs.producer(linger_ms=0, retry_backoff_ms=1, delivery_timeout_ms=1_500)
        with hasty, pytest.raises(errors.DeliveryTimeout, match="statement_timeout"):
            hasty.send("timed", b"late").result(PATIENCE_SECONDS)
        with theirs.producer(linger_ms=0, **FAST) as producer:
            waiting = producer.send("timed", b"patient")
            connection.execute("select pg_advisory_unlock(1836279555, %s)", [partition])
            assert waiting.result(PATIENCE_SECONDS).offset == 0
    with role_with(server, database_url, "statement_timeout", "5s") as url:
        connection.execute("select pg_advisory_lock(1836279556, 0)")  # marking is only tried, or the limit would end it
        assert shell(url, "sweep").code == 0
        connection.execute("select pg_advisory_unlock(1836279556, 0)")
    assert [value for _, value in read_all_of(client, "timed")] == ["patient"]


def read_all_of(client: Client, topic: str) -> list[tuple[int, str]]:
    with client.consumer(topic, **READING) as consumer:
        records = consumer.poll(PATIENCE_SECONDS)
    return [(record.offset, (record.value or b"").decode()) for record in records]


# ── flushes, whatever the role's settings ──


@pytest.fixture(scope="module")
def crashing() -> Iterator[CrashServer]:
    with crash_server() as server:
        yield server


def test_what_is_acknowledged_is_flushed_though_the_role_commits_asynchronously(crashing: CrashServer) -> None:
    """I9: the role's synchronous_commit = off holds only for its own statements."""
    url = crashing.server.create_database()
    with crashing.server.administrator() as administrator:
        administrator.execute(f"alter role {crashing.server.role} set synchronous_commit = off")
    with connect(url) as connection:
        connection.execute("create table kept (value text)")
        crashing.flush()
        connection.execute("insert into kept values ('lost')")
    crashing.crash()
    with connect(url) as connection:
        assert connection.execute("select value from kept").fetchall() == [], "the role's own statements are not flushed"

    def after_a_crash(act: Callable[[Client], object]) -> None:
        with msgtx.connect(url) as client:
            act(client)
            crashing.crash()

    given: list[int] = []
    after_a_crash(lambda client: client.topics.create("topic", partitions=2))
    for _ in range(2):
        with msgtx.connect(url) as client:
            producer = client.producer(linger_ms=0, **FAST)
            producer.send("topic", f"plain-{len(given)}".encode(), partition=0).result(PATIENCE_SECONDS)
            assert producer._state.producer is not None
            given.append(producer._state.producer.producer_id)
            crashing.crash()
            producer.close()
    assert given[0] != given[1]
    names = []
    for flush in (False, True):
        with msgtx.connect(url) as client:
            producer = client.producer(transactional_id="id", linger_ms=20_000, **FAST)
            producer.init_transactions()
            names.append(producer.begin_transaction().id)
            producer.send("topic", f"transaction-{flush}".encode(), partition=1)
            producer.send_offsets_to_transaction({TopicPartition("topic", 0): 1}, f"group-{flush}")
            if flush:
                producer.flush(PATIENCE_SECONDS)
            producer.commit_transaction()
            crashing.crash()
            producer.close()
    with msgtx.connect(url) as client:
        producer = client.producer(transactional_id="id", linger_ms=20_000, **FAST)
        producer.init_transactions()
        names.append(producer.begin_transaction().id)
        producer.send("topic", b"aborted", partition=1)
        producer.flush(PATIENCE_SECONDS)
        producer.abort_transaction()
        crashing.crash()
        producer.close()
    with msgtx.connect(url) as client, client.consumer(group="plain", **READING) as consumer:
        consumer.assign([TopicPartition("topic", 0)])
        consumer.commit({TopicPartition("topic", 0): 2})
        crashing.crash()
    with msgtx.connect(url) as client:
        outcomes = [client.transaction_outcome(name) for name in names]
        assert outcomes == [Outcome.COMMITTED, Outcome.COMMITTED, Outcome.ABORTED]
        seen = {p: [value for _, value in rows] for p, rows in read_all(client, "topic").items()}
        assert seen == {0: ["plain-0", "plain-1"], 1: ["transaction-False", "transaction-True"]}
        for group, offset in (("group-False", 1), ("group-True", 1), ("plain", 2)):
            with client.consumer(group=group, **READING) as consumer:
                consumer.assign([TopicPartition("topic", 0)])
                assert consumer.committed()[TopicPartition("topic", 0)] == OffsetAndMetadata(offset)
