"""A life of a job: a process of its own, which can be killed, and can stand still."""

import asyncio
import contextlib
import ctypes
import faulthandler
import inspect
import logging
import os
import select
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final, NoReturn

import pytest

from msgtx.client import connect
from msgtx.database import opening
from msgtx.testing import django

Function = Callable[..., object]
Job = Function | Sequence[str]
LIFE_SECONDS: Final = 60.0  # one life of a job
DYING_SECONDS: Final = 10.0  # what a process takes to show its stack
WARNINGS_AT_MOST: Final = 5  # of the last ones, at the beginning of an error
SHOWN_BYTES: Final = 20_000  # of what a job has printed, in an error: the stacks of some threads
DIES_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of Linux


class JobFailed(AssertionError):
    """A job ended with an exception, with an exit status, or not at all: see what it has printed."""


def call_function(function: Function, url: str) -> object:
    """Call a user's function: with a client of `url`, of asyncio for a coroutine function; without if it takes nothing.

    Django's database is `url`, too. Raise `TypeError` for a function that returns an awaitable: nothing of it has run.
    """
    with named(url), django.led_to(url):
        takes = bool(inspect.signature(function).parameters)
        if inspect.iscoroutinefunction(function):
            return asyncio.run(_await(function, url if takes else None))
        if takes:
            with connect(url) as client:
                result = function(client)
        else:
            result = function()
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"{function!r} returned an awaitable: write it with `async def`")
    return result


async def _await(function: Callable[..., Any], url: str | None) -> object:
    if url is None:
        return await function()
    from msgtx import aio

    async with await aio.connect(url) as client:
        return await function(client)


@contextmanager
def life(job: Job, url: str) -> Iterator["Life"]:
    """Have a life of a job, not begun, that does not last longer than the block."""
    one = Life(job, url)
    try:
        yield one
    finally:
        one.end()


class Life:
    """One life of a job, with the database in `MSGTX_DATABASE_URL`. Its threads and children end with it.

    A function runs in a fork of this process: what it leaves in memory is gone with it.
    """

    def __init__(self, job: Job, url: str) -> None:
        self._job, self._url, self._seconds = job, url, LIFE_SECONDS
        self._begun, self._lock = threading.Event(), threading.Lock()
        self._pid: int | None = None
        # What it printed, its log at WARNING and above, and the exception that has ended it.
        self._printed, self._warned, self._raised = (tempfile.TemporaryFile() for _ in range(3))  # noqa: SIM115 - `end` closes

    def start(self) -> None:
        """Start the process."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the child uses none of theirs
            self._pid = os.fork()
        if self._pid == 0:
            self._live()
        self._begun.set()

    def kill(self) -> None:
        """Kill it, at whatever it is. For any thread, also before it has begun."""
        self._signal(signal.SIGKILL)

    def stand_still(self) -> None:
        """Stop it, as a machine does that is paused."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue it."""
        self._signal(signal.SIGCONT)

    def wait(self, until: threading.Event | None = None, *, may_fail: bool = False) -> bool:
        """Wait for its end, or for an event. Returns whether it has ended. Raise `JobFailed`, with its stack if it hangs."""
        deadline = time.monotonic() + self._seconds
        while not self._has_ended(0.002 if until is not None else deadline - time.monotonic()):
            if until is not None and until.is_set():
                return False
            if time.monotonic() >= deadline:
                self._signal(signal.SIGABRT)
                self._has_ended(DYING_SECONDS)
                raise JobFailed(
                    f"the job did not end within {self._seconds:g} s{self._warnings()}; its stack:\n{_read(self._printed)}"
                )
        status = self._reap()
        if status != 0 and not may_fail:
            raised = _read(self._raised) or f"it printed at last: {_read(self._printed).rpartition(chr(10))[2] or 'nothing'}"
            raise JobFailed(
                f"the job ended with {_words(status)}: {raised}{self._warnings()}\nit printed:\n{_read(self._printed)}"
            )
        return True

    def wait_for_fault(self, fired: threading.Event) -> bool:
        """Wait for its end. Returns whether the fault has come; only then it may have failed, else raise `JobFailed`."""
        try:
            self.wait()
        except JobFailed:
            if not fired.is_set():
                raise
        return fired.is_set()

    def end(self) -> None:
        """Kill it if it runs, with what it has started."""
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            self.kill()
            self._reap()
        for each in (self._printed, self._warned, self._raised):
            each.close()

    def _signal(self, number: int) -> None:
        self._begun.wait()
        with self._lock:  # the number is another process's once this one is reaped
            if self._pid is not None:
                try:
                    os.killpg(self._pid, number)  # with what it has started
                except ProcessLookupError:  # it has no group of its own yet
                    os.kill(self._pid, number)

    def _has_ended(self, seconds: float) -> bool:
        if self._pid is None:
            return True
        handle = os.pidfd_open(self._pid)
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return bool(poll.poll(max(0.0, seconds) * 1000))
        finally:
            os.close(handle)

    def _reap(self) -> int:
        with self._lock:
            if self._pid is None:
                return 0
            pid, self._pid = self._pid, None
            _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # a group of its own: what it has started
            os.killpg(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status)

    def _warnings(self) -> str:
        """Return its last warnings as lines of their own, each once."""
        last = [*dict.fromkeys(_read(self._warned).splitlines())][-WARNINGS_AT_MOST:]
        return "".join(f"\n  it warned: {each}" for each in last)

    def _live(self) -> NoReturn:
        """Be the process, to its end."""
        code = 1
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
            for number in (1, 2):
                os.dup2(self._printed.fileno(), number)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if not callable(self._job):
                with named(self._url):
                    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
                    os.execvpe(self._job[0], [*self._job], environment)  # noqa: S606 - the caller's command line
            faulthandler.enable(2)
            django.forget_connections()
            logging.getLogger().addHandler(_Warnings(self._warned.fileno()))
            code = _run(self._job, self._url)
        except BaseException as error:  # noqa: BLE001 - the process ends here, whatever it is
            os.write(2, traceback.format_exc().encode(errors="replace"))
            os.write(self._raised.fileno(), "".join(traceback.format_exception_only(error)).encode(errors="replace"))
        finally:
            os._exit(code)


def _run(job: Function, url: str) -> int:
    import sys

    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    try:
        call_function(job, url)
    except SystemExit as exited:
        return exited.code if isinstance(exited.code, int) else int(exited.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


class _Warnings(logging.Handler):
    """Writes the log of a process into a file, a line for each record. Its own handlers may be those of pytest."""

    def __init__(self, file: int) -> None:
        super().__init__(logging.WARNING)
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # an argument that does not fit its message is not this test's matter
            line = " ".join(f"{record.name}: {record.getMessage()}".split())
            os.write(self._file, f"{line}\n".encode(errors="replace"))


def _read(file: IO[bytes]) -> str:
    """Return the end of a file."""
    size = os.fstat(file.fileno()).st_size
    told = os.pread(file.fileno(), SHOWN_BYTES, max(0, size - SHOWN_BYTES))
    return ("…" if size > SHOWN_BYTES else "") + told.decode(errors="replace").strip()


def _words(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


@contextmanager
def named(url: str) -> Iterator[None]:
    """Name a database in the environment, and no standby."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(opening.VARIABLE, url)
        patched.delenv(opening.READ_VARIABLE, raising=False)
        yield
