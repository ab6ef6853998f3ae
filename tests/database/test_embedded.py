"""The embedded server's secrets: what other users of the machine may listen to and read."""

import os
import pwd
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

from msgtx import errors
from msgtx.database import embedded
from msgtx.database.embedded import postmaster, sheltered
from msgtx.database.opening import open_engine
from msgtx.database.pool import Engine

NO_TLS = b"N"
ASK_IN_CLEAR = b"R\0\0\0\x08\0\0\0\x03"
LET_IN = b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I"
QUESTIONS = (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30")  # SSLRequest, GSSENCRequest
SECONDS = 10.0


def impostor(listening: socket.socket, answer: bytes, heard: list[bytes]) -> None:
    """Be a server for one client, and note what it sends after the answer."""
    peer, _ = listening.accept()
    with peer:
        peer.settimeout(SECONDS)
        while peer.recv(4096)[4:8] in QUESTIONS:
            peer.sendall(NO_TLS)
        peer.sendall(answer)
        heard.append(peer.recv(4096))


@pytest.mark.parametrize("answer", [ASK_IN_CLEAR, LET_IN])
def test_who_listens_in_the_servers_place_is_told_nothing(answer: bytes, server: object) -> None:
    """No clear password, and no query to a server that has not proved that it knows the password."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(SECONDS)
        address = sqlalchemy.make_url(embedded.start().url).set(port=listening.getsockname()[1])
        thread = threading.Thread(target=impostor, args=(listening, answer, heard))
        thread.start()
        refused = pytest.raises((errors.AuthorizationFailed, errors.DatabaseUnavailable))
        with Engine(address.render_as_string(hide_password=False)) as engine, refused:
            engine.dedicated()
        thread.join(SECONDS)
    assert heard == [b""]


SERVICE = "[elsewhere]\nhost=192.0.2.1\nsslmode=require\noptions=-c work_mem=1MB\n"


@pytest.mark.parametrize(
    "variables",
    [
        {"PGHOST": "192.0.2.1", "PGHOSTADDR": "192.0.2.1", "PGPORT": "1", "PGUSER": "nobody", "PGPASSWORD": "wrong"},
        {"PGDATABASE": "nowhere", "PGAPPNAME": "psql", "PGCONNECT_TIMEOUT": "1"},
        {"PGOPTIONS": "-c no_such_setting=1"},
        {"PGOPTIONS": "-c default_transaction_read_only=on -c search_path=nowhere"},
        {"PGSERVICE": "no_such_service"},
        {"PGSERVICE": "elsewhere"},
        {"PGTZ": "Nowhere/Nothing", "PGDATESTYLE": "nothing", "PGGEQO": "perhaps"},
        {"PGCLIENTENCODING": "no_such_encoding"},
        {"PGSSLMODE": "require"},
        {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": "/nowhere", "PGSSLCERT": "/nowhere", "PGSSLKEY": "/nowhere"},
        {"PGREQUIREAUTH": "none"},
        {"PGCHANNELBINDING": "require"},
        {"PGGSSENCMODE": "require"},
        {"PGREQUIREPEER": "somebody"},
        {"PGTARGETSESSIONATTRS": "standby"},
        {"PGTARGETSESSIONATTRS": "prefer-standby", "PGLOADBALANCEHOSTS": "random"},
        {"PGSSLMINPROTOCOLVERSION": "TLSv9"},
    ],
    ids="+".join,
)
def test_libpqs_variables_are_not_for_the_embedded_server(
    variables: dict[str, str], server: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "service").write_text(SERVICE)
    monkeypatch.setenv("MSGTX_EMBEDDED", "quiet")
    monkeypatch.delenv("MSGTX_DATABASE_URL", raising=False)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "service"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with open_engine() as engine, engine.connection() as connection:
        row = connection.execute(SEEN).fetchone()
    assert row == ("off", f"msgtx {os.getpid()}", "UTF8", "4MB")
    assert embedded.sessions() >= 0
    assert dict(os.environ) == before


SEEN = """
    select current_setting('default_transaction_read_only'), current_setting('application_name'),
           current_setting('client_encoding'), current_setting('work_mem')"""


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.Server]:
    """A server of its own, in a folder that every user may enter."""
    around = tmp_path_factory.mktemp("embedded")
    for parent in (around, *around.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/tmp"):  # noqa: S108 - as pytest's fixtures make it
            parent.chmod(parent.stat().st_mode | 0o055)
    home = around / "home"
    yield embedded.start(home)
    embedded.stop(home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as somebody else")
def test_what_else_runs_as_the_servers_user_reads_none_of_its_files(running: embedded.Server) -> None:
    """Its data could be copied, its memory read, and its rules changed to let any user log in."""
    user = pwd.getpwuid((running.home / "data").stat().st_uid)
    group = (running.home / "data").stat().st_gid
    found = postmaster.read_pid_file(running.home / "data")
    assert found is not None

    def reads(path: str, gid: int) -> bool:
        read = ("/bin/ls" if path.endswith("/") else "/bin/cat", path)
        done = subprocess.run(read, user=user.pw_uid, group=gid, extra_groups=[], capture_output=True, check=False)
        return done.returncode == 0

    secrets = ("data/", "data/pg_hba.conf", "password", "superuser-password", "log/")
    assert reads(f"{running.home}/data/pg_hba.conf", group)  # the server itself does
    for path in (*(f"{running.home}/{each}" for each in secrets), f"/proc/{found.pid}/cwd/", f"/proc/{found.pid}/environ"):
        assert not reads(path, user.pw_gid), path
    with Engine(running.url) as engine:
        engine.dedicated().close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_has_its_variables_and_can_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "theirs")
    hidden = threading.Event()

    def step() -> None:
        with sheltered._without_variables():
            hidden.set()
            time.sleep(0.2)

    thread = threading.Thread(target=step)
    thread.start()
    hidden.wait(SECONDS)
    child = os.fork()
    if child == 0:
        free = sheltered._one_at_a_time.acquire(timeout=2)
        os._exit(0 if free and os.environ.get("PGPASSWORD") == "theirs" else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
