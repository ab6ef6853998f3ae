"""The server of a test run, which a test may crash."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgtx.database import embedded
from msgtx.database.embedded import postmaster
from msgtx.database.throwaway import Throwaway
from msgtx.errors import ConfigError, MsgtxError

IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the folder in it is made by mkdtemp
FOLDERS_PREFIX: Final = "msgtx-testing-"
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
        data = self.home / "data"
        running = postmaster.read_pid_file(data)
        if running is not None:
            os.kill(running.pid, signal.SIGQUIT)
            postmaster.wait_until(lambda: not postmaster.works_in(data, running.pid), embedded.STOP_S)
        embedded.start(self.home)


@contextlib.contextmanager
def given(url: str) -> Iterator[Postgres]:
    """Use a server that runs. `url`: of a role that may create databases."""
    with contextlib.closing(Postgres(url)) as server:
        yield server


@contextlib.contextmanager
def embedded_server() -> Iterator[Postgres]:
    """Run a server of this process alone, in memory if there is room: its files need not last."""
    memory = IN_MEMORY if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOM_BYTES else None
    _remove_deserted(memory or Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDERS_PREFIX}{os.getpid()}-", dir=memory))
    folder.chmod(0o755)  # as root, the server runs as another user
    try:
        started = embedded.start(folder / "home")
        server = Postgres(embedded.superuser_url(folder / "home"), started.url, folder / "home")
        with contextlib.ExitStack() as session:
            session.callback(server.leave)  # the databases go with the folder
            server.flush_nothing()
            yield server
    finally:
        embedded.stop(folder / "home")
        shutil.rmtree(folder)


def _remove_deserted(parent: Path) -> None:
    """Stop and remove the servers of runs that were killed."""
    for folder in parent.glob(f"{FOLDERS_PREFIX}*"):
        number = folder.name.removeprefix(FOLDERS_PREFIX).partition("-")[0]
        if number.isdigit() and not _lives(int(number)):
            with contextlib.suppress(OSError, MsgtxError):  # of another user, who removes it
                embedded.stop(folder / "home")
                shutil.rmtree(folder)


def _lives(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
