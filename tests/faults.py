"""Faults at the boundary to the database: each statement, sync and fetch of the library is counted, and the n-th can fail.

All traffic of a psycopg connection goes through `Connection.wait`: cursors, pipelines and commits hand it what they
send. So one method of one subclass sees every boundary, on both sides: *before* (the database has not received the call)
and *after* (it has answered, which includes COMMIT, and the client has not seen the answer). Opening a connection is a
boundary, too. Threads that only listen or tidy up are not counted: their calls depend on time, and a number must mean the
same boundary in every run.

`msgtx.testing` breaks calls on the wire, for any driver. Here each sync and fetch of a pipeline is a boundary, too, a fault
takes no copy of a database, and `die` ends the process within a call.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from msgtx.database import connection as connections
from msgtx.database import embedded
from msgtx.database.embedded import binaries, postmaster
from tests.databases import PATIENCE_SECONDS, Server, scratch, use_server, wait_until

UNCOUNTED_THREADS: Final = {"msgtx-listener", "msgtx-completion", "msgtx-heartbeat", "msgtx-share-heartbeat"}
SILENT: Final = {"_enter_gen", "_exit_gen"}  # the library synchronizes before it leaves a pipeline: nothing more is sent
# Functions that only read: what a crash around them leaves behind is the same as after the write before them.
READS: Final = frozenset(
    {
        *("describe_topics", "fetch_batches", "list_offsets", "committed_offsets", "transaction_outcome"),
        *("describe_members", "member_assignment", "is_batch_committed"),
    }
)
FUNCTION: Final = re.compile(r"msgtx\.(\w+)\s*\(")
Action = Callable[["Connection | None"], None]  # the connection that is lost; None while it is being opened


def lose_connection(connection: "Connection | None") -> None:
    """The connection breaks, once; a retry goes through."""
    if connection is not None:
        connection.close()
    raise psycopg.OperationalError("server closed the connection unexpectedly (planted)")


def die(connection: "Connection | None") -> None:
    """The process is gone, and sends nothing more."""
    del connection
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Faults:
    """What happens at which boundary, counted from 1. `connect` is for `Engine(connect=…)`."""

    at: dict[int, Action] = field(default_factory=dict)
    crossed: list[str] = field(default_factory=list)
    fired: list[str] = field(default_factory=list)
    on: bool = True
    uncounted: frozenset[str] = frozenset()  # functions around which nothing happens
    before: bool = True  # False: to a process that is gone, before a call is the same as after the previous one
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def connect(self, conninfo: str, **options: Any) -> "Connection":
        self.cross(None, "before connect")
        connection = Connection.connect(conninfo, **options)
        connection.faults = self
        self.cross(connection, "after connect")
        return connection

    def cross(self, connection: "Connection | None", name: str) -> None:
        """Pass a boundary; what is planned for it happens in the calling thread."""
        side, function = name.split()
        if not self.on or threading.current_thread().name in UNCOUNTED_THREADS or function in self.uncounted:
            return
        if side == "before" and not self.before:
            return
        with self._lock:
            self.crossed.append(name)
            number = len(self.crossed)
            action = self.at.pop(number, None)
            if action is None:
                return
            self.fired.append(f"{number} {name}: {getattr(action, '__name__', action)}")
        action(connection)


class Connection(connections.Connection):
    """A connection that crosses a boundary before and after everything it sends."""

    faults: Faults | None = None

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        kind = getattr(gen, "__name__", "call")
        if self.faults is None or kind in SILENT:
            return super().wait(gen, *args, **options)
        name = _label(kind, gen)
        try:
            self.faults.cross(self, f"before {name}")
        except BaseException:
            gen.close()
            raise
        answer = super().wait(gen, *args, **options)
        self.faults.cross(self, f"after {name}")
        return answer


def _label(kind: str, gen: Any) -> str:
    frame = getattr(gen, "gi_frame", None)
    query = frame.f_locals.get("query") if frame is not None else None
    if query is not None and (found := FUNCTION.search(str(query))) is not None:
        return found.group(1)
    return kind.strip("_").removesuffix("_gen")


# ── a server that may crash ──

SETTINGS: Final = {
    # What is flushed goes to the system's memory, which survives; what is not stays in the server's, which does not.
    "fsync": "off",
    "full_page_writes": "off",
    # Only a commit that must flush does so: what neither its own commit nor another's has flushed is lost in a crash.
    "wal_writer_delay": "10s",
    "wal_writer_flush_after": "2GB",
    "bgwriter_lru_maxpages": "0",
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "max_prepared_transactions": "2",
}


WAL_WRITER_SLEEPS: Final = (
    "select pid from pg_stat_activity where backend_type = 'walwriter' and wait_event = 'WalWriterMain'"
)


class CrashServer:
    """A PostgreSQL that is killed and started again, as a child of this process: that takes half of the time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        made = embedded.start(home)
        self._program: list[str | Path] = [made.binaries / "postgres", "-D", "data"]
        self._user = binaries.account(home / "data")
        self._process: subprocess.Popen[bytes] | None = None
        self._wal_writer: int | None = None
        self.server: Server = use_server(embedded.superuser_url(home))
        self.crashes = 0
        with self.server.administrator() as connection:
            for name, value in SETTINGS.items():
                connection.execute(f"alter system set {name} = '{value}'")
        self.crash()

    def kill(self) -> None:
        """Stop at once, as `pg_ctl stop -m immediate` does: nothing is flushed, no client is notified."""
        if (running := postmaster.read_pid_file(self.home / "data")) is not None:
            os.kill(running.pid, signal.SIGQUIT)
        if self._wal_writer is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._wal_writer, signal.SIGKILL)
            self._wal_writer = None
        if self._process is not None:
            self._process.wait(PATIENCE_SECONDS)
        postmaster.await_orphans(self.home / "data")
        self.crashes += 1

    def start(self) -> None:
        process = self._process = subprocess.Popen(
            self._program, cwd=self.home, user=self._user.uid, group=self._user.gid,
            extra_groups=None if self._user.uid is None else [], env={"LC_ALL": "C"}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(lambda: self._ready(process), "the server has recovered")
        self._stop_wal_writer()

    def _stop_wal_writer(self) -> None:
        with self.server.administrator() as connection:
            # Its first round comes with the start. Others would come every ten seconds (the maximum of wal_writer_delay)
            # and flush what a test wants to lose.
            (pid,) = wait_until(lambda: connection.execute(WAL_WRITER_SLEEPS).fetchone(), "the WAL writer sleeps")
        self._wal_writer = int(pid)
        os.kill(self._wal_writer, signal.SIGSTOP)

    def drop_database(self, url: str) -> None:
        """Remove a database: the WAL writer, like every process of the server, must run for that."""
        if self._wal_writer is not None:
            os.kill(self._wal_writer, signal.SIGCONT)
        self.server.drop_database(url)
        self._stop_wal_writer()

    def _ready(self, process: "subprocess.Popen[bytes]") -> bool:
        assert process.poll() is None, f"the server ended with {process.returncode}: see {self.home / 'log'}"
        found = postmaster.read_pid_file(self.home / "data")
        return found is not None and found.pid == process.pid and found.state == "ready"

    def crash(self) -> None:
        self.kill()
        self.start()

    def flush(self) -> None:
        """Commit in another session, which flushes all WAL up to here."""
        with self.server.administrator() as connection:
            # A transaction id alone would not flush: a commit that wrote nothing else is always asynchronous.
            connection.execute("select pg_logical_emit_message(true, 'tests', '')")

    def crash_at(self, connection: Connection | None) -> None:
        """Crash the server while this call is on its way: an action of `Faults`."""
        self.crash()
        lose_connection(connection)

    def flush_at(self, connection: Connection | None) -> None:
        """Flush: an action of `Faults`."""
        del connection
        self.flush()


@contextlib.contextmanager
def crash_server() -> Iterator[CrashServer]:
    """Run a server for crashes in a folder of its own."""
    folder = scratch("msgtx-crash-")
    server = CrashServer(folder / "home")
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.kill()
        shutil.rmtree(folder)
