"""A primary and standbys that are killed, promoted, and follow one another again: a pair, or a trio."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
import sqlalchemy

from msgtx.database import embedded
from msgtx.database.embedded import binaries, postmaster
from msgtx.database.embedded.follower import admit_standbys, copy_server
from tests import replication
from tests.databases import Server, scratch, use_server, wait_until

NAMES: Final = ("a", "b", "c")
SETTINGS: Final = {
    "wal_log_hints": "on",  # pg_rewind needs this,
    "wal_keep_size": "1GB",  # and what was written before a checkpoint
    "wal_retrieve_retry_interval": "100ms",
}
STREAMING: Final = "select count(*) from pg_stat_replication where state = 'streaming' and application_name = %s"
RECEIVED: Final = "select pg_last_wal_receive_lsn() - '0/0'"


@dataclass
class Servers:
    """Servers with the same databases. One is the primary, all others follow it."""

    folder: Path
    programs: Path
    server: Server  # what it is to tests; its address is that of the first primary
    ports: dict[str, int]
    primary: str = NAMES[0]
    down: set[str] = field(default_factory=set)

    @property
    def standbys(self) -> list[str]:
        return [name for name in self.ports if name != self.primary and name not in self.down]

    def on_all(self, url: str) -> str:
        """Return the address of a database on whichever of them takes writes, as a user configures it."""
        address = sqlalchemy.make_url(url)
        hosts = ",".join(f"{address.host}:{port}" for port in self.ports.values())
        return (
            f"postgresql://{address.username}:{address.password}@{hosts}/{address.database}?target_session_attrs=read-write"
        )

    def on_primary(self, url: str) -> str:
        """Return the address of a database on the server that takes writes now."""
        return sqlalchemy.make_url(url).set(port=self.ports[self.primary]).render_as_string(hide_password=False)

    def confirm_by(self, names: str, name: str | None = None) -> None:
        """Let each COMMIT of a server, usually of the primary, wait for these standbys."""
        with self.administrator(name or self.primary) as server:
            server.execute(f"alter system set synchronous_standby_names = '{names}'")
            server.execute("select pg_reload_conf()")
            asked = "select current_setting('synchronous_standby_names')"
            wait_until(lambda: server.execute(asked).fetchone() == (names,), "the setting is read")
            server.execute("checkpoint")  # the checkpointer tells all sessions whether there is somebody to wait for

    def kill(self) -> str:
        """Kill all processes of the primary. Return its name."""
        running = postmaster.read_pid_file(self._data(self.primary))
        assert running is not None
        for pid in (running.pid, *children(running.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        postmaster.await_orphans(self._data(self.primary))
        self.down.add(self.primary)
        return self.primary

    def stop(self) -> str:
        """Stop the primary in order, which sends its standbys the rest. Return its name."""
        assert embedded.stop(self.folder / self.primary)
        self.down.add(self.primary)
        return self.primary

    def promote(self) -> int:
        """Promote the standby that has received most; the others follow it. Return when it began to take writes."""
        received = {name: self._received(name) for name in self.standbys}
        best = max(received, key=lambda name: received[name])
        with self.administrator(best) as standby:
            standby.execute("select pg_promote(false)")
            wait_until(lambda: standby.execute("select pg_is_in_recovery()").fetchone() == (False,), f"{best} is promoted")
            promoted = time.monotonic_ns()
        self.primary = best
        for name in self.standbys:
            with self.administrator(name) as standby:
                standby.execute(f"alter system set primary_conninfo = '{self._source(name)}'")
                standby.execute("select pg_reload_conf()")
        return promoted

    def rejoin(self, name: str) -> None:
        """Rewind a server that was killed to what the primary has, and let it follow."""
        user, data = binaries.account(self._data(name)), self._data(name)
        with self.administrator(self.primary) as primary:
            primary.execute("checkpoint")  # else pg_rewind may find the timeline of before the promotion
        postmaster.remove_misleading_pid_file(data)
        source = f"{self._source(name)} dbname=postgres"
        options = ("--target-pgdata", data, "--source-server", source, "--no-sync")
        ended = user.run(self.programs / "pg_rewind", *options, cwd=self.folder / name)
        assert ended.returncode == 0, ended.stderr
        with (data / "postgresql.auto.conf").open("a") as configuration:
            configuration.write(f"primary_conninfo = '{self._source(name)}'\n")
        (data / "standby.signal").touch()
        user.own(data / "standby.signal")
        self.start_standby(name)

    def start_standby(self, name: str) -> None:
        """Start a standby, and wait until it follows."""
        self.ports[name] = embedded.start(self.folder / name).port
        self.down.discard(name)
        with self.administrator(self.primary) as primary:
            wait_until(lambda: primary.execute(STREAMING, [name]).fetchone() == (1,), f"{name} follows")

    def administrator(self, name: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(embedded.superuser_url(self.folder / name), autocommit=True)

    def _received(self, name: str) -> int:
        """Return how far a standby has come, once it receives nothing more."""
        with self.administrator(name) as standby:
            receivers = "select count(*) from pg_stat_wal_receiver where status = 'streaming'"
            wait_until(lambda: standby.execute(receivers).fetchone() == (0,), f"{name} receives nothing")
            return int(str((standby.execute(RECEIVED).fetchone() or (0,))[0]))

    def _source(self, name: str) -> str:
        """Return where a standby receives from."""
        password = (self.folder / name / "superuser-password").read_text().strip()
        return f"host=127.0.0.1 port={self.ports[self.primary]} user=postgres password={password} application_name={name}"

    def _data(self, name: str) -> Path:
        return self.folder / name / "data"


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    with contextlib.suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@contextlib.contextmanager
def servers(count: int, folder: Path | None = None) -> Iterator[Servers]:
    """Run so many servers in a folder of their own, which is removed. Each COMMIT waits for one of the standbys."""
    folder = folder or scratch("msgtx-failovers-")
    names = NAMES[:count]
    try:
        made = embedded.start(folder / names[0])
        server = use_server(embedded.superuser_url(folder / names[0]))
        with server.administrator() as administrator:
            for name, value in {**SETTINGS, "synchronous_standby_names": f"ANY 1 ({', '.join(names)})"}.items():
                administrator.execute(f"alter system set {name} = '{value}'")
        admit_standbys(folder / names[0])
        assert embedded.stop(folder / names[0])
        embedded.start(folder / names[0])
        found = Servers(folder, made.binaries, server, {names[0]: made.port})
        for name in names[1:]:
            copy_server(folder / names[0], folder / name)
            with (folder / name / "data" / "postgresql.auto.conf").open("a") as configuration:
                configuration.write(f"primary_conninfo = '{found._source(name)}'\n")
            found.start_standby(name)
        yield found
    finally:
        for name in names:
            replication._kill(folder / name)
        shutil.rmtree(folder)
