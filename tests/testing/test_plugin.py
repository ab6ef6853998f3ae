"""The plugin's fixtures and options, as users have them."""

import asyncio
import os
import runpy
import signal
from pathlib import Path
from typing import Final

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import aio, errors
from msgtx.database import address
from msgtx.database.embedded import postmaster
from msgtx.database.throwaway import NAMES_PREFIX, Throwaway
from msgtx.testing import Clock, Postgres, Roles, committed, pending, plugin
from tests.databases import Server, connect, wait_until
from tests.refusals import refuses
from tests.testing.runs import begun_pytest, run_pytest


def test_clients_and_connections_lead_to_one_database(
    msgtx_client: msgtx.Client,
    msgtx_async_client: aio.Client,
    msgtx_sessions: sessionmaker[Session],
    msgtx_connection: "psycopg.Connection[object]",
) -> None:
    msgtx_connection.execute("create table shop_order (id int)")
    msgtx_connection.commit()
    with msgtx_sessions() as session:
        session.execute(text("insert into shop_order values (1)"))
        msgtx.publish(session, "orders", b"by a session")
        session.commit()

    async def send() -> int:
        async with msgtx_async_client.producer() as producer:
            await producer.send("orders", b"by asyncio")
        return len(await msgtx_async_client.run(committed, msgtx_async_client.sync, "orders"))

    assert asyncio.run(send()) == 2
    assert {record.value for record in committed(msgtx_client, "orders")} == {b"by a session", b"by asyncio"}
    with msgtx.connect() as by_the_environment:
        assert len(committed(by_the_environment, "orders")) == 2


def test_what_is_pending_is_seen_below_an_outer_transaction(msgtx_engine: sqlalchemy.Engine) -> None:
    with msgtx_engine.connect() as connection, connection.begin() as outer:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            msgtx.publish(session, "orders", b"1")
            session.commit()
            assert [record.value for record in pending(session)] == [b"1"]
        outer.rollback()


def test_a_role_has_just_the_rights_that_were_named(msgtx_role: Roles, msgtx_client: msgtx.Client) -> None:
    msgtx_client.topics.create("secret")
    with msgtx.connect(msgtx_role(can=("produce", "orders"))) as shop, shop.producer() as producer:
        producer.send("orders", b"1").result(30)
        with refuses(errors.UnknownTopicOrPartition):
            producer.send("secret", b"1")
    several = msgtx_role(can=[("consume", "orders"), "observe"], groups="mail")
    with msgtx.connect(several) as mailer:
        assert len(committed(mailer, "orders")) == 1
        with refuses(errors.AuthorizationFailed), mailer.consumer("orders", group="other") as consumer:
            consumer.poll("1s")
    with refuses(errors.ConfigError, name="can"):
        msgtx_role(can=("read", "orders"))


def test_the_clock_is_moved(msgtx_clock: Clock, msgtx_database: str) -> None:
    ahead = "select msgtx.clock() - clock_timestamp() > interval '59 minutes'"
    with connect(msgtx_database) as connection:
        msgtx_clock.move("1h")
        assert connection.execute(ahead).fetchone() == (True,)
        msgtx_clock.reset()
        assert connection.execute(ahead).fetchone() == (False,)


# ── the server ──


def test_a_role_that_may_create_nothing_is_refused(server: Server) -> None:
    with refuses(errors.ConfigError, name="url"):
        Throwaway(server.url("postgres"))


def test_what_a_killed_run_has_left_goes_with_the_next_one(server: Server, msgtx_server: Postgres) -> None:
    """But not what a run has that lives."""
    killed = Postgres(server.superuser_url)
    with killed.making_template() as url:
        role, _ = killed.create_role(url)
    living = msgtx_server.copy()
    killed.leave()
    left = (
        f"select datname from pg_database where datname like '{killed.prefix}%'"
        f" union select rolname from pg_roles where rolname = '{role}'"
    )
    with server.administrator() as administrator:
        name = killed.prefix
        wait_until(
            lambda: not administrator.execute("select from pg_stat_activity where application_name = %s", [name]).fetchall()
        )
        assert len(administrator.execute(left).fetchall()) == 2
        Postgres(server.superuser_url).close()
        assert administrator.execute(left).fetchall() == []
    with connect(living) as connection:
        assert connection.execute("select count(*) > 0 from msgtx.topics").fetchone() == (True,)
    msgtx_server.drop(living)


def test_what_cannot_be_removed_is_named(server: Server) -> None:
    made = Postgres(server.superuser_url)
    with made.making_template() as url:
        msgtx.connect(url, create=True).close()
    made.drop(made.copy())
    kept = made.copy()
    role, _ = made.create_role(kept)
    database = address.parse(kept)["dbname"]
    with server.administrator() as administrator:
        administrator.execute(f"alter database {database} is_template true")
        administrator.execute(f"grant create on database {database} to {role}")
        with pytest.warns(UserWarning, match="stay on the server") as warned:
            made.close()
        assert f"database {database} (cannot drop a template database), role {role} (role" in str(warned[0].message)
        assert str(warned[0].message).count("(") == 2  # and nothing else
        administrator.execute(f"alter database {database} is_template false")
        administrator.execute(f"drop database {database}")
        administrator.execute(f"drop role {role}")


