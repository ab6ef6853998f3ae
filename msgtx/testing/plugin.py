"""A pytest plugin: a real PostgreSQL with a database for each test, a client, roles, a clock, and faults."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import sqlalchemy

    from msgtx.client import Client
    from msgtx.testing import Clock, Faults, Postgres


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--msgtx-url`."""
    parser.getgroup("msgtx").addoption(
        "--msgtx-url",
        metavar="URL",
        help="a PostgreSQL for the tests, by a role that may create databases; without it one is embedded",
    )


@pytest.fixture(scope="session")
def msgtx_prepare() -> "Callable[[Client], object] | None":
    """Override it with a function of a client that makes what each test finds: topics, tables. It is called once."""
    return None


@pytest.fixture(scope="session")
def msgtx_server(request: pytest.FixtureRequest, msgtx_prepare: "Callable[[Client], object] | None") -> "Iterator[Postgres]":
    """Run a server for this run, or for this process of pytest-xdist, with a template of the tests' databases."""
    from msgtx.client import connect
    from msgtx.database import opening
    from msgtx.testing import server

    url = request.config.getoption("--msgtx-url")

    def prepare(url: str) -> None:
        with pytest.MonkeyPatch.context() as patched, connect(url, create=True) as client:
            patched.setenv(opening.VARIABLE, url)
            if msgtx_prepare is not None:
                msgtx_prepare(client)

    with server.given(url) if url else server.embedded_server() as made:
        made.make_template(prepare)
        yield made


@pytest.fixture
def msgtx_own_url(msgtx_server: "Postgres") -> Iterator[str]:
    """Return the address of the test's database, without faults on the way."""
    url = msgtx_server.copy()
    yield url
    msgtx_server.drop(url)


@pytest.fixture
def msgtx_faults(msgtx_server: "Postgres", msgtx_own_url: str) -> "Iterator[Faults]":
    """Faults between the program and its database: `msgtx_database` then leads over a wire that breaks by plan."""
    from msgtx.testing import Faults

    faults = Faults(msgtx_server, msgtx_own_url)
    yield faults
    faults.close()


@pytest.fixture
def msgtx_database(request: pytest.FixtureRequest, msgtx_own_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a database of this test alone, which is in `MSGTX_DATABASE_URL`, too."""
    from msgtx.database import opening

    url = msgtx_own_url
    if "msgtx_faults" in request.fixturenames:
        url = request.getfixturevalue("msgtx_faults").url
    monkeypatch.setenv(opening.VARIABLE, url)
    return url


@pytest.fixture
def msgtx_client(msgtx_database: str) -> "Iterator[Client]":
    """Return a client on the test's database."""
    from msgtx.client import connect

    with connect(msgtx_database) as client:
        yield client


@pytest.fixture
def msgtx_engine(msgtx_database: str, msgtx_client: "Client") -> "Iterator[sqlalchemy.Engine]":
    """Return an engine of SQLAlchemy on the test's database."""
    engine = msgtx_client.engine()
    yield engine
    engine.dispose()


@pytest.fixture
def msgtx_clock(msgtx_own_url: str) -> "Clock":
    """Return the clock of the test's database."""
    from msgtx.testing import Clock

    return Clock(msgtx_own_url)
