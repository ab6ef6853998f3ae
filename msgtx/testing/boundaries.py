"""A job, run once for each boundary between it and its database, and broken exactly there."""

import itertools
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

import pytest

from msgtx.client import Client, connect
from msgtx.database import opening
from msgtx.database.throwaway import set_clock
from msgtx.testing.server import Postgres
from msgtx.testing.wire import Plan, Side, Wire, WireCall

Break = Literal["lost call", "lost answer", "killed", "zombie"]
Job = Callable[[Client], object]
BREAKS: Final[tuple[Break, ...]] = ("lost call", "lost answer", "killed", "zombie")
MOST: Final = 500  # boundaries of a job: more mean that it does not end
RESTARTS: Final = 3  # of a job that the break has ended, as a supervisor does
LIFE_SECONDS: Final = 60.0  # one life of a job
LATER: Final = timedelta(minutes=10)  # after which a dead process has lost its seat, its locks, and its transaction


@dataclass(frozen=True, slots=True)
class Broken:
    """Where a run was broken. `number`: of the call that writes, from 1."""

    kind: Break
    number: int
    call: str = ""

    def __str__(self) -> str:
        """Return it as a sentence says it."""
        where = f"call {self.number}, {self.call}" if self.call else f"call {self.number}"
        return {
            "lost call": f"the connection broke before {where}",
            "lost answer": f"the connection broke after {where}, before its answer came",
            "killed": f"the process was killed after {where}",
            "zombie": f"the process stood still before {where}, and went on when another one had done its work",
        }[self.kind]


class Boundaries:
    """The runs of one job on copies of a database."""

    def __init__(self, server: Postgres, base: str, job: Job, check: Job) -> None:
        self._server = server
        self._base = base
        self._job = job
        self._check = check

    def run(self, kinds: Sequence[Break]) -> int:
        """Break the job at each boundary in each of these ways. Returns the number of runs that were broken.

        Raise `AssertionError`, caused by what `check` has raised, with the boundary.
        """
        broken = 0
        for kind in kinds:
            for number in itertools.count(1):
                if not self.attempt(kind, number):
                    break
                broken += 1
                assert number < MOST, f"the job makes more than {MOST} calls that write: does it end?"
        return broken

    def attempt(self, kind: Break, number: int) -> bool:
        """Break one run there, and check what it has left. Returns whether it came so far."""
        url = self._server.copy(self._base)
        wire = Wire(url)
        try:
            plan = Plan(_at(number, "after" if kind in {"lost answer", "killed"} else "before"), _nothing)
            with _environment(wire.url):
                {"killed": self._kill, "zombie": self._outlive}.get(kind, self._break)(wire, plan, url)
            if plan.fired.is_set():
                self._judge(url, Broken(kind, number, wire.calls[number - 1]))
            return plan.fired.is_set()
        finally:
            wire.close()
            self._server.drop(url)

    def _judge(self, url: str, broken: Broken) -> None:
        with _environment(url), connect(url) as client:
            try:
                self._check(client)
            except Exception as error:
                raise AssertionError(
                    f"{broken}: then the check failed with {type(error).__name__}: {error}"
                    f" (again: every_boundary(…, only=({broken.kind!r}, {broken.number})))"
                ) from error

    def _break(self, wire: Wire, plan: Plan, url: str) -> None:
        wire.plan(plan)
        for life in itertools.count():
            try:
                self._live(wire.url)
            except Exception:
                if not plan.fired.is_set() or life == RESTARTS:
                    raise
            else:
                return

    def _live(self, url: str) -> None:
        with connect(url) as client:
            self._job(client)

    def _kill(self, wire: Wire, plan: Plan, url: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the child uses none of theirs
            child = os.fork()
        if child == 0:
            self._be_child(wire.url)
        plan.action = lambda: os.kill(child, signal.SIGKILL)
        wire.plan(plan)
        ended = _await(child)
        if plan.fired.is_set():
            set_clock(url, LATER)
            self._live(wire.url)
        elif ended:
            raise AssertionError("the job failed by itself, before anything was broken: see its traceback")

    def _be_child(self, url: str) -> None:
        code = 1
        try:
            self._live(url)
            code = 0
        except BaseException:  # noqa: BLE001 - the process ends here, whatever it is
            traceback.print_exc()
        finally:
            os._exit(code)

    def _outlive(self, wire: Wire, plan: Plan, url: str) -> None:
        plan.holds = True
        wire.plan(plan)
        errors: list[BaseException] = []

        def first() -> None:
            try:
                self._live(wire.url)
            except Exception as error:  # noqa: BLE001 - a zombie is refused, and says so
                errors.append(error)

        thread = threading.Thread(target=first, name="msgtx-zombie", daemon=True)
        thread.start()
        while thread.is_alive() and not plan.fired.wait(0.005):
            pass
        if plan.fired.is_set():
            set_clock(url, LATER)
            with _environment(url):
                self._live(url)
            wire.thaw()
        thread.join(LIFE_SECONDS)
        assert not thread.is_alive(), f"the job did not end within {LIFE_SECONDS:g} s"
        if errors and not plan.fired.is_set():
            raise errors[0]


def _at(number: int, side: Side) -> Callable[[WireCall, Side], bool]:
    return lambda call, reached: call.number == number and reached == side


def _nothing() -> None:
    """Break the connection, and nothing else."""


def _await(child: int) -> int:
    """Return how a child has ended; one that does not is killed."""
    over = threading.Timer(LIFE_SECONDS, lambda: os.kill(child, signal.SIGKILL))
    over.start()
    try:
        return os.waitpid(child, 0)[1]
    finally:
        over.cancel()


@contextmanager
def _environment(url: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(opening.VARIABLE, url)
        yield
