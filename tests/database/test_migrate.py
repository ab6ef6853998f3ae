"""Versions of the schema: up, down, up again; at once; on data; compared by the catalog."""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy

import msgtx
from msgtx import errors
from msgtx.database.pool import Engine
from msgtx.database.schema import migrate
from msgtx.types import TopicPartition
from tests.databases import Server, connect, install
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Databases = Callable[..., str]

# A schema as PostgreSQL's catalog describes it: compared between two databases.
CATALOG = {
    "columns": """select c.relname, c.relkind::text, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
        a.attidentity::text, a.attstorage::text, a.attcompression::text, pg_get_expr(d.adbin, d.adrelid)
        from pg_attribute a join pg_class c on c.oid = a.attrelid
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = 'msgtx'::regnamespace and a.attnum > 0 and not a.attisdropped order by 1, a.attnum""",
    "options": """select relname, relkind::text, relpersistence::text, reloptions from pg_class
        where relnamespace = 'msgtx'::regnamespace order by 1, 2""",
    "constraints": """select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
        where connamespace = 'msgtx'::regnamespace order by 1, 2""",
    "indexes": "select tablename, indexname, indexdef from pg_indexes where schemaname = 'msgtx' order by 1, 2",
    "functions": """select proname, pg_get_function_identity_arguments(oid), pg_get_functiondef(oid), proacl::text
        from pg_proc where pronamespace = 'msgtx'::regnamespace order by 1, 2""",
    "views": "select viewname, definition from pg_views where schemaname = 'msgtx' order by 1",
    "triggers": """select tgname, pg_get_triggerdef(oid) from pg_trigger where not tgisinternal
        and tgrelid in (select oid from pg_class where relnamespace = 'msgtx'::regnamespace) order by 1""",
    "settings": "select name, value from msgtx.setting order by 1",
}


def catalog(url: str) -> dict[str, list[object]]:
    with connect(url) as connection:
        return {name: list(connection.execute(query)) for name, query in CATALOG.items()}


def run(url: str, work: Callable[[sqlalchemy.Connection], object]) -> object:
    with Engine(url, pool_size=1) as engine, engine.transaction() as connection:
        return work(connection)


def test_down_and_up_again_on_data_is_the_same_schema(make_database: Databases) -> None:
    fresh, used = make_database(), make_database()
    with msgtx.connect(used) as client:
        client.topics.create("orders")
        with client.producer(transactional_id="t") as producer, producer.transaction():
            producer.send("orders", b"a")
    run(used, lambda connection: migrate.downgrade(connection, "base"))
    with connect(used) as connection:
        left = connection.execute(
            "select relname from pg_class where relnamespace = to_regnamespace('msgtx') and relkind in ('r', 'v', 'S')"
            " and relname <> 'alembic_version'"
        ).fetchall()
        assert left == []
    run(used, migrate.upgrade)
    assert catalog(used) == catalog(fresh)
    with msgtx.connect(used) as client:
        assert client.topics.list() == []


def test_an_upgrade_on_data_keeps_it(make_database: Databases) -> None:
    url = make_database()
    with msgtx.connect(url) as client:
        client.topics.create("orders")
        with client.producer() as producer:
            producer.send("orders", b"a")
    with connect(url) as connection:
        connection.execute("update msgtx.installation set functions_hash = 'another build'")
        connection.execute("drop function msgtx.clock() cascade")
    before = catalog(make_database())
    result = run(url, migrate.upgrade)
    assert isinstance(result, migrate.Upgrade)
    assert result.functions_renewed
    assert catalog(url) == before
    with msgtx.connect(url) as client, client.consumer("orders", auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll(30)] == [b"a"]


@pytest.mark.parametrize("change", ["drop view msgtx.committed_records cascade", "drop function msgtx.clock() cascade"])
def test_a_client_that_may_create_the_schema_mends_it(make_database: Databases, change: str) -> None:
    url = make_database()
    with connect(url) as connection:
        connection.execute(change)
    msgtx.connect(url, create=True).close()
    assert catalog(url) == catalog(make_database())


def test_a_second_upgrade_does_nothing(make_database: Databases) -> None:
    url = make_database()
    result = run(url, migrate.upgrade)
    assert result == migrate.Upgrade(before=migrate._head(), after=migrate._head(), functions_renewed=False)


def test_eight_upgrades_at_once_make_one_schema(make_database: Databases) -> None:
    url = make_database(schema=False)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(install, [url] * 8))
    assert catalog(url) == catalog(make_database())


def test_eight_inits_at_once_by_connect(make_database: Databases) -> None:
    url = make_database(schema=False)
    with ThreadPoolExecutor(8) as threads:
        clients = list(threads.map(lambda _: msgtx.connect(url, create=True, pool_size=1), range(8)))
    for client in clients:
        client.close()
    assert run(url, migrate.check) == []


