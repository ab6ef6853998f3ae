"""The server of a test run, which a test may crash."""

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from msgtx.database import embedded
from msgtx.database.embedded import postmaster
from msgtx.database.throwaway import Throwaway
from msgtx.errors import ConfigError, MsgtxError

IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the folder in it is made by mkdtemp
FOLDERS_PREFIX: Final = "msgtx-testing-"
HELD_FILE: Final = "run"  # a file that is locked while the run lives
YOUNG_SECONDS: Final = 3_600.0  # of a folder that has no such file
ENDED: Final = b"ended\n"  # what a run tells its guard when it has removed its server itself
LAST_PROCESS_SECONDS: Final = 60.0  # for the processes of a run that has ended, which hold its lock
ROOM_BYTES: Final = 2 << 30  # of databases: a hundred megabytes at a time, and what is not checkpointed yet


class Postgres(Throwaway):
    """A PostgreSQL for the tests of one process."""

    def __init__(self, url: str, owner: str | None = None, home: Path | None = None) -> None:
        super().__init__(url, owner, fast=home is not None)
        self.home = home

    def crash(self) -> None:
        """Kill the server and start it again. What was not flushed is lost. Raise `ConfigError` for one that was given."""
        if self.home is None:
            raise ConfigError("only an embedded server can be crashed: leave out --msgtx-url", name="url")
        crash(self.home)


def crash(home: Path) -> None:
    """Kill the server of a folder and start it again."""
    data = home / "data"
    running = postmaster.read_pid_file(data)
    if running is not None:
        os.kill(running.pid, signal.SIGQUIT)
        postmaster.wait_until(lambda: not postmaster.works_in(data, running.pid), embedded.STOP_S)
    embedded.start(home)


@contextlib.contextmanager
def given(url: str) -> Iterator[Postgres]:
    """Use a server that runs. `url`: of a role that may create databases."""
    with contextlib.closing(Postgres(url)) as server:
        yield server


@contextlib.contextmanager
def embedded_server() -> Iterator[Postgres]:
    """Run a server of this process alone, in memory if there is room: its files need not last."""
    for parent in {IN_MEMORY, Path(tempfile.gettempdir())}:
        _remove_deserted(parent)
    memory = IN_MEMORY if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOM_BYTES else None
    folder = Path(tempfile.mkdtemp(prefix=FOLDERS_PREFIX, dir=memory))
    folder.chmod(0o755)  # as root, the server runs as another user
    with contextlib.ExitStack() as guarded, _hold(folder), contextlib.ExitStack() as ended:
        ended.callback(shutil.rmtree, folder)
        ended.callback(embedded.stop, folder / "home")
        guarded.callback(_guard(folder).communicate, ENDED)  # when all the rest has ended
        started = embedded.start(folder / "home")
        server = Postgres(embedded.superuser_url(folder / "home"), started.url, folder / "home")
        ended.callback(server.leave)  # the databases go with the folder
        server.flush_nothing()
        yield server


def _guard(folder: Path) -> "subprocess.Popen[bytes]":
    """Start a process that removes a run's server if the run ends without doing it: by SIGTERM, or killed.

    It waits for a line, or for the end of all processes of the run. A handler of SIGTERM would not be called in those of
    pytest-xdist, and hide the signal from workers under test.
    """
    program = f"import sys; sys.stdin.readline() or __import__({__name__!r}, fromlist=['_']).remove_after(sys.argv[1])"
    return subprocess.Popen(  # noqa: S603 - this Python
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not for it
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )


def remove_after(folder: str) -> None:
    """Stop and remove the server of a run that has ended, once its last process has."""
    deadline = time.monotonic() + LAST_PROCESS_SECONDS
    while Path(folder).exists() and time.monotonic() < deadline:
        _remove_if_deserted(Path(folder))
        time.sleep(0.05)


def _hold(folder: Path) -> IO[str]:
    """Lock a file in the folder of a run until the process ends. It has its name only once it is locked."""
    held = (folder / f"{HELD_FILE}.new").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    (folder / f"{HELD_FILE}.new").rename(folder / HELD_FILE)
    return held


def _remove_deserted(parent: Path) -> None:
    """Stop and remove the servers of runs that were killed."""
    for folder in parent.glob(f"{FOLDERS_PREFIX}*"):
        _remove_if_deserted(folder)


def _remove_if_deserted(folder: Path) -> None:
    with contextlib.suppress(OSError, MsgtxError):  # another run removes it, too
        if _is_deserted(folder):
            for home in (folder / "home", *folder.glob("standby-*")):
                embedded.stop(home)
            shutil.rmtree(folder)


def _is_deserted(folder: Path) -> bool:
    """Return whether a folder is one of ours, and the process that has made it is gone: its lock is free."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():  # of another user, or planted by one
        return False
    try:
        held = os.open(folder / HELD_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # killed before it had the lock, or about to take it
        return time.time() - found.st_mtime > YOUNG_SECONDS
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(held)
    return True
