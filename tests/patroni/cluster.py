"""Three members of Patroni and their etcd, on free ports of loopback, in a folder of their own.

Patroni runs in an environment of its own, `.venv/patroni` (`make .venv/patroni/installed`). Its servers do not run as root:
as root, all of this runs as the user of the embedded server.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import sqlalchemy

from msgtx.database.embedded import binaries, postmaster
from msgtx.database.embedded.binaries import Account
from tests.databases import Server, scratch, use_server, wait_until
from tests.failovers.servers import children

PYTHON: Final = Path(sys.prefix) / "patroni" / "bin" / "python"
PATRONICTL: Final = PYTHON.with_name("patronictl")
NO_ETCD: Final = "missing: etcd (Debian: apt-get install etcd-server)"
NO_PATRONI: Final = f"missing: {PYTHON}, the environment of Patroni (make test-patroni makes it)"
NAMES: Final = ("a", "b", "c")
TTL_SECONDS: Final = 20  # the least that Patroni takes: so long a leader that says nothing stays the leader
CHANGE_SECONDS: Final = 120.0  # for a change of leaders, or for a member to be made
LOOK_SECONDS: Final = 0.02
FOLLOWED: Final = """
    select count(*), count(*) filter (where sync_state = 'sync')
    from pg_stat_replication where state = 'streaming' and not pg_is_in_recovery()
"""
# Adopts what Patroni leaves behind when it is killed, and waits for its end. In a container nobody else may do so.
KEEPER: Final = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)
subprocess.Popen(sys.argv[1:])
try:
    while os.wait():
        pass
except ChildProcessError:
    pass
"""
# JSON is YAML.
Configuration = dict[str, Any]


@dataclass(eq=False)
class Member:
    """A server and its Patroni."""

    name: str
    folder: Path
    port: int
    rest: int
    keeper: "subprocess.Popen[bytes] | None" = None
    patroni: int = 0

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def server(self) -> int:
        """The process number of its server; 0 if none runs."""
        found = postmaster.read_pid_file(self.data)
        return found.pid if found is not None and postmaster.works_in(self.data, found.pid) else 0

    @property
    def log(self) -> Path:
        return self.folder / "patroni.log"


