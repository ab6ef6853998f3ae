"""What the wire counts, where it lies, and what other runs leave."""

import asyncio
import contextlib
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg import generators, waiting
from psycopg.pq import ExecStatus

from msgtx import errors
from msgtx.database import address
from msgtx.database.throwaway import NAMES_PATTERN, NAMES_PREFIX, Throwaway
from msgtx.testing import FaultNotReached, Faults, Postgres, assert_exactly_once, server
from msgtx.testing.protocol import Message, Statements, plain
from msgtx.testing.wire import Wire
from tests.links import Link
from tests.refusals import refuses
from tests.testing import shop


@pytest.fixture
def wire(msgtx_server: Postgres) -> Iterator[Wire]:
    url = msgtx_server.copy()
    made = Wire(url)
    yield made
    made.close()
    msgtx_server.drop(url)


@pytest.mark.parametrize(
    "statement",
    [
        "insert into setting select msgtx.value_json('\"a\"'::bytea)::text",
        "begin; insert into setting values ('a'); commit",
        "insert into setting values ('a'); show search_path",
        "with x as (insert into setting values ('a') returning 1) select msgtx.value_json('1'::bytea) from x",
        "insert into setting values ($$; rollback$$)",
        "insert into setting values (E'\\'; rollback')",
        'create temporary table "; rollback" ()',
        "-- to be sure\nbegin; insert into setting values ('a'); /* of it */ commit; begin /* ; insert */; rollback",
        "select pg_catalog.setval('numbers', 5)",
        'select pg_catalog.version(), "pg_catalog" . "nextval"(\'numbers\')',
        "select current_schema(), number_rows()",
        "select msgtx.value_json('1'::bytea), number_rows()",
        "select msgtx.value_json('1'::bytea) into temporary found",
        "explain analyze insert into setting select msgtx.value_json('\"a\"'::bytea)::text",
        "rollback prepared 'one'",
        "select msgtx.release_partitions('none', 'none', 1, 1, '{}')",
    ],
)
def test_a_statement_that_writes_is_a_boundary(wire: Wire, statement: str) -> None:
    with psycopg.connect(shop.conninfo(wire.url), autocommit=True) as connection:
        connection.execute("listen orders")  # of the program's own
        with contextlib.suppress(psycopg.Error):  # it is counted before it is refused
            connection.execute(statement)
    assert len(wire.calls) == 1, wire.calls


@pytest.mark.parametrize(
    "statement",
    [
        "select msgtx.value_json('1'::bytea)",
        "select f.value from (select pg_catalog.set_config('jit', 'off', true) offset 0) relaxed(mode),"
        " lateral msgtx.value_json('1'::bytea) f(value) where coalesce(mode, 'off') in ('off', 'on')",
        "select pg_catalog.pg_is_in_recovery(), pg_catalog.clock_timestamp()",
        "/* of a driver */ select pg_catalog.version()",
        "begin; show search_path; savepoint one; rollback to one; release one; rollback",
        "prepare setting as insert into setting values ('a')",
    ],
)
def test_a_statement_that_only_reads_is_none(wire: Wire, statement: str) -> None:
    with psycopg.connect(shop.conninfo(wire.url), autocommit=True) as connection:
        connection.execute(statement)
    assert wire.calls == []


def test_the_questions_of_sqlalchemy_are_no_boundaries(wire: Wire) -> None:
    engine = sqlalchemy.create_engine(address.sqlalchemy_url(address.parse(wire.url))[0], poolclass=sqlalchemy.NullPool)
    assert {"setting", "revenue"} <= {*sqlalchemy.inspect(engine).get_table_names()}
    assert wire.calls == []


def test_a_statement_is_known_without_comments_and_values() -> None:
    text = "-- of\nupdate /* \"a\" */ \"a;b\" set x = E'it\\'s', y = $x$; 'z'$x$, z = 5 where k = $1 and n = 'a''b';"
    assert plain(text) == 'update "a…b" set x = …, y = …, z = … where k = $1 and n = …'


