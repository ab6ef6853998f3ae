"""What tests know about databases: make one, replace its clock, wait for a lock."""

import concurrent.futures
import contextlib
import functools
import itertools
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

import psycopg
import pytest
import sqlalchemy
from psycopg.pq import ExecStatus, TransactionStatus

from msgtx import errors
from msgtx.database import connection
from msgtx.database.pool import Engine
from msgtx.database.schema import migrate
from msgtx.database.throwaway import set_clock, settle  # noqa: F401 - tests take set_clock from here

Connection = psycopg.Connection[Any]
# What the fixtures `open_connection`, `clock` and `background` are.
Sessions = Callable[[], Connection]
Clock = Callable[..., None]
Background = concurrent.futures.ThreadPoolExecutor
# A condition that is not met by then is a failure; nothing waits this long otherwise. Planted failures wait less.
PATIENCE_SECONDS: Final = float(os.environ.get("PATIENCE_SECONDS", "30"))
LOOK_SECONDS: Final = 0.002  # between two looks
IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the folder in it is made by mkdtemp
ROOM_BYTES: Final = 6 << 30  # a run of all tests leaves 2 GB of databases on each of its servers
INSERT_ONLY: Final = (
    "record_batch",
    "transaction",
    "transaction_partition",
    "transaction_seal",
    "transaction_decision",
    "transaction_marker",
    "partition_floor",
    "group_offset",
)
# What `discard all` does, but for the plans.
AS_NEW: Final = (
    b"close all; reset session authorization; reset all; unlisten *; discard temp; discard sequences;"
    b" select pg_advisory_unlock_all()"
)
_number = itertools.count(1)


def scratch(prefix: str) -> Path:
    """Make a folder for a server that is thrown away: in memory, if there is room, as its files need not last.

    A database is a few hundred files; on a disk it takes three times as long to make one.
    `SCRATCH_FOLDER` names another place.
    """
    memory = IN_MEMORY if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOM_BYTES else None
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("SCRATCH_FOLDER", memory)))
    folder.chmod(0o755)  # as root, the server's user must get in
    return folder


@dataclass(frozen=True)
class Server:
    """A PostgreSQL for tests: its superuser's address, and the ordinary role that owns the databases."""

    superuser_url: str
    role: str
    password: str

    def url(self, database: str) -> str:
        """Return the address of a database for the ordinary role."""
        address = sqlalchemy.make_url(self.superuser_url)
        return address.set(username=self.role, password=self.password, database=database, query={}).render_as_string(
            hide_password=False
        )

    @contextlib.contextmanager
    def administrator(self, database: str | None = None) -> Iterator[Connection]:
        """Open a superuser's connection."""
        address = sqlalchemy.make_url(self.superuser_url).set(drivername="postgresql")
        if database is not None:
            address = address.set(database=database)
        with psycopg.connect(address.render_as_string(hide_password=False), autocommit=True) as connection:
            yield connection

    def create_database(self, *, schema: bool = True) -> str:
        """Make a fresh database, by default with msgtx's schema. Returns its address for the ordinary role."""
        template = f"template {self._template()}" if schema else ""
        name = f"msgtx_test_{os.getpid()}_{next(_number)}"
        with self.administrator() as connection:
            connection.execute(f"create database {name} owner {self.role} {template}")
        if schema:
            settle(self.url(name))
        return self.url(name)

    @functools.cache  # noqa: B019 - a run has one server; to ask each time takes as long as a test
    def _template(self) -> str:
        """Return the name of a database with the schema, made once: to copy it takes a tenth of the time."""
        name = f"{self.role}_template"
        with self.administrator() as connection:
            if connection.execute("select from pg_database where datname = %s", [name]).fetchone() is None:
                connection.execute(f"create database {name} owner {self.role}")
                install(self.url(name))
        return name

    def drop(self) -> None:
        """Remove the role and what else it has left."""
        with self.administrator() as connection:
            connection.execute(f"drop database if exists {self.role}_template")
            connection.execute(f"drop role {self.role}")

    def drop_database(self, url: str) -> None:
        """Remove a database, and end the sessions that are still connected to it."""
        with self.administrator() as connection:
            connection.execute(f"drop database if exists {sqlalchemy.make_url(url).database} with (force)")


