"""A standby of the tests' server, which takes over when the test says so."""

import shutil
from pathlib import Path
from typing import Any, Final

import psycopg

from msgtx.database import address, embedded
from msgtx.database.embedded import binaries, postmaster
from msgtx.errors import DatabaseUnavailable

ADMISSION: Final = "host replication all 127.0.0.1/32 scram-sha-256\n"
FOLLOW_SECONDS: Final = 60.0  # for the standby to come up, to catch up, and to take over
RECEIVES: Final = "select exists (select from pg_stat_wal_receiver)"
STANDS_ALONE: Final = ("alter system set primary_conninfo = ''", "select pg_reload_conf()")
# A commit, so that all before it is flushed, and therefore sent.
FLUSH: Final = "select pg_logical_emit_message(true, 'msgtx', '')"
FLUSHED: Final = "select pg_current_wal_flush_lsn()::text"
HAS_REPLAYED: Final = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
PROMOTE: Final = "select pg_promote(true, %s)"


class Follower:
    """A server that follows the one in `primary`, from now on. It lives in `home`, which is made and removed."""

    def __init__(self, primary: Path, home: Path) -> None:
        self._primary, self._home = primary, home
        admit_standbys(primary)
        copy_server(primary, home)
        self.port = embedded.start(home).port

    def fall_behind(self) -> None:
        """Receive nothing from here on."""
        with _superuser(self._home) as standby:
            for statement in STANDS_ALONE:
                standby.execute(statement)
            _await(lambda: standby.execute(RECEIVES).fetchone() == (False,), "the standby still receives")

    def catch_up(self) -> None:
        """Wait until it has all that the primary has committed."""
        with _superuser(self._primary) as primary, _superuser(self._home) as standby:
            primary.execute(FLUSH)
            flushed = primary.execute(FLUSHED).fetchone()
            _await(lambda: standby.execute(HAS_REPLAYED, flushed).fetchone() == (True,), "the standby is behind")

    def promote(self) -> None:
        """Have it take writes, on a timeline of its own."""
        with _superuser(self._home) as standby:
            standby.execute(PROMOTE, [int(FOLLOW_SECONDS)])

    def remove(self) -> None:
        """Stop it, and remove its files."""
        embedded.stop(self._home)
        shutil.rmtree(self._home)


def admit_standbys(primary: Path) -> None:
    """Have a server send its log to standbys on this machine."""
    rules = primary / "data" / "pg_hba.conf"
    if ADMISSION not in rules.read_text():
        with rules.open("a") as appended:
            appended.write(ADMISSION)
        with _superuser(primary) as connection:
            connection.execute("select pg_reload_conf()")


def copy_server(primary: Path, home: Path) -> None:
    """Copy a running server into the home of a standby: `embedded.start` then runs it, with the same passwords."""
    user, running = binaries.account(primary / "data"), embedded.status(primary)
    assert running is not None, "the primary runs"
    for folder in (home, home / "log"):
        folder.mkdir(mode=0o700)
        user.own(folder)
    source = address.parse(embedded.superuser_url(primary))
    ended = user.run(
        running.binaries / "pg_basebackup", "-D", home / "data", "-R", "-X", "stream", "-c", "fast",
        "-h", source["host"], "-p", source["port"], "-U", source["user"], "-w",
        cwd=home, PGPASSWORD=source["password"],  # everyone may read the arguments of a process
    )  # fmt: skip
    if ended.returncode != 0:
        raise DatabaseUnavailable(f"pg_basebackup has made no standby: {ended.stderr.strip()}")
    for name in ("password", "superuser-password"):
        shutil.copy2(primary / name, home / name)


def _await(condition: Any, otherwise: str) -> None:
    if not postmaster.wait_until(condition, FOLLOW_SECONDS):
        raise DatabaseUnavailable(f"{otherwise} after {FOLLOW_SECONDS:g} s")


def _superuser(home: Path) -> "psycopg.Connection[Any]":
    return psycopg.connect(embedded.superuser_url(home), autocommit=True)