def test_a_portal_is_a_boundary_when_it_is_executed(wire: Wire) -> None:
    """asyncpg's cursors are bound in one call, and executed in later ones."""

    async def run() -> None:
        connection = await asyncpg.connect(wire.url.partition("?")[0])
        async with connection.transaction():
            cursor = await connection.cursor("insert into setting values ('a'), ('b') returning 1")
            assert wire.calls == []
            assert len(await cursor.fetch(2)) == 2
            assert [each.name for each in wire.calls] == ["insert into setting"]
        await connection.close()

    asyncio.run(run())


def test_a_call_of_a_function_by_its_number_is_a_boundary(wire: Wire) -> None:
    """As libpq calls those of large objects."""
    parsed = Statements()
    parsed.note(Message(b"F", b"F" + struct.pack("!ii", 8, 957)))
    assert parsed.take(wire.reading) == ("call function_957", True)


def copy_by_psycopg(url: str) -> None:
    with (
        psycopg.connect(shop.conninfo(url), autocommit=True) as connection,
        connection.cursor().copy("copy setting from stdin") as copy,
    ):
        copy.write_row(["a"])


def copy_by_asyncpg(url: str) -> None:
    async def copy() -> None:
        connection = await asyncpg.connect(url.partition("?")[0])
        try:
            await connection.copy_records_to_table("setting", records=[("a",)])
        finally:
            connection.terminate()

    asyncio.run(copy())


def copy_by_the_extended_protocol(url: str) -> None:
    """The server passes over the Sync before the rows: libpq sends another one behind them."""
    with psycopg.connect(shop.conninfo(url), autocommit=True) as connection:
        server = connection.pgconn
        server.exec_prepared(b"", [])  # refused: there is none
        copies = server.exec_params(b"copy setting from stdin", None)
        assert copies.status == ExecStatus.COPY_IN
        server.put_copy_data(b"a\n")
        server.put_copy_end()
        for result in waiting.wait(
            generators.fetch_many(server), server.socket, interval=1.0
        ):  # the wire's thread runs meanwhile
            if result.status != ExecStatus.COMMAND_OK:
                raise psycopg.OperationalError(result.error_message.decode())
        connection.execute("insert into setting values ('b')")


COPIES: Final = (copy_by_psycopg, copy_by_asyncpg, copy_by_the_extended_protocol)


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_is_one_boundary(wire: Wire, copy: Callable[[str], None]) -> None:
    copy(wire.url)
    names = [each.name.casefold().replace('"', "") for each in wire.calls]
    assert [name.partition(" from")[0] for name in names] in (
        ["copy setting"],
        ["copy setting", "insert into setting"],
    )


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_whose_answer_is_lost_is_done(msgtx_database: str, msgtx_faults: Faults, copy: Callable[[str], None]) -> None:
    lost = msgtx_faults.lost_answer("copy")
    with pytest.raises((psycopg.OperationalError, ConnectionError, asyncpg.PostgresConnectionError)):
        copy(msgtx_database)
    assert lost.fired.is_set()
    with psycopg.connect(shop.conninfo(msgtx_database)) as connection:
        assert connection.execute("select name from setting").fetchall() == [("a",)]


def test_what_follows_a_copy_is_lost_by_itself(msgtx_database: str, msgtx_faults: Faults) -> None:
    lost = msgtx_faults.lost_answer("insert into setting")
    with pytest.raises(psycopg.OperationalError):
        copy_by_the_extended_protocol(msgtx_database)
    assert lost.fired.is_set()
    with psycopg.connect(shop.conninfo(msgtx_database)) as connection:
        assert connection.execute("select name from setting order by name").fetchall() == [("a",), ("b",)]


def test_a_name_is_whole_words(msgtx_database: str, msgtx_faults: Faults) -> None:
    with (
        refuses(FaultNotReached, call="com"),
        msgtx_faults.lost_call("com"),
        psycopg.connect(shop.conninfo(msgtx_database)) as it,
    ):
        it.execute("insert into setting values ('a')")
        it.commit()


