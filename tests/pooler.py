"""A pooler between clients and the server: PgBouncer in transaction mode, as in many installations.

The program comes from the system; where it is missing, from Debian's packages, unpacked into a cache folder with the
libraries that it lacks. Nothing is installed, and no root is needed.
"""

import contextlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import sqlalchemy

from tests.databases import connect, wait_until

APT_SECONDS: Final = 120.0
MISSING: Final = "these tests need PgBouncer: install it (Debian: apt-get install pgbouncer); it could not be fetched: {}"
SETTINGS: Final = """\
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
admin_users = pgbouncer
default_pool_size = {size}
max_client_conn = 200
server_idle_timeout = 600
server_login_retry = 0.2
logfile = {folder}/pgbouncer.log
pidfile =
"""


@dataclass(frozen=True)
class Pooler:
    """A running pooler. Several clients share a few connections of the server: each call may go through another one."""

    port: int
    folder: Path
    size: int

    def lead_to(self, url: str) -> None:
        """Let all databases be those of this address's server, as an administrator does after a failover."""
        self._configure(url)
        with psycopg.connect(f"host=127.0.0.1 port={self.port} dbname=pgbouncer user=pgbouncer", autocommit=True) as console:
            console.execute("reload")
            console.execute("reconnect")

    def _configure(self, url: str) -> None:
        address = sqlalchemy.make_url(url)
        (self.folder / "pgbouncer.ini").write_text(
            SETTINGS.format(
                host=address.host, port=address.port, user=address.username, password=address.password, size=self.size,
                listen_port=self.port, folder=self.folder,
            )
        )  # fmt: skip

    def url(self, url: str) -> str:
        """Return the address of a database through the pooler."""
        return sqlalchemy.make_url(url).set(host="127.0.0.1", port=self.port).render_as_string(hide_password=False)

    @property
    def log(self) -> str:
        return (self.folder / "pgbouncer.log").read_text()


@contextlib.contextmanager
def pooler(url: str, *, size: int = 3) -> Iterator[Pooler]:
    """Run PgBouncer in transaction mode before the server of this address, with `size` connections to each database."""
    program, libraries = find_program()
    folder = Path(tempfile.mkdtemp(prefix="msgtx-pooler-"))
    made = Pooler(_free_port(), folder, size)
    made._configure(url)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)} if libraries else None
    as_user = None
    if os.geteuid() == 0:  # it refuses to run as root
        as_user = "nobody"
        for path in (folder, folder / "pgbouncer.ini"):
            os.chown(path, pwd.getpwnam(as_user).pw_uid, -1)
    process = subprocess.Popen(
        [program, "-q", folder / "pgbouncer.ini"], env=environment, user=as_user,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: process.poll() is not None or _answers(made.url(url)), "the pooler answers")
        assert process.poll() is None, f"pgbouncer ended with {process.returncode}: {made.log}"
        yield made
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        connect(url).close()
    except Exception:  # noqa: BLE001 - not yet
        return False
    return True


# ── the program ──


def find_program() -> tuple[Path, Path | None]:
    """Return the program, and a folder of libraries that it needs beside the system's."""
    places = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    if found := shutil.which("pgbouncer", path=places):
        return Path(found), None
    return unpack(_cache() / "pgbouncer")


def _cache() -> Path:
    if os.geteuid() == 0:  # where the user that runs it has access, too
        return Path("/var/cache/msgtx-tests")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "msgtx-tests"


def unpack(cache: Path) -> tuple[Path, Path]:
    """Fetch the package and the libraries that the system lacks, once, and unpack them into a folder."""
    program = cache / "usr" / "sbin" / "pgbouncer"
    if not program.exists():
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
            made = Path(folder) / "made"
            made.mkdir()
            _fetch("pgbouncer", Path(folder))
            for package in _lacking(next(Path(folder).glob("pgbouncer_*.deb"))):
                _fetch(package, Path(folder))
            for package in Path(folder).glob("*.deb"):
                _run(["dpkg", "-x", package, made], Path(folder))
            with contextlib.suppress(OSError):  # another run was faster
                made.rename(cache)
    (libraries,) = {path.parent for path in cache.glob("usr/lib/*/lib*.so*")} or {cache / "usr" / "lib"}
    return program, libraries


def _lacking(package: Path) -> list[str]:
    depends = _run(["dpkg-deb", "-f", package, "Depends"], package.parent)
    names = re.findall(r"(?:^|, )(lib[a-z0-9.+-]+)", depends)
    return [name for name in names if "install ok installed" not in _status(name)]


def _status(package: str) -> str:
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, text=True, check=False, timeout=APT_SECONDS
    )
    return asked.stdout


def _fetch(package: str, folder: Path) -> None:
    _run(["apt-get", "download", package], folder)


def _run(command: list[str | Path], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=APT_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or str(error)
        raise AssertionError(MISSING.format(told.strip().splitlines()[-1])) from error
    return done.stdout