def test_check_says_what_is_wrong_and_what_to_run(make_database: Databases) -> None:
    url = make_database(schema=False)
    assert "msgtx db init" in str(run(url, migrate.check))
    install(url)
    assert run(url, migrate.check) == []
    assert run(url, migrate.current) == migrate._head()
    for spoil, told in (
        ("drop view msgtx.transactions", "transactions"),
        ("drop trigger staged_at_commit on msgtx.staged_commit", "staged_at_commit"),
        ("update msgtx.installation set functions_hash = 'x'", "another build"),
        ("update msgtx.alembic_version set version_num = '0000'", "msgtx db upgrade"),
        ("update msgtx.alembic_version set version_num = '9999'", "newer msgtx"),
    ):
        with Engine(url, pool_size=1) as engine, engine.transaction() as transaction:
            transaction.execute(sqlalchemy.text(spoil))
            assert told in str(migrate.check(transaction))
            transaction.rollback()


def test_a_schema_of_the_future_is_not_touched(make_database: Databases) -> None:
    url = make_database()
    with connect(url) as connection:
        connection.execute("update msgtx.alembic_version set version_num = '9999'")
    with refuses(errors.ConfigError, reason="schema version"):
        run(url, migrate.upgrade)


def test_tables_without_a_version_are_told_and_left(make_database: Databases) -> None:
    url = make_database()
    with connect(url) as connection:
        connection.execute("delete from msgtx.alembic_version")
    before = catalog(url)
    with refuses(errors.ConfigError, reason="another schema"):
        run(url, migrate.upgrade)
    assert catalog(url) == before


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_upgrade_above_read_committed_is_refused(make_database: Databases, level: str) -> None:
    url = make_database(schema=False)

    def work(connection: sqlalchemy.Connection) -> None:
        connection.execute(sqlalchemy.text(f"set transaction isolation level {level}"))
        migrate.upgrade(connection)

    with refuses(errors.ConfigError, name="transaction_isolation"):
        run(url, work)


def test_rights_that_were_given_outlive_an_upgrade(make_database: Databases, server: Server) -> None:
    url = make_database()
    with server.administrator() as administrator:
        administrator.execute("create role grantee")
    try:
        with connect(url) as connection:
            connection.execute("grant usage on schema msgtx to grantee")
            connection.execute("grant execute on function msgtx.clock() to grantee")
            connection.execute("grant select on msgtx.records to grantee with grant option")
            before = connection.execute("select proacl::text from pg_proc where proname = 'clock'").fetchall()
            connection.execute("update msgtx.installation set functions_hash = 'x'")
        run(url, migrate.upgrade)
        with connect(url) as connection:
            assert connection.execute("select proacl::text from pg_proc where proname = 'clock'").fetchall() == before
            granted = connection.execute(
                "select has_table_privilege('grantee', 'msgtx.records', 'select with grant option')"
            ).fetchone()
            assert granted == (True,)
            connection.execute("revoke all on all tables in schema msgtx from grantee")
            connection.execute("revoke all on all functions in schema msgtx from grantee")
            connection.execute("revoke all on schema msgtx from grantee")
    finally:
        with server.administrator() as administrator:
            administrator.execute("drop role grantee")


def test_a_users_object_on_ours_is_named_and_never_dropped(make_database: Databases) -> None:
    url = make_database()
    with connect(url) as connection:
        connection.execute("create view public.mine as select * from msgtx.records")
        connection.execute("update msgtx.installation set functions_hash = 'x'")
    with refuses(errors.ConfigError, reason="in use"):
        run(url, migrate.upgrade)
    with connect(url) as connection:
        assert connection.execute("select count(*) from public.mine").fetchone() == (0,)


def test_a_users_trigger_on_a_table_of_ours_outlives_an_upgrade(make_database: Databases) -> None:
    url = make_database()
    with connect(url) as connection:
        connection.execute("create function public.mine() returns trigger language plpgsql as $$ begin return null; end $$")
        for name in ("mine", "staged_at_commit_too"):
            connection.execute(
                f"create constraint trigger {name} after insert on msgtx.staged_record for each row execute function mine()"
            )
        before = catalog(url)
        connection.execute("update msgtx.installation set functions_hash = 'x'")
    assert len(before["triggers"]) == 3
    run(url, migrate.upgrade)
    assert catalog(url) == before


def test_a_users_trigger_that_calls_a_function_of_ours_is_named_and_never_dropped(make_database: Databases) -> None:
    url = make_database()
    with connect(url) as connection:
        connection.execute("create table public.mine (id int)")
        connection.execute(
            "create trigger mine after insert on mine for each row execute function msgtx.append_staged_once()"
        )
        connection.execute("update msgtx.installation set functions_hash = 'x'")
    with refuses(errors.ConfigError, reason="in use"):
        run(url, migrate.upgrade)
    with connect(url) as connection:
        assert connection.execute("select tgname from pg_trigger where tgname = 'mine'").fetchall() == [("mine",)]


def test_nothing_is_executable_by_everyone(make_database: Databases) -> None:
    """Only the owner uses tables and calls functions without having been granted the right."""
    url = make_database()
    with connect(url) as connection:
        public = connection.execute(
            "select proname from pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) a"
            " where pronamespace = 'msgtx'::regnamespace and a.grantee = 0"
        ).fetchall()
        assert public == []