def test_a_check_that_returns_false_fails(msgtx_faults: Faults) -> None:
    def insert() -> None:
        with psycopg.connect(shop.conninfo(os.environ["MSGTX_DATABASE_URL"])) as connection:
            connection.execute("insert into setting values ('a')")

    with pytest.raises(AssertionError, match="returned False"):
        msgtx_faults.every_boundary(insert, lambda: False)


def test_nothing_is_no_proof() -> None:
    with pytest.raises(AssertionError, match="no inputs"):
        assert_exactly_once([], [], by=str)


def test_a_server_behind_a_unix_socket_has_its_wire_behind_one(msgtx_database: str) -> None:
    """In a folder of ours alone: the server may know us by our account."""
    link = Link(msgtx_database)
    wire = Wire(link.url)
    folder = Path(address.parse(wire.url)["host"])
    assert folder.is_absolute()
    assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, os.geteuid())
    with psycopg.connect(shop.conninfo(wire.url), autocommit=True) as connection:
        connection.execute("insert into setting values ('a')")
    assert [each.place for each in wire.calls] == ["insert into setting #1"]
    wire.close()
    assert not folder.exists()
    link.close()


def test_an_address_may_be_in_the_environment(msgtx_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = address.parse(msgtx_database)
    for name in ("host", "port", "user", "password"):
        monkeypatch.setenv(f"PG{name.upper()}", given[name])
    wire = Wire(f"postgresql:///{given['dbname']}")
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD"):
        monkeypatch.delenv(name)
    with psycopg.connect(shop.conninfo(wire.url), autocommit=True) as connection:  # its address is whole
        connection.execute("insert into setting values ('a')")
    assert len(wire.calls) == 1
    wire.close()


def test_an_address_that_requires_tls_is_refused(msgtx_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    with refuses(errors.ConfigError, name="url"):
        Wire(msgtx_database)
    wire = Wire(address.whole_url({**address.parse(msgtx_database), "sslmode": "prefer"}))  # which counts more
    wire.close()


def test_a_server_that_is_away_is_told_without_its_password() -> None:
    with refuses(errors.DatabaseUnavailable) as refused:
        Throwaway("postgresql://ada:secret-of-ada@127.0.0.1:1/postgres")
    assert "secret-of-ada" not in str(refused.value)


# ── what others leave ──


def test_only_what_the_kit_has_named_is_removed(msgtx_server: Postgres) -> None:
    of_users = ["msgtx_test_202611301200", "msgtx_test_20261130120000_shop", "msgtx_test_0123456789ab_shop"]
    ours = [f"{NAMES_PREFIX}0123456789ab_{rest}" for rest in ("1", "template", "role_2")]
    with psycopg.connect(address.conninfo(address.parse(msgtx_server.url))) as connection:
        rows = connection.execute(
            "select name from unnest(%s::text[]) name where name ~ %s", [of_users + ours, NAMES_PATTERN]
        )
        assert [name for (name,) in rows] == ours


def test_a_folder_is_removed_when_its_run_is_gone_and_it_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {name: tmp_path / f"{server.FOLDERS_PREFIX}{name}" for name in ("gone", "young", "old", "lives", "held")}
    for folder in folders.values():
        folder.mkdir()
    for name in ("gone", "held"):
        (folders[name] / server.HELD_FILE).touch()
    os.utime(folders["old"], (0, 0))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"{server.FOLDERS_PREFIX}link").symlink_to(elsewhere)
    held = server._hold(folders["lives"])
    path = str(folders["held"] / server.HELD_FILE)
    program = f"import fcntl; file = open({path!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX); print(); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        server._remove_deserted(tmp_path)
        assert {name for name, folder in folders.items() if folder.exists()} == {"young", "lives", "held"}
        other.communicate(b"\n")
    held.close()
    server._remove_deserted(tmp_path)
    assert {name for name, folder in folders.items() if folder.exists()} == {"young"}
    assert elsewhere.exists()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    os.utime(folders["young"], (0, 0))
    server._remove_deserted(tmp_path)
    assert folders["young"].exists()
