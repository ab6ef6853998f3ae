"""Faults between a program under test and its database, at chosen boundaries, or at every one."""

import threading
from collections.abc import Callable, Sequence

from msgtx import units
from msgtx.testing.boundaries import BREAKS, Boundaries, Break, Job
from msgtx.testing.server import Postgres
from msgtx.testing.wire import Plan, Side, Wire, WireCall
from msgtx.units import Duration


class Faults:
    """What may go wrong on the wire to the test's database. `url` leads over it."""

    def __init__(self, server: Postgres, url: str) -> None:
        self._server = server
        self._direct = url
        self.wire = Wire(url)
        self.url = self.wire.url

    def close(self) -> None:
        """End all connections over the wire."""
        self.wire.close()

    def lost_answer(self, call: str) -> Plan:
        """Have the next call of this name be done, and its answer be lost.

        A name is a function of msgtx (`decide`), or how a statement begins (`insert into shop_order`, `commit`).
        """
        return self.wire.plan(Plan(_at(call, "after"), _nothing))

    def lost_call(self, call: str) -> Plan:
        """Have the next call of this name not reach the server, and its connection break."""
        return self.wire.plan(Plan(_at(call, "before"), _nothing))

    def crash_server(self) -> None:
        """Kill the server and start it again: all connections break, and what was not flushed is lost."""
        self._server.crash()

    def outage(self, lasting: Duration) -> None:
        """End all connections, and refuse others for so long. Returns at once."""
        seconds = units.wait_seconds("lasting", lasting)
        self.wire.leave()
        timer = threading.Timer(seconds, self.wire.come_back)
        timer.daemon = True
        timer.start()

    def every_boundary(
        self, job: Job, check: Job, *, kinds: Sequence[Break] = BREAKS, only: tuple[Break, int] | None = None
    ) -> int:
        """Run `job(client)` once for each call that writes, broken exactly there, and each time have `check(client)` look.

        Each run begins with a copy of the test's database as it is now; its open connections are ended. A job that the
        break has ended with an exception is started again, as a supervisor does. `only`: one run, as the error names it.
        Returns the number of broken runs. Raise `AssertionError` with the boundary, caused by what `check` has raised.
        """
        base = self._server.copy(self._direct)
        try:
            runs = Boundaries(self._server, base, job, check)
            return runs.run(kinds) if only is None else int(runs.attempt(*only))
        finally:
            self._server.drop(base)


def _at(name: str, side: Side) -> Callable[[WireCall, Side], bool]:
    wanted = name.casefold()

    def is_it(call: WireCall, reached: Side) -> bool:
        return reached == side and (wanted in call.name.split(", ") or call.name.casefold().startswith(wanted))

    return is_it


def _nothing() -> None:
    """Break the connection, and nothing else."""