NAMES = (
    "a",
    "Überweisung",
    "日本語",
    "\U0001f600\U0001f468\u200d\U0001f469",
    "polygenelubricants",
    "\uffff",
    *map(str, range(100)),
)


def test_producers_of_the_first_schema_get_the_shards_that_the_function_gives(make_database: Databases) -> None:
    url = make_database()
    run(url, lambda connection: migrate.downgrade(connection, "0001"))
    with connect(url) as connection:
        assert connection.execute("select schema_version from msgtx.installation").fetchone() == (1,)
        for producer_id, name in enumerate([*NAMES, None, None], start=7):
            connection.execute(
                "insert into msgtx.producer (producer_id, epoch, transactional_id, timeout_ms, initialized_at)"
                " values (%s, 3, %s, 60000, clock_timestamp())",
                [producer_id, name],
            )
        connection.execute("select setval('msgtx.producer_id_sequence', 1000)")
    run(url, migrate.upgrade)
    assert run(url, migrate.check) == []
    assert catalog(url) == catalog(make_database())
    with connect(url) as connection:
        rows = connection.execute(
            "select count(*), count(*) filter (where shard = msgtx.shard_of(transactional_id, producer_id)),"
            " count(distinct shard) > 20, min(epoch) from msgtx.producer"
        ).fetchall()
        assert rows == [(len(NAMES) + 2, len(NAMES) + 2, True, 3)]
        assert connection.execute(
            "select count(*), min(shard), max(shard), max(coordinator_epoch), count(coordinator_id)"
            " from msgtx.coordinator_shard"
        ).fetchone() == (50, 0, 49, 0, 0)


def test_the_second_schema_goes_down_and_up_again_with_leases_and_history(make_database: Databases) -> None:
    url = make_database()
    with msgtx.connect(url) as client:
        client.topics.create("orders")
        with client.producer(transactional_id="t") as producer, producer.transaction():
            producer.send("orders", b"a")
        with client.runtime.engine.connection() as connection:
            connection.execute("select msgtx.lease_shards(null, 'here', 1)")
    before = catalog(url)
    for _ in range(2):
        run(url, lambda connection: migrate.downgrade(connection, "0001"))
        with connect(url) as connection:
            assert connection.execute(
                "select to_regclass('msgtx.coordinator'), to_regclass('msgtx.producer')"
            ).fetchone() == (None, "msgtx.producer")
        run(url, migrate.upgrade)
        assert catalog(url) == before
    with msgtx.connect(url) as client:
        assert {shard.owner for shard in client.admin.coordinators()} == {None}
        with client.producer(transactional_id="t") as producer, producer.transaction():
            producer.send("orders", b"b")
        with client.consumer("orders", auto_offset_reset="earliest") as consumer:
            assert [record.value for record in consumer.poll(30)] == [b"a", b"b"]
        client.sweep()


def encoded(server: Server, encoding: str) -> str:
    """Make a database with an encoding. Returns its address."""
    name = f"msgtx_test_{secrets.token_hex(4)}"
    with server.administrator() as connection:
        connection.execute(f"create database {name} owner {server.role} template template0 encoding '{encoding}' locale 'C'")
    return server.url(name)


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP", "WIN1252", "KOI8R", "EUC_KR"])
def test_a_database_that_lacks_characters_is_refused_before_anything_is_made(encoding: str, server: Server) -> None:
    url = encoded(server, encoding)
    with pytest.raises(errors.ConfigError, match=f"has the encoding {encoding}, and msgtx needs UTF8: connect to"):
        msgtx.connect(url, create=True)
    with refuses(errors.ConfigError, reason="no schema"):
        msgtx.connect(url)
    with connect(url) as connection:
        assert connection.execute("select to_regnamespace('msgtx')").fetchone() == (None,)
    server.drop_database(url)


def test_a_database_without_an_encoding_stores_every_text(server: Server) -> None:
    url = encoded(server, "SQL_ASCII")
    with msgtx.connect(url, create=True) as client:
        client.topics.create("orders")
        with client.producer() as producer:
            sent = producer.send("orders", "größer →".encode(), headers=[("größe →", b"\xff")], dedup_key="größe →").result()
        with client.consumer("orders", group="größe", auto_offset_reset="earliest") as consumer:
            (record,) = consumer.poll(10)
            consumer.commit(
                {TopicPartition("orders", record.partition): msgtx.OffsetAndMetadata(sent.offset + 1, "größe →")}
            )
            committed = consumer.committed([TopicPartition("orders", 0)])[TopicPartition("orders", 0)]
        assert (record.value, record.headers) == ("größer →".encode(), (("größe →", b"\xff"),))
        assert committed is not None
        assert committed.metadata == "größe →"
        assert [group.group for group in client.admin.groups.list()] == ["größe"]
        with connect(url, client_encoding="utf8") as connection:
            assert connection.execute("select header_keys, key from msgtx.committed_records").fetchall() == [
                (["größe →"], None)
            ]
    server.drop_database(url)