class KeptSessions:
    """Sessions outside a pool that tests use one after another, each as new but for its plans.

    A third of the time of the store's tests went into new ones: each parses, compiles and plans every function again.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._idle: list[Connection] = []

    def close(self) -> None:
        for each in self._idle:
            each.close()

    def take(self) -> Connection:
        """Return an autocommitting connection. A test may have ended all others that there were."""
        while self._idle:
            found = self._idle.pop()
            if found.pgconn.exec_(b"").status == ExecStatus.EMPTY_QUERY:
                return found
            found.close()
        return self._engine.dedicated()

    def put(self, connection: Connection) -> None:
        """Make one as new; close what cannot be made so: one that is in a transaction, or was ended."""
        if connection.info.transaction_status != TransactionStatus.IDLE or not _made_as_new(connection):
            connection.close()
            return
        self._idle.append(connection)


def _made_as_new(connection: Connection) -> bool:
    """Undo what was set in an idle session; returns whether the server did so."""
    connection.autocommit, connection.prepare_threshold = True, 0
    connection.isolation_level = connection.read_only = connection.deferrable = None
    return connection.pgconn.exec_(AS_NEW).status == ExecStatus.TUPLES_OK  # of the last one


def use_server(superuser_url: str) -> Server:
    """Return a server with a new ordinary role on it."""
    server = Server(superuser_url, f"msgtx_test_{secrets.token_hex(4)}", secrets.token_hex(16))
    with server.administrator() as connection:
        connection.execute(f"create role {server.role} login password '{server.password}'")
    return server


def install(url: str) -> None:
    """Bring the schema of a database to the newest version."""
    with Engine(url, pool_size=1) as engine, engine.transaction() as connection:
        migrate.upgrade(connection)


def connect(url: str, **options: Any) -> Connection:
    """Open an autocommitting connection outside any pool, with these options of libpq; the caller closes it."""
    return psycopg.connect(_conninfo(url), autocommit=True, **options)


def as_djangos(url: str) -> dict[str, Any]:
    """Return an address as Django's settings have it."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": given["dbname"],
        "USER": given["user"],
        "PASSWORD": given["password"],
        "HOST": given["host"],
        "PORT": given["port"],
    }


def own_connection(url: str) -> connection.Connection:
    """Open one of the kind that a client's pool has."""
    return connection.Connection.connect(_conninfo(url), autocommit=True)


def _conninfo(url: str) -> str:
    return sqlalchemy.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


# ── waiting ──


def wait_until(condition: Callable[[], Any], what: str = "", *, seconds: float = PATIENCE_SECONDS) -> Any:
    """Check repeatedly until the condition holds; returns its value. Fails with `what` when time is over."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}")
        time.sleep(LOOK_SECONDS)
    return value


def backend(connection: Connection) -> int:
    """Return the process number of a connection's backend."""
    return connection.info.backend_pid


def waits_for_lock(observer: Connection, pid: int) -> bool:
    """Return whether a backend waits for a lock now."""
    row = observer.execute("select wait_event_type from pg_stat_activity where pid = %s", [pid]).fetchone()
    return row is not None and row[0] == "Lock"


def wait_for_lock(observer: Connection, pid: int) -> None:
    """Wait until a backend waits for a lock."""
    wait_until(lambda: waits_for_lock(observer, pid), f"backend {pid} waits for a lock")


def waiting_backends(observer: Connection) -> set[int]:
    """Return the backends of this database that wait for a lock now."""
    rows = observer.execute(
        "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    ).fetchall()
    return {pid for (pid,) in rows}


def lose_answers(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
    """Have each call of a function that a module has imported be done, and its answer be lost."""
    call = getattr(module, name)

    def unanswered(*arguments: Any, **named: Any) -> NoReturn:
        call(*arguments, **named)
        raise errors.DatabaseUnavailable("the answer is lost")

    monkeypatch.setattr(module, name, unanswered)


@contextlib.contextmanager
def partitions_held(holder: Connection, topic: str) -> Iterator[None]:
    """Hold the locks of a topic's partitions within the block: appends wait for them."""
    with holder.transaction():
        holder.execute("select msgtx.lock_partition(partition_id) from msgtx.partitions where topic = %s", [topic])
        yield
