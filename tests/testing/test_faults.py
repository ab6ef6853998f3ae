"""Single faults: what a worker does then, and what the next one finds."""

import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote

import psycopg
import pytest
import sqlalchemy
from psycopg import sql

import msgtx
from msgtx import errors
from msgtx.client import Client, connect
from msgtx.database import embedded
from msgtx.database.embedded import binaries, postmaster
from msgtx.database.embedded.follower import Follower
from msgtx.testing import Clock, FaultNotReached, Faults, Postgres, run_worker, server
from msgtx.testing.server import embedded_server
from tests.databases import wait_until
from tests.refusals import refuses
from tests.testing import shop


def test_a_worker_is_killed_between_rows_and_offsets(msgtx_client: Client, msgtx_faults: Faults, msgtx_clock: Clock):
    shop.order(msgtx_client, 2)
    msgtx_faults.killed(shop.worker, between="rows and offsets")
    assert shop.execute(msgtx_client, "select from revenue") == []
    msgtx_clock.move("10m")
    shop.worker(msgtx_client)
    shop.check(msgtx_client)


@pytest.mark.slow
def test_a_wrong_worker_is_killed_between_rows_and_offsets(msgtx_client: Client, msgtx_faults: Faults, msgtx_clock: Clock):
    shop.order(msgtx_client, 2)
    msgtx_faults.killed(shop.rows_first, between="rows and offsets")
    msgtx_clock.move("10m")
    shop.rows_first(msgtx_client)
    with pytest.raises(AssertionError, match="of 2 inputs, 1 more than once"):
        shop.check(msgtx_client)


@pytest.mark.slow
@pytest.mark.parametrize("at", [{"before": "COMMIT"}, {"after": "insert into revenue"}, {"after": "commit"}])
def test_a_worker_is_killed_at_a_call(msgtx_client: Client, msgtx_faults: Faults, msgtx_clock: Clock, at: dict[str, Any]):
    shop.order(msgtx_client, 2)
    msgtx_faults.killed(shop.worker, **at)
    msgtx_clock.move("10m")
    shop.worker(msgtx_client)
    shop.check(msgtx_client)


INSERT: Final = "insert into setting"


def test_a_job_that_ends_before_its_fault_is_told(msgtx_client: Client, msgtx_faults: Faults):
    def insert(client: Client) -> None:
        shop.execute(client, "insert into setting values ('one') on conflict do nothing")

    shop.execute(msgtx_client, "create table before_the_job ()")
    with refuses(FaultNotReached, call="decide", calls=(INSERT, "COMMIT")) as refused:
        msgtx_faults.killed(insert, before="decide")
    assert "the job ended, and was not broken at 'decide'; the calls that came: `insert into setting" in str(refused.value)
    with refuses(FaultNotReached, call="rows and offsets"):
        msgtx_faults.killed(insert, between="rows and offsets")
    with refuses(FaultNotReached, call="decide"), msgtx_faults.zombie(insert, before="decide"):
        pass
    assert msgtx_faults.wire._plans == []  # for a later call
    with refuses(errors.ConfigError, name="between"):
        msgtx_faults.killed(insert)


def test_a_loss_that_does_not_come_in_its_block_is_told(msgtx_client: Client, msgtx_faults: Faults):
    made = (INSERT, "COMMIT")
    with refuses(FaultNotReached, call="decde", calls=made), msgtx_faults.lost_answer("decde"):
        shop.execute(msgtx_client, "insert into setting values ('one')")
    with pytest.raises(sqlalchemy.exc.OperationalError), msgtx_faults.lost_call("insert into setting") as lost:
        shop.execute(msgtx_client, "insert into setting values ('two')")
    assert lost.fired.is_set()
    msgtx_faults.require_reached()
    assert msgtx_faults.wire._plans == []


def test_what_a_block_raises_comes_before_a_loss_that_did_not(msgtx_client: Client, msgtx_faults: Faults):
    with pytest.raises(ValueError, match="of its own"), msgtx_faults.lost_call("decide"):
        raise ValueError("of its own")
    with refuses(FaultNotReached, call="decide", calls=()):  # the test has caught another error
        msgtx_faults.require_reached()


@pytest.mark.slow
def test_a_zombie_is_refused(msgtx_client: Client, msgtx_faults: Faults, msgtx_clock: Clock):
    shop.order(msgtx_client, 2)
    with msgtx_faults.zombie(shop.worker, before="commit_in_session"):
        msgtx_clock.move("10m")
        shop.worker(msgtx_client)
    shop.check(msgtx_client)


@pytest.mark.slow
def test_a_worker_goes_on_after_an_outage(msgtx_client: Client, msgtx_faults: Faults):
    shop.order(msgtx_client, 5)
    msgtx_faults.outage("0.3s")
    shop.worker(msgtx_client)
    shop.check(msgtx_client)


def test_of_two_outages_the_later_end_counts(msgtx_server: Postgres):
    faults = Faults(msgtx_server, msgtx_server.copy())

    def is_away() -> bool:
        try:
            psycopg.connect(shop.conninfo(faults.url)).close()
        except psycopg.OperationalError:
            return True
        return False

    faults.outage("1h")
    faults.outage("0.01s")
    wait_until(lambda: faults.wire._away == 1)
    assert is_away()
    faults.wire.come_back()
    assert not is_away()
    faults.close()
    wait_until(lambda: not any(isinstance(each, threading.Timer) for each in threading.enumerate()))
    msgtx_server.drop(faults._direct)


