"""The tests' foundation: one server for the run, one database for each module, an ordinary role."""

import contextlib
import gc
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final

import hypothesis
import pytest

import msgtx
from msgtx.database import embedded
from msgtx.database.pool import Engine
from msgtx.database.throwaway import set_clock
from msgtx.testing import Postgres
from tests import evidence, parts
from tests.databases import Background, Clock, Connection, KeptSessions, Server, Sessions, scratch, use_server
from tests.hooks import Hook
from tests.replication import Pair, replicated
from tests.store import steps

hypothesis.settings.register_profile("msgtx", deadline=None, print_blob=True)
hypothesis.settings.register_profile("long", deadline=None, print_blob=True)  # tests/model
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "msgtx"))


# Rooms whose tests take milliseconds: every case of theirs runs every day.
QUICK: Final = {"house", "rules"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everyday", action="store_true", help="what `make test` runs: the same tests every day")
    parser.addoption("--part", type=int, help="a ninth of the cases and points; the number chooses which (tests/parts.py)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not asked for; put the long modules first, lest they end last."""
    if not parts.is_whole() or config.getoption("everyday"):
        taken = set(everyday(items) if config.getoption("everyday") else of_part(items))
        config.hook.pytest_deselected(items=[item for item in items if item not in taken])
        items[:] = [item for item in items if item in taken]
    rank = {item.path: 1 + (item.get_closest_marker("slow") is None) for item in items}
    rank |= {item.path: 0 for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: rank[item.path])


def everyday(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the first case of each test; of those marked `slow` the first of a module, of those marked `long` none."""
    seen: set[object] = set()
    for item in items:
        unit: object = item.nodeid
        if item.get_closest_marker("slow"):
            unit = item.path
        elif item.path.parent.name not in QUICK:
            unit = item.nodeid.partition("[")[0]
        if unit not in seen and not item.get_closest_marker("long"):
            seen.add(unit)
            yield item


def of_part(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the first case of each test, and of the others those of the part; all of quick rooms, and of sweeps."""
    seen: set[str] = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        whole = item.path.parent.name in QUICK or item.get_closest_marker("sweep")
        if test not in seen or whole or parts.has(item.nodeid):
            seen.add(test)
            yield item


def pytest_collection_finish() -> None:
    """What is there by now stays: a collection of garbage in a test, some 100 ms else, need not look at it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A test's output may hold bytes that are not text; processes exchange only text."""
    return _as_text((yield))


def _as_text(told: Any) -> Any:
    if isinstance(told, str):
        return told if told.isascii() else told.encode(errors="backslashreplace").decode()
    if isinstance(told, dict):
        return {name: _as_text(value) for name, value in told.items()}
    if isinstance(told, list | tuple):
        return type(told)(map(_as_text, told))
    return told


def pytest_configure(config: pytest.Config) -> None:
    """SIGTERM ends a run as Ctrl-C does: the fixtures are taken down, and no server is left.

    What a shell starts in the background ignores Ctrl-C, which tests send to themselves.
    """
    parts.choose(config.getoption("part"))
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)


_pulse = evidence.Pulse()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add to a failure what tells a wait from a machine that stood still."""
    told = yield
    if told.when == "call" and told.failed:
        still = _pulse.since(time.monotonic() - call.duration)
        told.sections.append(("sessions and pauses", evidence.report(item, call.duration, still)))
    return told


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the developer's settings away from the tests, and the tests away from the developer's embedded server."""
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("MSGTX_")}
    if "MSGTX_POSTGRES" in before:
        os.environ["MSGTX_POSTGRES"] = before["MSGTX_POSTGRES"]
    given = before.get("MSGTX_TEST_DATABASE_URL")
    if given:
        os.environ["MSGTX_TEST_DATABASE_URL"] = given
    folder = scratch("msgtx-tests-")
    os.environ["MSGTX_HOME"] = str(folder / "home")
    (folder / "msgtx.toml").touch()
    os.environ["MSGTX_CONFIG"] = str(folder / "msgtx.toml")
    yield
    embedded.stop()  # also one that a test started by itself
    shutil.rmtree(folder)
    for name in [name for name in os.environ if name.startswith("MSGTX_")]:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The PostgreSQL of this run: `MSGTX_TEST_DATABASE_URL` (of a superuser), else a server made for it."""
    given = os.environ.get("MSGTX_TEST_DATABASE_URL")
    if not given:
        embedded.start()
        given = embedded.superuser_url()
        found = use_server(given)
        with found.administrator() as connection:
            # The disk is not under test here: losses in a crash are tested on other servers.
            connection.execute("alter system set fsync = off")
            # As on a server that was not tuned.
            connection.execute("alter system set jit = on")
            # Each database has its turn within this time: hundreds of them would start several workers a second.
            connection.execute("alter system set autovacuum_naptime = '1h'")
            connection.execute("select pg_reload_conf()")
        yield found
        return
    found = use_server(given)
    yield found
    found.drop()


@pytest.fixture(scope="session")
def make_database(server: Server) -> Iterator[Callable[..., str]]:
    """Make databases: `make_database(schema=True)` returns an address. They go at the end, if the server stays."""
    made: list[str] = []

    def make(*, schema: bool = True) -> str:
        url = server.create_database(schema=schema)
        made.append(url)
        return url

    yield make
    for url in made if "MSGTX_TEST_DATABASE_URL" in os.environ else ():
        server.drop_database(url)


@pytest.fixture(scope="session")
def msgtx_server(server: Server) -> Iterator[Postgres]:
    """The kit's databases (`msgtx.testing`) are on the server of this run; they have the topic `orders`."""
    made = Postgres(server.superuser_url)
    with made.making_template() as url, msgtx.connect(url, create=True) as client:
        client.topics.create("orders", partitions=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A primary and a standby, for this module. Nobody stops or promotes one of them."""
    with replicated() as found:
        yield found


@pytest.fixture
def own_pair() -> Iterator[Pair]:
    """A pair for one test, which may stop and promote them."""
    with replicated() as found:
        yield found


@pytest.fixture(scope="module")
def database_url(make_database: Callable[..., str]) -> str:
    """A fresh database with the schema, for this module; its role is no superuser."""
    return make_database()


@pytest.fixture(scope="module")
def engine(database_url: str) -> Iterator[Engine]:
    """The library's engine on the module's database."""
    made = Engine(database_url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def kept_sessions(engine: Engine) -> Iterator[KeptSessions]:
    """The module's sessions of PostgreSQL outside the pool."""
    with contextlib.closing(KeptSessions(engine)) as kept:
        yield kept


@pytest.fixture
def connection(kept_sessions: KeptSessions) -> Iterator[Connection]:
    """An autocommitting psycopg connection."""
    made = kept_sessions.take()
    yield made
    kept_sessions.put(made)


@pytest.fixture
def open_connection(kept_sessions: KeptSessions) -> Iterator[Sessions]:
    """Take more connections; what is left open is rolled back."""
    taken: list[Connection] = []

    def take() -> Connection:
        taken.append(kept_sessions.take())
        return taken[-1]

    yield take
    for made in taken:
        kept_sessions.put(made)


@pytest.fixture
def client(database_url: str) -> Iterator[msgtx.Client]:
    """A client on the module's database."""
    with msgtx.connect(database_url) as made:
        yield made


@pytest.fixture
def hook(client: msgtx.Client) -> Hook:
    """Around the client's calls of the database."""
    return Hook(client.runtime.engine)


@pytest.fixture
def engine_hook(engine: Engine) -> Iterator[Hook]:
    """The same of the module's engine."""
    yield Hook(engine)
    engine.hook = None


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that no other test uses."""
    return steps.unique


@pytest.fixture
def make(client: msgtx.Client, unique: Callable[[str], str]) -> Iterator[Callable[..., msgtx.Producer]]:
    """Make transactional producers."""
    made: list[msgtx.Producer] = []

    def producer(**settings: Any) -> msgtx.Producer:
        made.append(client.producer(**{"transactional_id": unique("id"), "linger_ms": 0, **settings}))
        made[-1].init_transactions()
        return made[-1]

    yield producer
    for each in made:
        each.close()


@pytest.fixture
def output(client: msgtx.Client) -> str:
    """A topic for what is made of another one's records."""
    name = steps.unique("output")
    client.topics.create(name)
    return name


@pytest.fixture
def clock(database_url: str) -> Iterator[Clock]:
    """Set the clock of the module's database: `clock('2 hours')`, `clock(datetime)`; afterwards it is real again."""
    yield lambda offset: set_clock(database_url, offset)
    set_clock(database_url)


@pytest.fixture
def background() -> Iterator[Background]:
    """Threads for calls that wait for a lock."""
    with Background(16) as executor:
        yield executor
