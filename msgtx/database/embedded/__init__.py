"""An embedded PostgreSQL, for everyone who has given no database.

It starts a server in a folder (`MSGTX_HOME`) with programs that are there already (`binaries`). One server serves all
processes of that folder and outlives the command that started it; `stop` ends it. It listens on 127.0.0.1 with SCRAM
passwords, never on a Unix socket: JDBC needs TCP. Its addresses ask for SCRAM, so the server has to prove the password, too:
a program on the port of a stopped server learns nothing, and is refused.

The folder holds `data/`, `log/`, `port`, `lock` and two password files of mode 600: `password` of the role `msgtx`, an
ordinary role that owns the database `msgtx`, and `superuser-password` of `postgres`.
"""

import contextlib
import fcntl
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg.pq

from msgtx.database.embedded import binaries, postmaster
from msgtx.database.embedded.binaries import Account, Binaries
from msgtx.database.embedded.postmaster import READY_S, PidFile, wait_until
from msgtx.database.embedded.sheltered import Sheltered
from msgtx.errors import ConfigError, DatabaseUnavailable

ROLE = "msgtx"
SUPERUSER = "postgres"

LOCK_S = 180.0  # another command may be starting a server that recovers after a crash
STOP_S = 60.0  # a fast shutdown writes a checkpoint of shared_buffers
START_ATTEMPTS = 5  # each with another port
PORT_FIRST, PORT_COUNT = 15432, 16000  # below Linux's ephemeral ports, so that no outgoing connection takes ours
PORT_PROBES = 200
ONLY_SCRAM = "?require_auth=scram-sha-256"
FIRST_LIBPQ_THAT_REQUIRES = 160000  # an older one does not know the parameter, and refuses it
LOG_TAIL_BYTES = 4096  # enough for the line that says why a start failed

SETTINGS = """\
# Written at each start. Put settings of your own into postgresql.auto.conf (ALTER SYSTEM): they count more.
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
password_encryption = 'scram-sha-256'
max_connections = 200
shared_buffers = '256MB'
dynamic_shared_memory_type = 'mmap'
max_wal_size = '4GB'
checkpoint_timeout = '15min'
fsync = on
jit = off
logging_collector = on
log_directory = '../log'
log_filename = 'postgresql-%a.log'
log_truncate_on_rotation = on
log_rotation_age = '1d'
log_rotation_size = 0
log_line_prefix = '%m [%p] %q%u@%d %a '
"""
SESSIONS = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
CLIENT_RULES = """\
# TYPE  DATABASE  USER  ADDRESS       METHOD
host    all       all   127.0.0.1/32  scram-sha-256
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `url` holds the password; `started`: whether this call started it."""

    url: str
    home: Path
    port: int
    pid: int
    binaries: Path
    started: bool


def default_home() -> Path:
    """Return the folder of the embedded server: `MSGTX_HOME`, or the usual place of this user.

    Root has one for the machine, since others may not enter its home; unless it works in another home than its own.
    """
    if chosen := os.environ.get("MSGTX_HOME"):
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0 and "XDG_DATA_HOME" not in os.environ and Path.home() == Path(pwd.getpwuid(0).pw_dir):
        return Path("/var/lib/msgtx")
    shared = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(shared).expanduser().absolute() / "msgtx"


def start(home: Path | None = None) -> Server:
    """Start the server of a folder, or join it when it runs; the first start creates it.

    Processes that start at once take turns, and all get the same server. Raises ConfigError for a folder or programs
    that cannot be used, DatabaseUnavailable if the server does not come up.
    """
    home = _home(home)
    with _translated(home), _locked(home):
        if running := postmaster.settled(_data(home)):
            return _server(home, running, started=False)
        user = binaries.account(_data(home))
        programs = binaries.choose(_data(home), user)
        if not _data(home).exists():
            _create(home, user, programs=programs)
        _launch(home, user, programs=programs)
        running = postmaster.settled(_data(home))
        if running is None:
            raise DatabaseUnavailable(f"the embedded server in {home} ended right after its start: see {_log(home)}")
        return _server(home, running, started=True)


def stop(home: Path | None = None) -> bool:
    """Stop the server of a folder; open transactions are rolled back. Returns False when none ran."""
    home = _home(home)
    with _translated(home):
        if not _data(home).exists():
            return False
        with _locked(home):
            running = postmaster.settled(_data(home))
            if running is None:
                return False
            os.kill(running.pid, signal.SIGINT)
            if not wait_until(lambda: not postmaster.works_in(_data(home), running.pid), STOP_S):
                raise DatabaseUnavailable(f"the server in {home} (process {running.pid}) did not stop in {STOP_S:.0f} s")
            return True