@pytest.mark.parametrize("step", ["catch_up", "promote", "lead_to"])
def test_a_failover_that_fails_leaves_the_wire_as_it_was(
    msgtx_faults: Faults, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    def fail(*_: object) -> None:
        raise errors.DatabaseUnavailable("planted")

    standby = {each: fail if each == step else lambda: None for each in ("catch_up", "promote", "remove")}
    monkeypatch.setattr("msgtx.testing.faults.Follower", lambda *_: SimpleNamespace(port=1, **standby))
    monkeypatch.setattr(msgtx_faults, "_home", tmp_path)
    monkeypatch.setattr(msgtx_faults.wire, "lead_to", fail)
    with pytest.raises(errors.DatabaseUnavailable, match="planted"):
        msgtx_faults.failover()
    psycopg.connect(shop.conninfo(msgtx_faults.url)).close()


# ── a server of its own ──


@pytest.mark.parametrize("step", ["_guard", "embedded.start", "embedded.stop", "shutil.rmtree"])
def test_a_server_that_fails_holds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str) -> None:
    """Neither its folder, unless it cannot be removed, nor the lock in it, nor the process that guards it."""
    guards: list[subprocess.Popen[bytes]] = []
    guard = server._guard

    def fail(*_: object) -> None:
        raise errors.DatabaseUnavailable("planted")

    def guarded(folder: Path) -> "subprocess.Popen[bytes]":
        guards.append(guard(folder))
        return guards[-1]

    monkeypatch.setattr(server, "IN_MEMORY", tmp_path / "none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(server, "_guard", guarded)
    monkeypatch.setattr("msgtx.database.embedded.start", fail)
    with monkeypatch.context() as patched:
        patched.setattr(f"msgtx.testing.server.{step}", fail)
        with pytest.raises(errors.DatabaseUnavailable, match="planted"), embedded_server():
            pass
    left = [*tmp_path.iterdir()]
    assert len(left) == (step == "shutil.rmtree")
    assert all(server._is_deserted(each) for each in left)
    assert [each.returncode for each in guards] == [0] * (step != "_guard")


@pytest.fixture(scope="module")
def own_server() -> Iterator[Postgres]:
    with embedded_server() as made:
        with made.making_template() as url, connect(url, create=True) as client:
            shop.open_shop(client)
        yield made


@pytest.fixture
def own_faults(own_server: Postgres) -> Iterator[Faults]:
    faults = Faults(own_server, own_server.copy())
    yield faults
    faults.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["crash_server", "failover"])
def test_a_worker_goes_on_after_the_loss_of_its_server(own_faults: Faults, fault: str):
    with connect(own_faults.url) as client:
        shop.order(client, 3)
        faulty: list[Callable[[], object]] = [getattr(own_faults, fault)]

        def book(session: Any, record: msgtx.Record) -> None:
            shop.book(session, record)
            if faulty:
                faulty.pop()()

        run_worker(client, book, "orders", group="revenue", timeout="60s")
        shop.check(client)


@pytest.mark.slow
def test_servers_fail_over_again_and_again(own_faults: Faults):
    with connect(own_faults.url) as client:
        for name in ("one", "two", "three"):
            shop.execute(client, f"insert into setting values ('{name}')")
            own_faults.failover(losing=lambda: shop.execute(client, "insert into setting values ('lost')"))
        replaced = postmaster.read_pid_file(own_faults._home / "data") if own_faults._home is not None else None
        own_faults.crash_server()  # the one that took over last
        assert own_faults._home is not None
        assert postmaster.read_pid_file(own_faults._home / "data") != replaced
        assert {name for (name,) in shop.execute(client, "select name from setting")} == {"one", "two", "three"}


@pytest.mark.slow
def test_a_password_reaches_a_standby_and_no_command_line(own_server: Postgres, monkeypatch: pytest.MonkeyPatch):
    home, password = own_server.home, 'it\'s a \\ "p@ss/word" #1'
    assert home is not None
    ran: list[tuple[tuple[object, ...], dict[str, Any]]] = []

    def run(self: binaries.Account, *command: str | Path, **rest: Any) -> "subprocess.CompletedProcess[str]":
        ran.append((command, rest))
        return by_the_account(self, *command, **rest)

    by_the_account = binaries.Account.run
    monkeypatch.setattr(binaries.Account, "run", run)
    file = home / "superuser-password"
    before = file.read_text()
    set_password = sql.SQL("alter role postgres password {}")
    with psycopg.connect(embedded.superuser_url(home), autocommit=True) as superuser:
        superuser.execute(set_password.format(password))
        file.write_text(quote(password, safe="") + "\n")
        try:
            standby = Follower(home, home.parent / "standby-password")
            standby.catch_up()
            standby.remove()
        finally:
            superuser.execute(set_password.format(before.strip()))
            file.write_text(before)
    [(command, rest)] = [each for each in ran if "pg_basebackup" in str(each[0][0])]
    assert rest["PGPASSWORD"] == password
    assert not any(password in str(each) for each in command)


@pytest.mark.slow
def test_a_server_crashes_while_a_zombie_stands_still(own_faults: Faults):
    with connect(own_faults.url) as client:
        shop.order(client, 2)
        with own_faults.zombie(shop.worker, before="commit_in_session"):
            own_faults.crash_server()
            Clock(own_faults._direct).move("10m")
            shop.worker(client)
        shop.check(client)


@pytest.mark.slow
def test_what_a_standby_has_not_got_is_lost(own_faults: Faults):
    with connect(own_faults.url) as client:
        shop.execute(client, "insert into setting values ('kept')")
        own_faults.failover(losing=lambda: shop.execute(client, "insert into setting values ('lost')"))
        assert shop.execute(client, "select name from setting") == [("kept",)]


def test_a_given_server_is_neither_crashed_nor_replaced(msgtx_faults: Faults):
    with refuses(errors.ConfigError, name="url"):
        msgtx_faults.crash_server()
    with refuses(errors.ConfigError, name="url"):
        msgtx_faults.failover()
