"""A job, run once for each boundary between it and its database, and broken exactly there."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from msgtx.database.throwaway import set_clock
from msgtx.testing import lives
from msgtx.testing.lives import Function, Job, JobFailed, Life, call_function
from msgtx.testing.server import Postgres
from msgtx.testing.wire import Plan, Side, Wire, WireCall

Break = Literal["lost call", "lost answer", "killed", "zombie"]
Say = Callable[[str, bool], object]  # a line of progress, and whether it stays
Tell = Callable[[str], object]  # a boundary to which no run came, for the summary
BREAKS: Final[tuple[Break, ...]] = ("lost call", "lost answer", "killed", "zombie")
AFTER: Final = frozenset({"lost answer", "killed"})
MOST: Final = 500  # boundaries of a job: more mean that it does not end
RESTARTS: Final = 3  # of a job that the break has ended, as a supervisor does
ATTEMPTS: Final = 3  # at a boundary that a run does not come to, since its threads took turns in another way
COPIES_AHEAD: Final = 2  # that are ready, so that no run waits for its database
LATER: Final = timedelta(minutes=10)  # after which a dead process has lost its seat, its locks, and its transaction


class FaultNotReached(AssertionError):
    """A fault was planned at a call that did not come. `call`: its name; `calls`: the names of those that came."""

    def __init__(self, call: str, calls: Iterable[str], *, told: str) -> None:
        self.call = call
        self.calls = tuple(dict.fromkeys(calls))
        came = ", ".join(f"`{each}`" for each in self.calls) or "none"
        super().__init__(
            f"{told}; the calls that came: {came} (calls that only read and those of background threads do not count)"
        )


@dataclass(frozen=True, slots=True)
class Broken:
    """Where a run was broken. `before` and `after`: the calls next to it, as far as they are known."""

    kind: Break
    place: str
    after: str | None
    before: str | None

    def __str__(self) -> str:
        """Return it as a sentence says it."""
        where = " and ".join(
            f"{side} `{call.removesuffix(' #1')}`" for side, call in (("after", self.after), ("before", self.before)) if call
        )
        return {
            "lost call": f"the connection broke {where}",
            "lost answer": f"the connection broke {where}, and the answer of the first was lost",
            "killed": f"the process was killed {where}",
            "zombie": f"the process stood still {where}, and went on when another one had done its work",
        }[self.kind]


@contextmanager
def going_on(life: Life, wire: Wire, server: Postgres, url: str) -> Iterator[None]:
    """Have a life that stands still go on at the end of the block, and await its end. `url`: of the database, directly."""
    with server.ending_holders(url):
        yield
    wire.thaw()
    life.go_on()
    life.wait(may_fail=True)  # it is refused, and says so


class Boundaries:
    """The runs of one job on copies of a database."""

    def __init__(
        self, server: Postgres, base: str, job: Job, check: Function, *, reading: frozenset[str], say: Say, tell: Tell
    ) -> None:
        self._server, self._base = server, base
        self._job, self._check = job, check
        self._reading, self._say, self._tell = reading, say, tell
        self._reached: set[str] = set()
        self._copies: list[Future[str]] = []
        self._places: list[str] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="msgtx-copies")

    def run(self, kinds: Sequence[Break], only: str | None, seconds: float) -> int:
        """Break the job at each boundary in each of these ways, or at `only` one. Returns the number of broken runs.

        Raise `AssertionError`, caused by what `check` has raised, with the boundary; `FaultNotReached` for a call that the
        run without a fault made, and that no broken run came to.
        """
        deadline = time.monotonic() + seconds
        try:
            self._find_places()
            wanted = [*self._places] if only is None else [only]
            broken = 0
            for kind in kinds:
                found = 0
                for number, place in enumerate(self._places if only is None else [only], start=1):
                    assert number < MOST, f"the job makes more than {MOST} calls that write: does it end?"
                    assert time.monotonic() < deadline, (
                        f"{broken} runs in {seconds:g} s, and the job is broken {kind!r} before boundary {number} of"
                        f" {len(self._places)}: every_boundary(…, timeout=…) permits more"
                    )
                    self._say(f"{kind} {number}/{len(self._places)}: {place}", False)
                    found += self._break(kind, place)
                self._say(f"{kind}: {found} boundaries, and the check holds at each", True)
                broken += found
            self._require_reached(wanted)
            return broken
        finally:
            self._close()

    def _find_places(self) -> None:
        """Run the job without a fault. Raise `AssertionError` if that fails, or asks the database for nothing."""
        with self._database() as (url, wire), lives.life(self._job, wire.url) as life:
            try:
                life.start()
                life.wait()
            except JobFailed as failed:
                raise AssertionError(f"without any fault, {failed}") from None
            self._note(wire.calls)
            try:
                self._look(url)
            except Exception as error:
                raise AssertionError(f"without any fault, the check failed with {_told(error)}") from error
        assert self._places, (
            "the job has written nothing to the database, so there is no boundary to break it at: does it connect to"
            " MSGTX_DATABASE_URL, or to the client that it is given, and does it find records?"
        )

    def _look(self, url: str) -> None:
        if call_function(self._check, url) is False:
            raise AssertionError("it returned False: have it raise an error, as `assert` does")

    def _require_reached(self, wanted: Sequence[str]) -> None:
        """Raise `FaultNotReached` for a call that no run came to at any number.

        How often a worker makes a call may differ: from one poll to the next it gets one record or two.
        """
        reached = {_name(each) for each in self._reached}
        if missed := [each for each in wanted if _name(each) not in reached]:
            raise FaultNotReached(
                missed[0],
                self._places if missed == wanted else sorted(reached),
                told=f"no broken run came to {', '.join(f'`{each}`' for each in missed)}:"
                " the job, or the name of the call, differs from run to run",
            )

    def _note(self, calls: Sequence[WireCall]) -> None:
        known = {*self._places}
        self._places += [each.place for each in calls if each.place not in known]

    def _break(self, kind: Break, place: str) -> bool:
        for _ in range(ATTEMPTS):
            if self._attempt(kind, place):
                self._reached.add(place)
                return True
        self._tell(f"{kind}: {place}")
        self._say(f"{kind}: {ATTEMPTS} runs did not come to {place}", True)
        return False

    def _attempt(self, kind: Break, place: str) -> bool:
        """Break one run there, and check what it has left. Returns whether it came so far."""
        with self._database() as (url, wire):
            plan = Plan(_at(place, "after" if kind in AFTER else "before"), _nothing)
            try:
                {"killed": self._kill, "zombie": self._outlive}.get(kind, self._lose)(wire, plan, url)
            except JobFailed as failed:
                if not plan.fired.is_set():
                    raise AssertionError(f"the job failed by itself, before anything was broken: {failed}") from None
                raise AssertionError(f"{self._broken(kind, place, wire)}: then {failed}{_again(kind, place)}") from None
            before = [each.place for each in wire.calls]
            self._note(wire.calls[: before.index(place) if place in before else None])
            if plan.fired.is_set():
                try:
                    self._look(url)
                except Exception as error:
                    broken = self._broken(kind, place, wire)
                    raise AssertionError(
                        f"{broken}: then the check failed with {_told(error)}{_again(kind, place)}"
                    ) from error
            return plan.fired.is_set()

    def _broken(self, kind: Break, place: str, wire: Wire) -> Broken:
        calls = [each.place for each in wire.calls]
        previous = dict(zip(calls[1:], calls, strict=False)).get(place)
        following = dict(zip(self._places, self._places[1:], strict=False)).get(place)
        return Broken(kind, place, place, following) if kind in AFTER else Broken(kind, place, previous, place)

    def _lose(self, wire: Wire, plan: Plan, url: str) -> None:
        wire.plan(plan)
        try:
            self._live(wire.url)
        except JobFailed:
            if not plan.fired.is_set():
                raise
            self._restart(url)

    def _kill(self, wire: Wire, plan: Plan, url: str) -> None:
        with lives.life(self._job, wire.url) as life:
            plan.action = life.kill
            wire.plan(plan)
            life.start()
            came = life.wait_for_fault(plan.fired)
        if came:
            set_clock(url, LATER)
            self._restart(url)

    def _outlive(self, wire: Wire, plan: Plan, url: str) -> None:
        with lives.life(self._job, wire.url) as life:
            plan.holds, plan.action = True, life.stand_still
            wire.plan(plan)
            life.start()
            if life.wait(plan.fired):
                return
            with going_on(life, wire, self._server, url):
                set_clock(url, LATER)
                self._restart(url)

    def _restart(self, url: str) -> None:
        """Start the job again, as a supervisor does."""
        for life in range(RESTARTS):
            try:
                self._live(url)
            except JobFailed:
                if life == RESTARTS - 1:
                    raise
            else:
                return

    def _live(self, url: str) -> None:
        with lives.life(self._job, url) as life:
            life.start()
            life.wait()

    @contextmanager
    def _database(self) -> Iterator[tuple[str, Wire]]:
        while len(self._copies) < COPIES_AHEAD:
            self._copies.append(self._pool.submit(self._server.copy, self._base))
        url = self._copies.pop(0).result()
        try:
            wire = Wire(url, self._reading)
            try:
                yield url, wire
            finally:
                wire.close()
        finally:
            self._pool.submit(self._server.drop, url)  # if that fails, the end of the run tries again, and warns

    def _close(self) -> None:
        for copy in self._copies:
            if not copy.cancel():
                self._pool.submit(self._drop, copy)
        self._pool.shutdown()

    def _drop(self, copy: "Future[str]") -> None:
        self._server.drop(copy.result())


def _at(place: str, side: Side) -> Callable[[WireCall, Side], bool]:
    return lambda call, reached: reached == side and call.place == place


def _name(place: str) -> str:
    return place.rpartition(" #")[0]


def _nothing() -> None:
    """Break the connection, and nothing else."""


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _again(kind: Break, place: str) -> str:
    return f" (again: every_boundary(…, only=({kind!r}, {place!r})))"
