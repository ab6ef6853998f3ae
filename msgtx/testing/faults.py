"""Faults between a program under test and its database, at chosen boundaries, or at every one."""

import contextlib
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, Self

import sqlalchemy

from msgtx import arguments, units
from msgtx.database.embedded.follower import Follower
from msgtx.errors import ConfigError
from msgtx.testing import lives, protocol
from msgtx.testing.boundaries import BREAKS, Boundaries, Break, FaultNotReached, Say, Tell, going_on
from msgtx.testing.lives import Function, Job
from msgtx.testing.naming import shortened
from msgtx.testing.server import Postgres, crash
from msgtx.testing.wire import Plan, Side, Wire, WireCall
from msgtx.units import Duration

RUNS_TIMEOUT: Final = "15m"
# What ends the reading of records, in any way that msgtx has: offsets, or answers of a share group.
WRITES_OFFSETS: Final = frozenset(
    {
        *("commit_offsets", "commit_in_session", "decide", "append_and_decide", "decide_sealed", "seal"),
        *("acknowledge_records", "acknowledge"),
    }
)


class Loss:
    """A loss that is planned. It must come by the end of the test, or within the block: `with msgtx_faults.lost_call(…):`.

    Else the test fails with `FaultNotReached`. `fired`: an event that is set when it has come.
    """

    def __init__(self, wire: Wire, call: str, side: Side) -> None:
        self._wire, self._call = wire, call
        self._before = len(wire.calls)
        self._plan = wire.plan(Plan(_at(call, side), _nothing))
        self._told = False
        self.fired = self._plan.fired

    def require(self) -> None:
        """Raise `FaultNotReached` if it has not come. It is raised once."""
        __tracebackhide__ = True
        if not self.fired.is_set() and not self._told:
            self._told = True
            came = [each.name for each in self._wire.calls[self._before :]]
            raise FaultNotReached(self._call, came, told=f"no call {self._call!r} was lost")

    def __enter__(self) -> Self:
        """Begin the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Lose no later call. Raise `FaultNotReached` if none was lost, unless the block has raised."""
        self._wire.forget(self._plan)
        if kind is None:
            self.require()