@dataclass
class Cluster:
    """Members that elect their leader."""

    folder: Path
    user: Account
    members: dict[str, Member]
    superuser_password: str
    etcd: "subprocess.Popen[bytes] | None" = None

    # ── addresses ──

    def on_all(self, url: str) -> str:
        """Return the address of a database on whichever of them is the leader."""
        address = sqlalchemy.make_url(url)
        hosts = ",".join(f"{address.host}:{member.port}" for member in self.members.values())
        return (
            f"postgresql://{address.username}:{address.password}@{hosts}/{address.database}?target_session_attrs=read-write"
        )

    def superuser_url(self, member: Member) -> str:
        return f"postgresql://postgres:{self.superuser_password}@127.0.0.1:{member.port}/postgres"

    def is_primary(self, member: Member) -> bool:
        """Return whether a server takes writes, by its own word."""
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(self.superuser_url(member), connect_timeout=2, autocommit=True) as connection,
        ):
            return connection.execute("select pg_is_in_recovery()").fetchone() == (False,)
        return False

    # ── what Patroni says ──

    def states(self) -> dict[str, dict[str, Any]]:
        """Return what the members know of one another, by name; nothing if none answers."""
        for member in self.members.values():
            with (
                contextlib.suppress(OSError, urllib.error.URLError, ValueError),
                urllib.request.urlopen(f"http://127.0.0.1:{member.rest}/cluster", timeout=1.0) as answer,
            ):
                return {each["name"]: each for each in json.load(answer)["members"]}
        return {}

    def leader(self) -> Member | None:
        found = [name for name, state in self.states().items() if state["role"] == "leader" and state["state"] == "running"]
        return self.members[found[0]] if found else None

    def await_leader(self, *, other_than: Member | None = None) -> Member:
        def other() -> Member | None:
            found = self.leader()
            return None if found is other_than else found

        return self._await(other, "there is a leader")

    def await_promotion(self, *, other_than: Member) -> int:
        """Wait until another server takes writes. Return when, by the machine's clock."""
        others = [member for member in self.members.values() if member is not other_than]
        self._await(lambda: any(self.is_primary(member) for member in others), "another server takes writes")
        return time.monotonic_ns()

    def await_health(self) -> Member:
        """Wait until both other members follow the leader, one of them synchronously. Return the leader."""
        return self._await(self._healthy_leader, "all members follow, one of them synchronously")

    def _healthy_leader(self) -> Member | None:
        roles = Counter(state["role"] for state in self.states().values())
        leader = self.leader()
        if leader is None or roles["sync_standby"] != 1:
            return None
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(self.superuser_url(leader), connect_timeout=2, autocommit=True) as connection,
        ):
            return leader if connection.execute(FOLLOWED).fetchone() == (len(NAMES) - 1, 1) else None
        return None

    def _await(self, condition: Any, what: str) -> Any:
        deadline = time.monotonic() + CHANGE_SECONDS
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {CHANGE_SECONDS:g} s: {what}; {self.states()}\n{self.said()}"
            time.sleep(LOOK_SECONDS)
        return found

    def said(self) -> str:
        """Return the last lines of each log."""
        logs = [member.log for member in self.members.values() if member.log.exists()]
        return "\n".join(f"── {path.parent.name}\n" + path.read_text()[-1_500:] for path in logs)

    # ── what happens to members ──

    def kill(self, member: Member) -> None:
        """Kill a member's Patroni, and all processes of its server."""
        server = member.server
        _signal(signal.SIGKILL, member.patroni, server, *children(server))
        assert member.keeper is not None
        member.keeper.wait(CHANGE_SECONDS)  # until all of them are gone

    def kill_server(self, member: Member) -> None:
        """Kill only the server, and wait until its Patroni has started it again."""
        server = member.server
        _signal(signal.SIGKILL, server, *children(server))
        self._await(lambda: member.server not in {0, server}, "Patroni has started the server again")

    def restart(self, member: Member) -> None:
        """Start a member again that was killed: it rewinds, and follows."""
        postmaster.remove_misleading_pid_file(member.data)
        self.start(member)

    @contextlib.contextmanager
    def frozen(self, member: Member) -> Iterator[None]:
        """Let neither a member's Patroni nor the first process of its server run, until the end. Open sessions go on."""
        pids = (member.patroni, member.server)
        _signal(signal.SIGSTOP, *pids)
        try:
            yield
        finally:
            _signal(signal.SIGCONT, *pids)

    def switch_over(self, member: Member) -> None:
        """Let another member be the leader, as an administrator does."""
        command = [PATRONICTL, "-c", member.folder / "patroni.json", "switchover", "--leader", member.name, "--force"]
        said: list[str] = []

        def is_done() -> bool:
            done = subprocess.run(command, capture_output=True, text=True, timeout=CHANGE_SECONDS, check=False)
            said.append(done.stdout + done.stderr)
            return done.returncode == 0 or self.leader() not in {member, None}

        self._await(is_done, f"patronictl switches over: {said}")

    # ── begin and end ──

    def start(self, member: Member) -> None:
        with member.log.open("ab") as log:
            member.keeper = self._spawn([PYTHON, "-c", KEEPER, PYTHON, "-m", "patroni", member.folder / "patroni.json"], log)
        keeper = member.keeper.pid
        (member.patroni,) = wait_until(lambda: children(keeper), "Patroni runs")

    def _spawn(self, command: list[Any], log: Any) -> "subprocess.Popen[bytes]":
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": self.folder}
        return subprocess.Popen(
            [*_as(self.user), *command],
            cwd=self.folder,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def stop(self) -> None:
        for member in self.members.values():
            if member.keeper is None:
                continue
            if member.patroni:
                _signal(signal.SIGKILL, member.patroni)
            if server := member.server:
                _signal(signal.SIGCONT, server)
                _signal(signal.SIGQUIT, server)
            postmaster.await_orphans(member.data)
        for process in (*(member.keeper for member in self.members.values()), self.etcd):
            if process is not None:
                process.kill()
                process.wait()


def _configuration(cluster: Cluster, member: Member, etcd: int, programs: Path) -> Configuration:
    return {
        "scope": "msgtx",
        "name": member.name,
        "restapi": {"listen": f"127.0.0.1:{member.rest}", "connect_address": f"127.0.0.1:{member.rest}"},
        "etcd3": {"host": f"127.0.0.1:{etcd}"},
        "bootstrap": {
            "dcs": {
                "ttl": TTL_SECONDS,
                "loop_wait": 1,
                "retry_timeout": 5,
                "maximum_lag_on_failover": 1_048_576,
                "synchronous_mode": True,
                "postgresql": {
                    "use_pg_rewind": True,
                    "parameters": {
                        "max_connections": 200,
                        "shared_buffers": "64MB",
                        "dynamic_shared_memory_type": "mmap",
                        "wal_keep_size": "1GB",
                    },
                },
            },
            "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "no-sync"],
        },
        "postgresql": {
            "listen": f"127.0.0.1:{member.port}",
            "connect_address": f"127.0.0.1:{member.port}",
            "data_dir": str(member.data),
            "bin_dir": str(programs),
            "pgpass": str(member.folder / "pgpass"),
            "parameters": {"unix_socket_directories": ""},
            "pg_hba": ["host all all 127.0.0.1/32 scram-sha-256", "host replication all 127.0.0.1/32 scram-sha-256"],
            "authentication": {
                "superuser": {"username": "postgres", "password": cluster.superuser_password},
                "replication": {"username": "replicator", "password": cluster.superuser_password},
            },
        },
    }


def _signal(number: signal.Signals, *pids: int) -> None:
    for pid in pids:
        assert pid, "0 means this process and its group"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _as(user: Account) -> list[str]:
    """Return what runs a program as a user who may read our Python wherever that is: also in a folder of root's."""
    if user.uid is None:
        return []
    capability = "+dac_override"
    identity = ["--reuid", str(user.uid), "--regid", str(user.gid), "--clear-groups"]
    return ["setpriv", *identity, "--inh-caps", capability, "--ambient-caps", capability]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def missing() -> str:
    """Return what this machine lacks; nothing if all is there."""
    return NO_ETCD if shutil.which("etcd") is None else "" if PYTHON.exists() else NO_PATRONI


@contextlib.contextmanager
def patroni() -> Iterator[tuple[Cluster, Server]]:
    """Run a cluster, and return it with what tests know of its first leader."""
    assert not missing(), missing()
    folder = scratch("msgtx-patroni-")
    user = binaries.account(folder / "data")
    user.own(folder)
    programs = binaries.choose(folder / "data", user).folder
    client, peer, *ports = _free_ports(2 + 2 * len(NAMES))
    members = {name: Member(name, folder / name, *ports[2 * at : 2 * at + 2]) for at, name in enumerate(NAMES)}
    cluster = Cluster(folder, user, members, secrets.token_hex(16))
    try:
        with (folder / "etcd.log").open("ab") as log:
            cluster.etcd = cluster._spawn(
                [
                    "etcd", "--data-dir", folder / "etcd", "--listen-client-urls", f"http://127.0.0.1:{client}",
                    "--advertise-client-urls", f"http://127.0.0.1:{client}", "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                    "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                    "--initial-cluster", f"default=http://127.0.0.1:{peer}",
                ],
                log,
            )  # fmt: skip
        for member in members.values():
            member.folder.mkdir(mode=0o700)
            user.own(member.folder)
            path = member.folder / "patroni.json"
            path.write_text(json.dumps(_configuration(cluster, member, client, programs)))
            user.own(path)
            cluster.start(member)
        leader = cluster.await_health()
        yield cluster, use_server(cluster.superuser_url(leader))
    finally:
        cluster.stop()
        shutil.rmtree(folder)