def test_the_maker_of_roles_may_act_as_one_of_them(server: Server) -> None:
    """Also on PostgreSQL 16 and later, where who makes a role may only grant it."""
    maker = f"msgtx_maker_{os.getpid()}"
    with server.administrator() as administrator:
        administrator.execute(f"create role {maker} login createdb createrole password 'of-maker'")
        made = Postgres(address.whole_url({**address.parse(server.superuser_url), "user": maker, "password": "of-maker"}))
        with made.making_template() as url, msgtx.connect(url, create=True) as client:
            client.topics.create("orders")
        own = made.copy()
        roles = Roles(made, own, own)
        with msgtx.connect(roles(can=("produce", "orders"))) as shop, shop.producer() as producer:
            producer.send("orders", b"1").result(30)
        name = address.parse(roles(can=("consume", "orders")))["user"]
        with connect(own) as connection:
            connection.execute(f"set role {name}")
            assert connection.execute("select current_user").fetchone() == (name,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("select from msgtx.topic")
        made.drop(own)
        made.close()
        assert administrator.execute("select from pg_roles where starts_with(rolname, %s)", [made.prefix]).fetchall() == []
        administrator.execute(f"drop role {maker}")


@pytest.mark.parametrize(
    "parameters",
    [
        {"host": "/run/postgresql", "port": "5433", "user": "a b", "password": "p@ss/w:rd"},
        {"host": "one,other", "port": "5432,5433", "sslmode": "require"},
        {"host": "::1", "user": "ada"},
        {},
    ],
)
def test_an_address_is_one_for_libpq_and_for_sqlalchemy(parameters: dict[str, str]) -> None:
    url = address.whole_url({**parameters, "dbname": f"{NAMES_PREFIX}1"})
    assert address.parse(url) == {**parameters, "dbname": f"{NAMES_PREFIX}1"}
    assert sqlalchemy.make_url(url).database == f"{NAMES_PREFIX}1"


# ── runs of their own: a start of pytest, and of Python, each ──


@pytest.mark.slow
def test_an_error_of_the_preparation_is_shown_without_the_kit(server: Server, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n"
        '@pytest.fixture(scope="session")\n'
        "def msgtx_prepare():\n    return lambda client: client.topics.create('no such name!')\n\n"
        "def test_it(msgtx_client):\n    pass\n"
    )
    told = run_pytest(tmp_path, f"--msgtx-url={server.superuser_url}")
    assert "return lambda client: client.topics.create('no such name!')" in told
    assert "plugin.py" not in told


@pytest.mark.slow
def test_a_run_has_the_server_that_it_was_given(server: Server, tmp_path: Path) -> None:
    """By an option, by the environment, or by the configuration file; in a folder with a space."""
    folder = tmp_path / "my tests"
    folder.mkdir()
    (folder / "test_it.py").write_text("def test_it(msgtx_client):\n    assert msgtx_client.topics.list() == []\n")
    assert "1 passed" in run_pytest(folder, MSGTX_TEST_DATABASE_URL=server.superuser_url)
    (folder / "pytest.ini").write_text(f"[pytest]\nmsgtx_url = {server.superuser_url}\n")
    assert "1 passed" in run_pytest(folder)
    told = run_pytest(folder, f"--msgtx-url={server.url('postgres')}")
    assert f"role '{server.role}' may create no databases" in told
    assert "Traceback" not in told
    assert "plugin.py" not in told


@pytest.mark.slow
def test_without_the_plugin_nothing_is_there(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(request):\n    assert 'msgtx_client' not in request.fixturenames\n")
    assert "1 passed" in run_pytest(tmp_path, "-p", "no:msgtx")
    assert "unrecognized arguments: --msgtx-url" in run_pytest(tmp_path, "-p", "no:msgtx", "--msgtx-url=x")


def test_the_plugin_is_for_old_versions_of_pytest_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have no `pytest.TerminalReporter`: its import would end every run."""
    monkeypatch.delattr(pytest, "TerminalReporter")
    assert "pytest_terminal_summary" in runpy.run_path(str(plugin.__file__))


@pytest.mark.slow
def test_help_and_fixtures_say_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    assert "--msgtx-url=URL" in run_pytest(tmp_path, "--help")
    told = run_pytest(tmp_path, "--fixtures")
    for name in (
        "client",
        "async_client",
        "engine",
        "sessions",
        "connection",
        "django",
        "role",
        "clock",
        "faults",
        "prepare",
    ):
        assert f"msgtx_{name}" in told


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "options"),
    [(signal.SIGTERM, ()), (signal.SIGTERM, ("-n", "1")), (signal.SIGKILL, ()), (signal.SIGINT, ())],
)
def test_the_server_of_a_run_ends_with_it(tmp_path: Path, number: signal.Signals, options: tuple[str, ...]) -> None:
    told = tmp_path / "told"
    (tmp_path / "test_it.py").write_text(
        "import threading\n\n"
        "def test_it(msgtx_server, msgtx_client):\n"
        f"    with open('{told}.new', 'w') as file:\n        file.write(str(msgtx_server.home))\n"
        f"    __import__('os').rename('{told}.new', '{told}')\n"
        "    threading.Event().wait(300)\n"
    )
    with begun_pytest(tmp_path, *options) as run:
        wait_until(told.exists, seconds=120)
        home = Path(told.read_text())
        running = postmaster.read_pid_file(home / "data")
        assert running is not None
        run.send_signal(number)
        wait_until(lambda: not home.parent.exists(), seconds=120)
    assert not postmaster.runs(home / "data", running.pid)


@pytest.mark.long
def test_a_child_of_a_test_does_not_hold_the_end_of_the_run(tmp_path: Path) -> None:
    """It has the pipe to the process that guards the server."""
    (tmp_path / "test_it.py").write_text(
        "import os\nimport threading\n\n"
        "def test_it(msgtx_server):\n"
        "    if os.fork() == 0:\n        threading.Event().wait(300)\n        os._exit(0)\n"
    )
    with begun_pytest(tmp_path) as run:
        assert run.wait(120) == 0


@pytest.mark.slow
def test_processes_of_one_run_have_databases_of_their_own(server: Server, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.parametrize('number', range(6))\n"
        "def test_it(msgtx_client, number):\n"
        "    msgtx_client.topics.create('orders')\n"
        "    assert list(msgtx_client.topics.list()) == ['orders']\n"
    )
    assert "6 passed" in run_pytest(tmp_path, "-n", "3", f"--msgtx-url={server.superuser_url}")


DJANGO: Final = """
import django
import pytest
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "msgtx.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "of production"}},
)
django.setup()


@pytest.fixture(scope="session")
def msgtx_prepare():
    from django.core.management import call_command

    def prepare(client):
        client.topics.create("orders")
        call_command("migrate", verbosity=0)
    return prepare
"""


@pytest.mark.slow
def test_django_uses_the_database_of_the_test(server: Server, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(DJANGO)
    (tmp_path / "test_it.py").write_text("""
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction
from msgtx.django import publish
from msgtx.testing import committed, run_worker
import pytest


@pytest.mark.parametrize("number", range(2))
def test_it(msgtx_django, msgtx_client, number):
    with transaction.atomic():
        ContentType.objects.create(app_label="shop", model="order")
        publish("orders", b"1")
    assert len(committed(msgtx_client, "orders")) == 1
    assert ContentType.objects.filter(app_label="shop").count() == 1


def test_the_settings_are_back():
    assert connection.settings_dict["NAME"] == "of production"
""")
    assert "3 passed" in run_pytest(tmp_path, f"--msgtx-url={server.superuser_url}")


@pytest.mark.slow
def test_jobs_of_django_use_the_copies(server: Server, tmp_path: Path) -> None:
    """And leave the connection of the test, of which a fork has the socket."""
    given = address.parse(server.superuser_url)
    as_given = {name.upper(): given[name] for name in ("user", "password", "host", "port")}
    (tmp_path / "conftest.py").write_text(DJANGO)
    (tmp_path / "test_it.py").write_text(
        """
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction

from msgtx.django import publish
from msgtx.testing import committed


def book():
    with transaction.atomic():
        _, is_new = ContentType.objects.get_or_create(app_label="shop", model="order")
        if is_new:
            publish("orders", b"1")


def check(client):
    assert ContentType.objects.filter(app_label="shop").count() == len(committed(client, "orders")) == 1


def backend():
    with connection.cursor() as cursor:
        return cursor.execute("select pg_backend_pid()").fetchone()


def test_it(msgtx_django, msgtx_faults):
    before = backend()
    msgtx_faults.killed(book, before="commit")
    assert backend() == before
    for kind in ("lost answer", "killed"):
        assert msgtx_faults.every_boundary(book, check, kinds=[kind]) >= 2
    assert not ContentType.objects.filter(app_label="shop").exists()


def test_without_the_fixture_a_connection_stays(msgtx_faults):
    connection.settings_dict.update({**AS_THE_SERVER, "NAME": "postgres"})
    with transaction.atomic():
        before = backend()
        assert msgtx_faults.every_boundary(lambda client: client.topics.create("more", if_not_exists=True), lambda: None) > 0
        assert backend() == before
    connection.close()
""".replace("AS_THE_SERVER", repr(as_given))
    )
    assert "2 passed" in (told := run_pytest(tmp_path, f"--msgtx-url={server.superuser_url}")), told
