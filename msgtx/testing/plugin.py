"""A pytest plugin: a real PostgreSQL with a database for each test, clients, connections, roles, a clock, and faults."""

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    from django.db.backends.base.base import BaseDatabaseWrapper
    from sqlalchemy.orm import Session, sessionmaker

    from msgtx import aio
    from msgtx.client import Client
    from msgtx.testing import Clock, Faults, Postgres, Roles
    from msgtx.testing.boundaries import Say

SERVER_VARIABLE: Final = "MSGTX_TEST_DATABASE_URL"
FAULTS: Final = pytest.StashKey["Faults"]()  # of a test
NOT_REACHED: Final = "msgtx_not_reached"  # the property of a test, also in a report as JUnit's: a boundary as text


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--msgtx-url`, which may also stand in the configuration file or in the environment."""
    parser.getgroup("msgtx", "databases for tests of programs that use msgtx").addoption(
        "--msgtx-url",
        metavar="URL",
        help="A PostgreSQL server for the tests, as a role that may create databases. Default: the environment variable"
        f" {SERVER_VARIABLE}, the setting msgtx_url of the configuration file, else a server is started for the run.",
    )
    parser.addini("msgtx_url", "the default of --msgtx-url", default="")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test whose lost calls did not come, unless it has failed by itself."""
    __tracebackhide__ = True  # the error is the user's
    result = yield
    if FAULTS in item.stash:
        item.stash[FAULTS].require_reached()
    return result


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """List the boundaries to which no run came, if there are any."""
    missed: dict[str, dict[str, None]] = {}
    for report in (each for several in terminalreporter.stats.values() for each in several):
        for name, place in getattr(report, "user_properties", ()):
            if name == NOT_REACHED:
                missed.setdefault(report.nodeid, {})[str(place)] = None
    if missed:
        terminalreporter.section("boundaries that no run came to")
    for test, places in missed.items():
        terminalreporter.write_line(f"{test}: {len(places)}")
        for place in places:
            terminalreporter.write_line(f"    {place}")


@pytest.fixture(scope="session")
def msgtx_prepare() -> "Callable[[Client], object] | None":
    """Override this: return a function of a client that creates topics and tables. It is called once.

    It fills the database that each test gets a copy of. `MSGTX_DATABASE_URL` names that database meanwhile, so Alembic can
    create the tables; with Django, `call_command("migrate")` can.
    """
    return None


@pytest.fixture(scope="session")
def msgtx_server(request: pytest.FixtureRequest, msgtx_prepare: "Callable[[Client], object] | None") -> "Iterator[Postgres]":
    """Provide the PostgreSQL server of this run. Each process of pytest-xdist has its own, or its own databases.

    `copy()` returns the URL of another database, `drop(url)` removes it, `url` is an administrator's.
    """
    __tracebackhide__ = True  # an error of `msgtx_prepare` is the user's
    from msgtx.client import connect
    from msgtx.errors import MsgtxError
    from msgtx.testing import server
    from msgtx.testing.lives import named

    given = request.config.getoption("--msgtx-url") or os.environ.get(SERVER_VARIABLE) or request.config.getini("msgtx_url")
    with contextlib.ExitStack() as run:
        try:
            made = run.enter_context(server.given(given) if given else server.embedded_server())
        except MsgtxError as error:
            advice = "" if given else "\nOr name a server for the tests: pytest --msgtx-url=postgresql://…"
            raise pytest.fail.Exception(f"no PostgreSQL for the tests: {error}{advice}", pytrace=False) from None
        with made.making_template() as url, connect(url, create=True) as client, named(url), _django(request, url):
            if msgtx_prepare is not None:
                msgtx_prepare(client)
        yield made


@pytest.fixture
def _msgtx_own_url(msgtx_server: "Postgres") -> Iterator[str]:
    """Return the address of the test's database, without faults on the way."""
    url = msgtx_server.copy()
    yield url
    msgtx_server.drop(url)


@pytest.fixture
def msgtx_faults(request: pytest.FixtureRequest, msgtx_server: "Postgres", _msgtx_own_url: str) -> "Iterator[Faults]":
    """Break the connections to the test's database: lost calls and answers, crashes, outages, `every_boundary`."""
    from msgtx.testing import Faults

    told = request.node.user_properties
    faults = Faults(msgtx_server, _msgtx_own_url, _progress(request.config), lambda place: told.append((NOT_REACHED, place)))
    request.node.stash[FAULTS] = faults
    yield faults
    faults.close()


def _progress(config: pytest.Config) -> "Say | None":
    """Return what shows a line of progress with `-v`."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    capturing = config.pluginmanager.get_plugin("capturemanager")
    if terminal is None or capturing is None or config.get_verbosity() < 1:
        return None

    def say(text: str, stays: bool) -> None:
        with capturing.global_and_fixture_disabled():
            if stays:
                terminal.ensure_newline()
                terminal.write_line(text)
            elif terminal.isatty:
                terminal.rewrite(text, erase=True)

    return say


@pytest.fixture
def msgtx_database(request: pytest.FixtureRequest, _msgtx_own_url: str) -> Iterator[str]:
    """Return the URL of this test's own database. `MSGTX_DATABASE_URL` has it, too."""
    from msgtx.testing.lives import named

    url = _msgtx_own_url
    if "msgtx_faults" in request.fixturenames:
        url = request.getfixturevalue("msgtx_faults").url
    with named(url):
        yield url


@pytest.fixture
def msgtx_client(msgtx_database: str) -> "Iterator[Client]":
    """Return a client of the test's database."""
    from msgtx.client import connect

    with connect(msgtx_database) as client:
        yield client


@pytest.fixture
def msgtx_async_client(msgtx_database: str) -> "Iterator[aio.Client]":
    """Return an asyncio client of the test's database, for pytest-asyncio or anyio on asyncio."""
    import asyncio

    from msgtx import aio

    with ThreadPoolExecutor(1) as other:  # has no event loop; that of the test may run already
        client = other.submit(asyncio.run, aio.connect(msgtx_database)).result()
        yield client
        other.submit(asyncio.run, client.close()).result()


@pytest.fixture
def msgtx_engine(msgtx_client: "Client") -> "Iterator[sqlalchemy.Engine]":
    """Return an SQLAlchemy engine on the test's database."""
    engine = msgtx_client.engine()
    yield engine
    engine.dispose()


@pytest.fixture
def msgtx_sessions(msgtx_engine: "sqlalchemy.Engine") -> "sessionmaker[Session]":
    """Return a maker of SQLAlchemy sessions on the test's database."""
    from sqlalchemy.orm import sessionmaker

    return sessionmaker(msgtx_engine)


@pytest.fixture
def msgtx_connection(msgtx_database: str) -> "Iterator[psycopg.Connection[Any]]":
    """Return a psycopg connection to the test's database. Call its `commit()`."""
    import psycopg

    with contextlib.closing(psycopg.connect(msgtx_database)) as connection:
        yield connection


@pytest.fixture
def msgtx_django(request: pytest.FixtureRequest, msgtx_database: str) -> "Iterator[BaseDatabaseWrapper]":
    """Have Django use the test's database, and return its connection. It replaces the `db` of pytest-django."""
    with _django(request, msgtx_database) as connection:
        if connection is None:
            pytest.fail("msgtx_django needs Django, set up, with PostgreSQL as the database that MSGTX names", pytrace=False)
        yield connection


@pytest.fixture
def msgtx_role(msgtx_server: "Postgres", _msgtx_own_url: str, msgtx_database: str) -> "Roles":
    """Make a role with few rights: `msgtx_role(can=("produce", "orders"))` returns the URL for its login."""
    from msgtx.testing import Roles

    return Roles(msgtx_server, _msgtx_own_url, msgtx_database)


@pytest.fixture
def msgtx_clock(_msgtx_own_url: str) -> "Clock":
    """Return the clock of the test's database: `msgtx_clock.move("1h")`."""
    from msgtx.testing import Clock

    return Clock(_msgtx_own_url)


@contextlib.contextmanager
def _django(request: pytest.FixtureRequest, url: str) -> "Iterator[BaseDatabaseWrapper | None]":
    """Have Django, if it is set up, use a database. pytest-django lets no test connect without its own fixtures."""
    from msgtx.testing import django

    if not django.is_set_up():
        yield None
        return
    with contextlib.ExitStack() as using:
        if request.config.pluginmanager.hasplugin("django"):
            using.enter_context(request.getfixturevalue("django_db_blocker").unblock())
        yield using.enter_context(django.leading_to(url))
