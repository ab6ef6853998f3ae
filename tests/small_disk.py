"""A PostgreSQL on a disk that can be filled, and emptied again.

The disk is a tmpfs in a mount namespace of its own, where this module runs as a program: others do not see it, and it goes
with the program, however that ends. Root may have one; other users get it inside a user namespace. The program takes
commands on stdin, one a line, and answers each with a line.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgtx.database import embedded
from msgtx.database.embedded import postmaster
from msgtx.errors import MsgtxError
from tests.databases import Server, use_server

SIZE: Final = "220m"  # a fresh server takes about 100 MB of it, with its log and a few segments of WAL
PATIENCE_SECONDS: Final = 60.0
MISSING: Final = (
    "these tests fill a disk of their own: they need to mount a tmpfs, as root or in a user namespace"
    " (unshare of util-linux; sysctl kernel.unprivileged_userns_clone=1, and a container that may mount); it failed: {}"
)
SETTINGS: Final = {"fsync": "off", "min_wal_size": "32MB", "autovacuum": "off", "checkpoint_timeout": "1h"}


class SmallDisk:
    """The program, as the tests see it."""

    def __init__(self, folder: Path) -> None:
        as_user = () if os.geteuid() == 0 else ("--user", "--map-current-user", "--keep-caps")
        self._process = subprocess.Popen(
            ["unshare", *as_user, "--mount", sys.executable, "-m", "tests.small_disk", folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
            cwd=Path(__file__).parent.parent,
        )  # fmt: skip
        try:
            url = self._ask("start")
        except BaseException:
            self.close()
            raise
        self.server: Server = use_server(url)
        with self.server.administrator() as connection:
            for name, value in SETTINGS.items():
                connection.execute(f"alter system set {name} = '{value}'")
            connection.execute("select pg_reload_conf()")
            connection.execute("checkpoint")

    def fill(self, leave: int) -> None:
        """Take all space but `leave` bytes."""
        self._ask(f"fill {leave}")

    def empty(self) -> None:
        """Give the space back."""
        self._ask("empty")

    def start(self) -> None:
        """Start the server again, if it is not running."""
        self._ask("start")

    @property
    def free(self) -> int:
        """The bytes that are left."""
        return int(self._ask("free"))

    @property
    def alive(self) -> bool:
        """Whether the server is running."""
        return self._ask("alive") == "True"

    def panic(self) -> None:
        """Make the server need new segments of WAL, until it finds no room for one and ends itself."""
        with contextlib.suppress(Exception), self.server.administrator() as connection:
            for _ in range(100):
                connection.execute("select pg_logical_emit_message(true, 'tests', '')")
                connection.execute("select pg_switch_wal()")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdout, self._process.stderr):
                assert stream is not None
                stream.close()

    def _ask(self, order: str) -> str:
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        try:
            stdin.write(order + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass
        told = stdout.readline()
        assert told, MISSING.format((stderr.read().strip().splitlines() or ["it ended"])[-1])
        answer, _, text = told.rstrip("\n").partition(" ")
        assert answer == "ok", text
        return text


@contextlib.contextmanager
def small_disk() -> Iterator[SmallDisk]:
    """Run a server on a small disk."""
    folder = Path(tempfile.mkdtemp(prefix="msgtx-disk-"))
    folder.chmod(0o755)  # as root, the server's user must get in
    made = None
    try:
        made = SmallDisk(folder)
        yield made
    finally:
        if made is not None:
            made.close()
        shutil.rmtree(folder)


# ── inside the namespace ──


class _Inside:
    def __init__(self, disk: Path) -> None:
        self.disk = disk
        self.home = disk / "home"
        self.ballast = disk / "ballast"

    def start(self) -> str:
        embedded.start(self.home)
        return embedded.superuser_url(self.home)

    def fill(self, leave: str) -> str:
        self.empty()
        with self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, int(self.free()) - int(leave)))
        return ""

    def empty(self) -> str:
        self.ballast.unlink(missing_ok=True)
        return ""

    def free(self) -> str:
        found = os.statvfs(self.disk)
        return str(found.f_bfree * found.f_frsize)

    def alive(self) -> str:
        return str(postmaster.settled(self.home / "data") is not None)

    def end(self) -> None:
        if running := postmaster.settled(self.home / "data"):
            os.kill(running.pid, signal.SIGQUIT)
            postmaster.await_orphans(self.home / "data")


def main() -> None:
    disk = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0755", "tmpfs", disk], check=True)
    inside = _Inside(disk)
    try:
        for line in sys.stdin:
            order, *arguments = line.split()
            try:
                told = f"ok {getattr(inside, order)(*arguments)}"
            except (MsgtxError, OSError) as error:
                told = f"failed {' '.join(str(error).split())}"
            sys.stdout.write(told + "\n")
            sys.stdout.flush()
    finally:
        inside.end()


if __name__ == "__main__":
    main()
