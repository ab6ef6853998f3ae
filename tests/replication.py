"""A primary and a standby that follows it: two servers, of which one may be promoted."""

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy

from msgtx.database import embedded
from msgtx.database.embedded import binaries, postmaster
from msgtx.database.embedded.follower import admit_standbys, copy_server
from tests.databases import PATIENCE_SECONDS, Server, scratch, use_server, wait_until


@dataclass(frozen=True)
class Pair:
    """Two servers with the same databases. `url` names a database of the primary, as `Server.url` returns it."""

    primary: Server
    home: Path
    primary_port: int
    standby_port: int

    def on_standby(self, url: str) -> str:
        """Return the address of the same database on the standby."""
        return sqlalchemy.make_url(url).set(port=self.standby_port).render_as_string(hide_password=False)

    def on_either(self, url: str) -> str:
        """Return an address that leads to whichever of them takes writes, as a user configures it."""
        address = sqlalchemy.make_url(url)
        hosts = f"{address.host}:{self.primary_port},{address.host}:{self.standby_port}"
        user = f"{address.username}:{address.password}"
        return f"postgresql://{user}@{hosts}/{address.database}?target_session_attrs=read-write"

    def catch_up(self) -> None:
        """Wait until the standby shows all that the primary has written."""
        with self.primary.administrator() as primary, self._standby() as standby:
            primary.execute("select pg_logical_emit_message(true, 'tests', '')")  # commits, and so flushes what is unflushed
            written = primary.execute("select pg_current_wal_flush_lsn()").fetchone()
            wait_until(
                lambda: standby.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", written).fetchone() == (True,),
                "the standby has replayed it",
            )

    def fall_behind(self) -> None:
        """Let the standby receive nothing from here on: it never gets what the primary acknowledges now."""
        with self._standby() as standby:
            standby.execute("alter system set primary_conninfo = ''")
            standby.execute("select pg_reload_conf()")
            receivers = "select count(*) from pg_stat_wal_receiver"
            wait_until(lambda: standby.execute(receivers).fetchone() == (0,), "the standby receives nothing")

    def follow(self, other: "Pair") -> None:
        """Let the standby follow the server that the other pair's standby has become."""
        address = sqlalchemy.make_url(embedded.superuser_url(other.home / "standby"))
        source = f"host={address.host} port={address.port} user={address.username} password={address.password}"
        with self._standby() as standby:
            standby.execute(f"alter system set primary_conninfo = '{source}'")
            standby.execute("select pg_reload_conf()")

    @contextlib.contextmanager
    def nothing_confirmed(self) -> Iterator[None]:
        """Let each COMMIT of the primary wait for a synchronous standby that is not there, until the end."""
        self.confirm_by("nobody")
        try:
            yield
        finally:
            self.confirm_by("")

    def confirm_by(self, standby: str) -> None:
        """Let each COMMIT of the primary wait for a standby of this name; for none if it is empty."""
        with self.primary.administrator() as primary:
            primary.execute(f"alter system set synchronous_standby_names = '{standby}'")
            primary.execute("select pg_reload_conf()")
            asked = "select current_setting('synchronous_standby_names')"
            wait_until(lambda: primary.execute(asked).fetchone() == (standby,), "the setting is read")
            primary.execute("checkpoint")  # the checkpointer tells all sessions whether there is somebody to wait for

    def cancel_waits(self, call: Future[Any]) -> None:
        """Cancel, as an administrator does, the wait of each COMMIT for the standby; fail if `call` was answered."""
        waits = "select pid from pg_stat_activity where wait_event = 'SyncRep'"
        with self.primary.administrator() as primary:
            pids = wait_until(lambda: primary.execute(waits).fetchall() or call.done(), "a COMMIT waits for the standby")
            assert not call.done(), f"it is answered without the standby: {call}"
            for pid in pids:
                primary.execute("select pg_cancel_backend(%s)", pid)
            wait_until(lambda: not {*pids} & {*primary.execute(waits).fetchall()}, "its wait is cancelled")

    @contextlib.contextmanager
    def replay_paused(self) -> Iterator[Callable[[], object]]:
        """Let the standby show nothing new, until the end or until what it yields is called."""
        with self._standby() as standby:
            standby.execute("select pg_wal_replay_pause()")
            state = "select pg_get_wal_replay_pause_state()"
            wait_until(lambda: standby.execute(state).fetchone() == ("paused",), "the standby replays nothing")
            try:
                yield lambda: standby.execute("select pg_wal_replay_resume()")
            finally:
                standby.execute("select pg_wal_replay_resume()")

    @contextlib.contextmanager
    def feeding_back(self) -> Iterator[None]:
        """Let the standby tell its primary which rows it needs, until the end."""
        with self._standby() as standby:
            standby.execute("alter system set hot_standby_feedback = on")
            standby.execute("select pg_reload_conf()")
            try:
                yield
            finally:
                standby.execute("alter system reset hot_standby_feedback")
                standby.execute("select pg_reload_conf()")

    @contextlib.contextmanager
    def another_standby(self) -> Iterator["Pair"]:
        """Run a second standby of the primary. Returns the pair of these two."""
        home = self.home / "another"
        home.mkdir(mode=0o755)
        (home / "primary").symlink_to(self.home / "primary")
        standby = home / "standby"
        copy_server(self.home / "primary", standby)
        try:
            yield Pair(self.primary, home, self.primary_port, embedded.start(standby).port)
        finally:
            _kill(standby)

    def switch_over(self) -> None:
        """Stop the primary in order, which sends the standby the rest, and promote that."""
        assert embedded.stop(self.home / "primary")
        self._promote()

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby with what it has."""
        self.stop_primary()
        self._promote()

    def recover_to(self, moment: datetime) -> None:
        """Kill both, and recover the standby, as a base backup, from the primary's WAL up to this moment."""
        self.stop_primary()
        self.stop_standby()
        data = self.home / "standby" / "data"
        user = binaries.account(data)
        (data / "standby.signal").rename(data / "recovery.signal")
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"restore_command = 'cp {self.home}/primary/data/pg_wal/%f %p'\n")
            settings.write(f"recovery_target_time = '{moment.isoformat()}'\nrecovery_target_action = promote\n")
        user.own(data / "postgresql.auto.conf")
        self.start_standby()
        with self._standby() as recovered:
            in_recovery = "select pg_is_in_recovery()"
            wait_until(lambda: recovered.execute(in_recovery).fetchone() == (False,), "it is recovered")

    def stop_primary(self) -> None:
        """Kill the primary."""
        _kill(self.home / "primary")

    def start_old_primary(self) -> None:
        """Start the primary again after it was killed, beside the one that was promoted."""
        assert embedded.start(self.home / "primary").port == self.primary_port

    def stop_standby(self) -> None:
        """Kill the standby, or what it has become."""
        _kill(self.home / "standby")

    def start_standby(self) -> None:
        """Start it again."""
        assert embedded.start(self.home / "standby").port == self.standby_port

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let no process of the primary run, until the end: its connections stay open, and nothing answers."""
        running = postmaster.read_pid_file(self.home / "primary" / "data")
        assert running is not None
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        pids = [running.pid, *map(int, children)]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def promote(self) -> None:
        """Promote the standby; the primary is left alone."""
        self._promote()

    def _promote(self) -> None:
        with self._standby() as standby:
            assert standby.execute("select pg_promote(true, %s)", [int(PATIENCE_SECONDS)]).fetchone() == (True,)

    def _standby(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(embedded.superuser_url(self.home / "standby"), autocommit=True)


@contextlib.contextmanager
def replicated() -> Iterator[Pair]:
    """Run a primary and a standby in a folder of their own."""
    folder = scratch("msgtx-replicated-")
    primary, standby = folder / "primary", folder / "standby"
    try:
        made = embedded.start(primary)
        server = use_server(embedded.superuser_url(primary))
        admit_standbys(primary)
        copy_server(primary, standby)
        yield Pair(server, folder, made.port, embedded.start(standby).port)
    finally:
        for home in (standby, primary):
            _kill(home)
        shutil.rmtree(folder)


def _kill(home: Path) -> None:
    """Stop a server at once, if it runs."""
    if (running := postmaster.read_pid_file(home / "data")) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGQUIT)
        wait_until(lambda: not postmaster.works_in(home / "data", running.pid), "the server is gone")