def status(home: Path | None = None) -> Server | None:
    """Return the running server of a folder, or None."""
    home = _home(home)
    with _translated(home):
        found = postmaster.read_pid_file(_data(home))
        if found is None or found.state != "ready" or not postmaster.runs(_data(home), found.pid):
            return None
        return _server(home, found, started=False)


def sessions(home: Path | None = None) -> int:
    """Return how many sessions are connected to the running server; 0 if none runs."""
    if status(home) is None:
        return 0
    with Sheltered.connect(superuser_url(home), autocommit=True) as connection:
        row = connection.execute(SESSIONS).fetchone()
    assert row is not None
    return int(row[0])


def superuser_url(home: Path | None = None) -> str:
    """Return the address of the running server for its superuser: for an administrator's work, and for tests."""
    home = _home(home)
    server = status(home)
    if server is None:
        raise DatabaseUnavailable(f"no embedded server runs in {home}")
    with _translated(home):
        return _url(home, server.port, role=SUPERUSER)


# The folder


def _home(home: Path | None) -> Path:
    return default_home() if home is None else Path(home).absolute()


def _data(home: Path) -> Path:
    return home / "data"


def _log(home: Path) -> Path:
    return home / "log"


def _keeper(home: Path) -> Account:
    """Return the owner of the files beside the data: that of the folder, also when root starts a user's server."""
    if os.geteuid() != 0:
        return Account()
    owner = home.stat()
    return Account(owner.st_uid, owner.st_gid)


def _password_file(home: Path, role: str) -> Path:
    return home / ("password" if role == ROLE else "superuser-password")


def _url(home: Path, port: int, *, role: str) -> str:
    file = _password_file(home, role)
    try:
        password = file.read_text().strip()
    except FileNotFoundError:
        raise ConfigError(
            f"{file} is missing, and without it nobody can log in: restore it, or stop the server and remove {home} "
            f"with its data"
        ) from None
    required = ONLY_SCRAM if psycopg.pq.version() >= FIRST_LIBPQ_THAT_REQUIRES else ""
    return f"postgresql://{role}:{password}@127.0.0.1:{port}/{ROLE}{required}"


def _server(home: Path, found: PidFile, *, started: bool) -> Server:
    options = (_data(home) / "postmaster.opts").read_text()
    program = Path(options.split(' "', 1)[0].strip())
    url = _url(home, found.port, role=ROLE)
    return Server(url, home, port=found.port, pid=found.pid, binaries=program.parent, started=started)