class Faults:
    """What may go wrong on the wire to the test's database. `url` leads over it."""

    def __init__(self, server: Postgres, url: str, say: Say | None = None, tell: Tell | None = None) -> None:
        self._server = server
        self._say = say or _say_nothing
        self._tell = tell or _tell_nothing
        self._ended = contextlib.ExitStack()
        self._direct = url
        self._home = server.home  # of the server that the wire leads to
        self._losses: list[Loss] = []
        self.wire = Wire(url)
        self.url = self.wire.url

    def close(self) -> None:
        """End all connections over the wire, and the standbys."""
        self.wire.close()
        self._ended.close()

    def require_reached(self) -> None:
        """Raise `FaultNotReached` for a call that was to be lost, and did not come. The plugin asks at the end of a test."""
        __tracebackhide__ = True
        for each in self._losses:
            each.require()

    def lost_answer(self, call: str) -> Loss:
        """Have the next call of this name be done, and its answer be lost.

        A name is a function of msgtx (`decide`), or how a statement begins (`insert into shop_order`, `commit`). If there is
        no such call by the end of the test, it fails with `FaultNotReached`; with `with`, by the end of the block.
        """
        return self._lose(call, "after")

    def lost_call(self, call: str) -> Loss:
        """Have the next call of this name not reach the server, and its connection break. Else as `lost_answer`."""
        return self._lose(call, "before")

    def _lose(self, call: str, side: Side) -> Loss:
        self._losses.append(Loss(self.wire, call, side))
        return self._losses[-1]

    def crash_server(self) -> None:
        """Kill the server and start it again: all connections break. Raise `ConfigError` for a server that was given.

        What was committed stays; what PostgreSQL had not written yet, such as the last moments of transactions with
        `synchronous_commit=off`, may be lost. It does not show a power failure: the kit's server flushes nothing to disk.
        """
        if self._home is None or self._home == self._server.home:
            self._server.crash()
        else:
            crash(self._home)

    def failover(self, losing: Callable[[], object] | None = None) -> None:
        """Have a standby take over, as after the loss of a primary. Connections break, and lead to the standby from then on.

        `losing()` is called before that; what it commits on the old primary has not reached the standby, and is lost. The
        old primary goes on for other tests. `msgtx_clock` and `every_boundary` still lead to it. Each further failover has a
        standby of the server that took over last. Raise `ConfigError` for a server that was given.
        """
        if self._home is None:
            raise ConfigError("only an embedded server has a standby: leave out --msgtx-url", name="url")

        home = self._home.parent / f"standby-{secrets.token_hex(4)}"
        standby = Follower(self._home, home)
        self._ended.callback(standby.remove)
        if losing is not None:
            standby.fall_behind()
            losing()
        self.wire.leave()
        try:
            if losing is None:
                standby.catch_up()
            standby.promote()
            self.wire.lead_to(sqlalchemy.make_url(self._direct).set(port=standby.port).render_as_string(hide_password=False))
            self._home = home
        finally:
            self.wire.come_back()

    def outage(self, lasting: Duration) -> None:
        """End all connections, and refuse others for so long. Returns at once.

        Of several outages at a time, the one that ends last counts.
        """
        seconds = units.wait_seconds("lasting", lasting)
        self.wire.leave()
        timer = threading.Timer(seconds, self.wire.come_back)
        timer.daemon = True
        timer.start()
        self._ended.callback(timer.cancel)

    @contextmanager
    def zombie(self, job: Job, *, before: str) -> Iterator[None]:
        """Run a job in a process that stands still before its first call of this name, within the block.

        Other processes can do its work there; `msgtx_clock.move("10m")` has the database take it for dead, and its session
        ends when others wait for a lock of it. At the end of the block it goes on, and its end is awaited, however it ends:
        it should be refused. Raise `FaultNotReached` if it ends before such a call.
        """
        with (
            lives.life(job, self.url) as life,
            self._planned(Plan(_at(before, "before"), life.stand_still, holds=True)) as plan,
        ):
            came = len(self.wire.calls)
            life.start()
            if life.wait(plan.fired):
                raise self._not_reached(before, came)
            with going_on(life, self.wire, self._server, self._direct):
                yield

    def killed(
        self,
        job: Job,
        *,
        before: str | None = None,
        after: str | None = None,
        between: Literal["rows and offsets"] | None = None,
    ) -> None:
        """Run a job in a process, and kill it `before` or `after` its first call of this name.

        `between="rows and offsets"`: behind a statement of its own, before the call that writes the offsets of its records.
        `msgtx_clock.move("10m")` then has the database take it for dead, so that another one gets its work at once. Raise
        `FaultNotReached` if it ends before such a call.
        """
        given = [each for each in (before, after, between) if each is not None]
        if len(given) != 1 or (between is not None and between != "rows and offsets"):
            raise ConfigError('killed takes one of before=, after= and between="rows and offsets"', name="between")
        if between is not None:
            is_it = _between_rows_and_offsets()
        else:
            is_it = _at(before, "before") if before is not None else _at(str(after), "after")
        with lives.life(job, self.url) as life, self._planned(Plan(is_it, life.kill)) as plan:
            came = len(self.wire.calls)
            life.start()
            if not life.wait_for_fault(plan.fired):
                raise self._not_reached(given[0], came)

    def every_boundary(
        self,
        job: Job,
        check: Function,
        *,
        kinds: Sequence[Break] = BREAKS,
        only: tuple[Break, str] | None = None,
        timeout: Duration = RUNS_TIMEOUT,
    ) -> int:
        """Run `job(client)` once for each call that writes, broken exactly there, and each time have `check(client)` look.

        `job` is a function or a coroutine function; one without parameters connects by itself to `MSGTX_DATABASE_URL`, as a
        command line does: `["python", "worker.py"]`. It ends when its work is done. Each run is a process, with a copy of
        the test's database as it is now, whose open connections are ended. A job that ended with an exception is started
        again, as a supervisor does. What it leaves in memory is gone: `check` looks into the database, or into files.

        `kinds`: `lost call` and `lost answer` break the connection; `killed` kills the process, and starts it again;
        `zombie` stops the process until another one has done its work, and has it go on. `only`: one run, as the error
        names it. Returns the number of broken runs. Raise `AssertionError` with the boundary, caused by what `check` has
        raised; also if the job or the check fails without any fault. Raise `FaultNotReached` for a call that the run without
        a fault made, and that no broken run came to. pytest's summary lists what one of the `kinds` did not reach.
        """
        seconds = units.wait_seconds("timeout", timeout)
        for each in kinds if only is None else only[:1]:
            arguments.one_of("kinds", each, BREAKS)
        base = self._server.copy(self._direct)
        try:
            runs = Boundaries(self._server, base, job, check, reading=self.wire.reading, say=self._say, tell=self._tell)
            return runs.run(kinds, None, seconds) if only is None else runs.run(only[:1], only[1], seconds)
        finally:
            self._server.drop(base)

    @contextmanager
    def _planned(self, plan: Plan) -> Iterator[Plan]:
        """Have a plan within the block: it is not for later calls."""
        self.wire.plan(plan)
        try:
            yield plan
        finally:
            self.wire.forget(plan)

    def _not_reached(self, call: str, came: int) -> FaultNotReached:
        names = [each.name for each in self.wire.calls[came:]]
        return FaultNotReached(call, names, told=f"the job ended, and was not broken at {call!r}")


def _at(name: str, side: Side) -> Callable[[WireCall, Side], bool]:
    wanted = shortened(protocol.plain(name)).casefold()
    begins = re.compile(rf"{re.escape(wanted)}(?:(?<=\W)|(?!\w))")  # with whole words

    def is_it(call: WireCall, reached: Side) -> bool:
        return reached == side and (wanted in call.name.split(", ") or begins.match(call.name.casefold()) is not None)

    return is_it


def _between_rows_and_offsets() -> Callable[[WireCall, Side], bool]:
    has_rows = False

    def is_it(call: WireCall, reached: Side) -> bool:
        nonlocal has_rows
        if reached == "after":
            return False
        functions = call.name.split(", ")
        if has_rows and not WRITES_OFFSETS.isdisjoint(functions):
            return True
        has_rows = has_rows or protocol.is_statement(call.name) or "append" in functions
        return False

    return is_it


def _say_nothing(text: str, stays: bool) -> None:
    """Show nothing: there is no terminal, or it is quiet."""


def _tell_nothing(text: str) -> None:
    """Tell nobody: there is no run of pytest."""


def _nothing() -> None:
    """Break the connection, and nothing else."""
