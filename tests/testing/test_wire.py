"""What the wire counts, where it lies, and what other runs leave."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from msgtx import errors
from msgtx.database import address
from msgtx.database.throwaway import NAMES_PATTERN, NAMES_PREFIX, Throwaway
from msgtx.testing import Faults, Postgres, assert_exactly_once, server
from msgtx.testing.wire import Wire
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
        "with x as (insert into setting values ('a') returning 1) select msgtx.value_json('1'::bytea) from x",
    ],
)
def test_a_statement_that_writes_is_a_boundary(wire: Wire, statement: str) -> None:
    with psycopg.connect(shop.conninfo(wire.url), autocommit=True) as connection:
        connection.execute("listen orders")  # of the program's own
        connection.execute(statement)
        connection.execute("select msgtx.value_json('1'::bytea)")
    assert len(wire.calls) == 1, wire.calls


def test_a_copy_whose_answer_is_lost_is_done(msgtx_database: str, msgtx_faults: Faults) -> None:
    with psycopg.connect(shop.conninfo(msgtx_database), autocommit=True) as connection:
        lost = msgtx_faults.lost_answer("copy setting")
        with pytest.raises(psycopg.OperationalError), connection.cursor().copy("copy setting from stdin") as copy:
            copy.write_row(["a"])
    assert lost.fired.is_set()
    with psycopg.connect(shop.conninfo(msgtx_database)) as connection:
        assert connection.execute("select from setting").fetchall() == [()]


def test_a_name_is_whole_words(msgtx_database: str, msgtx_faults: Faults) -> None:
    with psycopg.connect(shop.conninfo(msgtx_database)) as connection:
        lost = msgtx_faults.lost_call("com")
        connection.execute("insert into setting values ('a')")
        connection.commit()
    assert not lost.fired.is_set()


def test_a_check_that_returns_false_fails(msgtx_faults: Faults) -> None:
    def insert() -> None:
        with psycopg.connect(shop.conninfo(os.environ["MSGTX_DATABASE_URL"])) as connection:
            connection.execute("insert into setting values ('a')")

    with pytest.raises(AssertionError, match="returned False"):
        msgtx_faults.every_boundary(insert, lambda: False)


def test_nothing_is_no_proof() -> None:
    with pytest.raises(AssertionError, match="no inputs"):
        assert_exactly_once([], [], by=str)


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
