"""The server process of a data folder, read from `postmaster.pid` and `/proc`.

A number in a file is not a process: the server may have been killed, another process may have its number, and a killed
process counts as running until it has ended.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgtx.errors import DatabaseUnavailable

READY_S = 120.0  # recovery replays at most max_wal_size; the children of a killed server finish their statement
POLL_S = 0.02
FLAGS_FIELD, EXITING = 6, 0x4  # of /proc/PID/stat, counted after the name: the kernel's PF_EXITING
PENDING_FIELD, SIGKILL_PENDING = 28, 1 << (signal.SIGKILL - 1)


@dataclass(frozen=True, slots=True)
class PidFile:
    """The content of `postmaster.pid`; `state` is `starting`, `ready`, `stopping` or `standby`."""

    pid: int
    port: int
    state: str


def read_pid_file(data: Path) -> PidFile | None:
    """Read the pid file: process, folder, start, port, socket, address, memory, state, a line each."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return None
    if not lines or not lines[0].isdigit():
        return None
    complete = len(lines) >= 8 and lines[3].isdigit()
    return PidFile(int(lines[0]), int(lines[3]) if complete else 0, lines[7].strip() if complete else "starting")


def settled(data: Path) -> PidFile | None:
    """Return the server once it is ready; None when none runs, or it ended while we waited."""
    deadline = time.monotonic() + READY_S
    while (found := read_pid_file(data)) is not None and runs(data, found.pid):
        if found.state == "ready":
            return found
        if time.monotonic() >= deadline:
            raise DatabaseUnavailable(f"the server of {data} has been {found.state} for {READY_S:.0f} s: see its log")
        time.sleep(POLL_S)
    return None


def runs(data: Path, pid: int) -> bool:
    """Return whether a process is the server of this folder, and not about to end."""
    return works_in(data, pid) and not _is_ending(pid)


def works_in(data: Path, pid: int) -> bool:
    """Return whether a process is one of PostgreSQL's in this folder."""
    process = Path("/proc", str(pid))
    try:
        state = _fields(pid)[0]
        name = (process / "comm").read_text().strip()
        return name == "postgres" and state not in "ZX" and (process / "cwd").readlink() == data.resolve()
    except OSError:
        return False  # it has ended, or belongs to another user and so not to this folder


def await_orphans(data: Path) -> None:
    """Wait for the children of a server that was killed: while one lives, the data must not be touched."""
    if not wait_until(lambda: not _processes(data), READY_S):
        left = ", ".join(map(str, _processes(data)))
        raise DatabaseUnavailable(f"processes {left} of a killed server still use {data}: end them")


def remove_misleading_pid_file(data: Path) -> None:
    """Remove a pid file if its number belongs to another program now, or to a dead process that was not reaped.

    PostgreSQL would take both for a living server. PostgreSQL itself handles every other pid file.
    """
    found = read_pid_file(data)
    if found is not None and Path("/proc", str(found.pid)).exists():
        (data / "postmaster.pid").unlink(missing_ok=True)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition until it holds; False when the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _processes(data: Path) -> list[int]:
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if works_in(data, pid)]


def _is_ending(pid: int) -> bool:
    try:
        fields = _fields(pid)
    except OSError:
        return True
    return bool(int(fields[FLAGS_FIELD]) & EXITING or int(fields[PENDING_FIELD]) & SIGKILL_PENDING)


def _fields(pid: int) -> list[str]:
    return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