@contextlib.contextmanager
def _translated(home: Path) -> Iterator[None]:
    """Turn a refusal of the operating system into one sentence."""
    try:
        yield
    except PermissionError as error:
        raise ConfigError(
            f"no right to use {error.filename or home} for an embedded PostgreSQL: set MSGTX_HOME to a folder of "
            f"your own, or MSGTX_DATABASE_URL to a database"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"cannot keep an embedded PostgreSQL in {home}: {error}; set MSGTX_HOME to another folder"
        ) from error


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock of the folder, which is created when missing."""
    if not home.exists():
        user = binaries.account(_data(home))
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        user.enter(home)
    descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not wait_until(lambda: _try_lock(descriptor), LOCK_S):
            raise DatabaseUnavailable(f"another command has held {home / 'lock'} for {LOCK_S:.0f} s: wait or end it")
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# The start


def _launch(home: Path, user: Account, *, programs: Binaries) -> None:
    """Start the server and wait until it accepts connections, on its last port if that is free."""
    postmaster.await_orphans(_data(home))
    postmaster.remove_misleading_pid_file(_data(home))
    output = ""
    port = _stored_port(home)
    for _ in range(START_ATTEMPTS):
        port = _free_port(home, port)
        _write(home / "port", f"{port}\n", _keeper(home))
        _write(_data(home) / "msgtx.conf", SETTINGS.format(port=port), user)
        _write(_log(home) / "start.log", "", user)
        # Relative paths: pg_ctl builds a shell command from them, and a folder may be called anything.
        options = ("-w", "-s", "-t", str(int(READY_S)), "-D", "data", "-l", "log/start.log")
        result = user.run(programs.folder / "pg_ctl", "start", *options, cwd=home)
        if result.returncode == 0:
            return
        output = result.stderr + "\n" + _log_tail(home)
        if "Address already in use" not in output:
            break
        port += 1  # someone took it after the probe
    raise DatabaseUnavailable(f"the embedded server in {home} did not start: {_reason(output)}; see {_log(home)}")


def _stored_port(home: Path) -> int:
    """Return the port of the last run; for a new folder one that its path decides."""
    try:
        return int((home / "port").read_text())
    except (FileNotFoundError, ValueError):
        return PORT_FIRST + zlib.crc32(os.fsencode(home)) % PORT_COUNT


def _free_port(home: Path, wanted: int) -> int:
    candidates = [wanted, *(PORT_FIRST + (wanted + step - PORT_FIRST) % PORT_COUNT for step in range(1, PORT_PROBES))]
    for port in candidates:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise DatabaseUnavailable(f"no free port among {PORT_PROBES} from {wanted} for the embedded server in {home}")


def _log_tail(home: Path) -> str:
    """Return the server's last output, from before and after it opened its own log file."""
    files = sorted(_log(home).glob("*.log"), key=lambda file: file.stat().st_mtime)
    return "\n".join(file.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") for file in files[-2:])


def _reason(output: str) -> str:
    """Pick the line with the reason from the output of PostgreSQL's programs."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    fatal = [line for line in lines if re.search(r"FATAL|PANIC|ERROR|error:", line)]
    return (fatal or lines or ["no reason given"])[-1]


# A new data folder


def _create(home: Path, user: Account, *, programs: Binaries) -> None:
    """Create data, roles and database beside their place, and move them there when they are complete."""
    partial = home / "data.partial"
    if partial.exists():
        postmaster.await_orphans(partial)
        shutil.rmtree(partial)
    for folder in (partial, _log(home)):
        folder.mkdir(mode=0o700, exist_ok=True)
        user.own(folder)
    if not user.can_write(partial):
        assert user.uid is not None, "a folder that we just made is ours"
        name = pwd.getpwuid(user.uid).pw_name
        raise ConfigError(
            f"PostgreSQL does not run as root, and user {name}, which runs it instead, cannot reach {home}: set "
            f"MSGTX_HOME to a folder whose parents are open to all (chmod o+x)"
        )
    passwords = {role: secrets.token_hex(24) for role in (ROLE, SUPERUSER)}
    _create_cluster(partial, user, programs=programs, passwords=passwords)
    for role, password in passwords.items():
        _write(_password_file(home, role), password + "\n", _keeper(home))
    partial.rename(_data(home))


def _create_cluster(data: Path, user: Account, *, programs: Binaries, passwords: dict[str, str]) -> None:
    """Make an empty server without any login, then its roles and its rules, without ever starting it."""
    initdb = user.run(
        programs.folder / "initdb", "--no-sync", "--locale=C", "--encoding=UTF8", "--auth=reject",
        f"--username={SUPERUSER}", f"--pgdata={data.name}", cwd=data.parent,
    )  # fmt: skip
    if initdb.returncode != 0:
        raise DatabaseUnavailable(f"initdb of {programs.folder} failed: {_reason(initdb.stdout + initdb.stderr)}")
    _write(data / "pg_hba.conf", CLIENT_RULES, user)
    with (data / "postgresql.conf").open("a") as configuration:
        configuration.write("\ninclude_if_exists = 'msgtx.conf'\n")
    statements = (
        f"ALTER ROLE {SUPERUSER} PASSWORD '{passwords[SUPERUSER]}'\n"
        f"CREATE ROLE {ROLE} LOGIN PASSWORD '{passwords[ROLE]}'\n"
        f"CREATE DATABASE {ROLE} OWNER {ROLE}\n"
        # The role has the name of msgtx's schema: by the usual search_path, the tables of programs would be made there.
        f"ALTER ROLE {ROLE} SET search_path = public\n"
    )
    single = user.run(
        programs.folder / "postgres", "--single", "-D", data.name, SUPERUSER, cwd=data.parent, stdin=statements
    )
    if single.returncode != 0 or re.search(r"ERROR|FATAL|PANIC", single.stderr):
        raise DatabaseUnavailable(f"cannot create the role and database {ROLE}: {_reason(single.stderr)}")


def _write(path: Path, text: str, user: Account) -> None:
    """Write a file of mode 600 that is there whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    user.own(partial)
    partial.rename(path)
