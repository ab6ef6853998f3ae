"""T3, the crash sweep: for n = 1, 2, 3 … a crash at the n-th boundary to the database, until there is no such boundary.

Three kinds of crash: the connection breaks (the same client continues), the process is killed (a successor with the same
transactional id continues), the server is killed and started again (what was not flushed is lost; the client, or a
successor, continues). Then everything is swept, read in every way, and compared with the oracle (I1–I5, I7–I10).
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import msgtx
from msgtx import errors
from tests.faults import READS, Action, CrashServer, Faults, lose_connection
from tests.oracle import Oracle
from tests.system.scenarios import RECOVERY, SCENARIOS, Journal, World, prepare, settle
from tests.system.sessions import SESSIONS
from tests.system.zygote import Zygote

pytestmark = pytest.mark.long

SEED: Final = 20_241_120
MOST: Final = 300  # boundaries of one scenario: more mean that a retry never ends
PROGRAMS: Final = {**SCENARIOS, **RECOVERY, **SESSIONS}
HERE: Final = [name for name in SCENARIOS if name != "spark"]  # that one has a module of its own
AGAIN: Final = 4  # crashes during the recovery from a crash, per scenario
# Timing decides how many batches share a call, so the number of boundaries varies a little. These are minimums.
BROKEN, KILLED, CRASHED = "connection breaks", "process killed", "server crashes"
# A process has the same boundaries whether it is killed or the server crashes.
PROCESS: Final = {
    "send": 6,
    "commit": 24,
    "fused": 8,
    "together": 14,
    "abort": 24,
    "zombie": 6,
    "timeout": 22,
    "spark": 50,
    "rebalance": 28,
    "sweep": 16,
    "share-fused": 20,
    "share-steps": 50,
    "share-dead": 18,
    "prepared": 17,
    "session": 19,
    "session-repeatable": 19,
    "session-serializable": 19,
    "publish": 8,
    "publish-repeatable": 17,
    "publish-serializable": 17,
    "consume": 8,
    "consume-repeatable": 14,
    "consume-serializable": 14,
}
BOUNDARIES: Final = {
    BROKEN: {
        "send": 8,
        "commit": 36,
        "fused": 18,
        "together": 20,
        "abort": 28,
        "zombie": 8,
        "timeout": 28,
        "spark": 80,
        "rebalance": 70,
        "recovery": 16,
        "sweep": 16,
        "share-fused": 20,
        "share-steps": 50,
        "share-dead": 16,
        "prepared": 40,
        "session": 50,
        "session-repeatable": 50,
        "session-serializable": 50,
        "publish": 18,
        "publish-repeatable": 36,
        "publish-serializable": 36,
        "consume": 26,
        "consume-repeatable": 38,
        "consume-serializable": 38,
    },
    KILLED: PROCESS,
    CRASHED: PROCESS,
}


def run(name: str, world: World, *, successor: bool = False) -> Oracle:
    """Run a program with its faults in this process; then its successor, if asked for, and the steps after it."""
    scenario = PROGRAMS[name]
    try:
        scenario.program(world)
        if successor:
            world.faults.on = False
            world.life += 1
            scenario.program(world)
        world.faults.on = False
        if scenario.after is not None:
            scenario.after(world)
    finally:
        world.faults.on = False
        world.close()
    return Oracle(world.note.events())


def begin(name: str, world: World) -> World:
    """Make a run's topics and its zombie; none of this is counted."""
    world.faults.on = False
    prepare(world, rows=PROGRAMS[name].rows)
    before = PROGRAMS[name].before
    if before is not None:
        before(world)
    world.faults.on = True
    return world


def judge(name: str, world: World, oracle: Oracle) -> None:
    settle(world, oracle, image=PROGRAMS[name].image, rows=PROGRAMS[name].rows)
    assert oracle.anomalies == [], f"{name}, run {world.run}: crashed at {world.faults.fired}"


def sweep(name: str, kind: str, attempt: Callable[[int], bool]) -> None:
    """Crash at boundary 1, 2, 3 …, until none fired twice in a row. `attempt` returns whether a crash fired."""
    count = missed = 0
    for n in range(1, MOST):
        try:
            fired = attempt(n)
        except Exception as error:
            error.add_note(f"{name}, {kind}, n = {n}")
            raise
        count += fired
        missed = 0 if fired else missed + 1
        if missed == 2:
            break
    print(f"{name}: {count} boundaries, {kind}")  # noqa: T201 - the number is part of the report
    assert BOUNDARIES[kind][name] <= count < MOST - 1


@pytest.mark.parametrize("name", [*HERE, *RECOVERY])
def test_a_connection_that_breaks_anywhere_loses_and_doubles_nothing(name: str, observer: msgtx.Client) -> None:
    break_everywhere(name, observer)


def break_everywhere(name: str, observer: msgtx.Client, elsewhere: str | None = None) -> None:
    def attempt(n: int) -> bool:
        faults = Faults({n: lose_connection})
        world = begin(name, World(observer, f"{name}-broken-{n}", Journal(), faults, elsewhere=elsewhere))
        judge(name, world, run(name, world))
        return bool(world.faults.fired)

    sweep(name, BROKEN, attempt)


@pytest.mark.parametrize("name", HERE)
def test_two_connections_that_break_one_after_the_other_lose_and_double_nothing(name: str, observer: msgtx.Client) -> None:
    break_twice(name, observer)


def break_twice(name: str, observer: msgtx.Client, elsewhere: str | None = None) -> None:
    chance = random.Random(SEED)
    for again in range(AGAIN):
        first = chance.randrange(1, BOUNDARIES[BROKEN][name] + 1)
        plan: dict[int, Action] = {first: lose_connection, first + chance.randrange(1, 6): lose_connection}
        world = begin(name, World(observer, f"{name}-twice-{again}", Journal(), Faults(plan), elsewhere=elsewhere))
        judge(name, world, run(name, world))


@pytest.mark.parametrize("name", HERE)
def test_a_process_that_is_killed_anywhere_has_a_successor_that_goes_on(
    name: str, observer: msgtx.Client, zygote: Zygote, tmp_path: Path
) -> None:
    kill_everywhere(name, observer, zygote, tmp_path)


def kill_everywhere(name: str, observer: msgtx.Client, zygote: Zygote, folder: Path, elsewhere: str | None = None) -> None:
    def attempt(n: int) -> bool:
        return killed(name, observer, zygote, folder, deaths=[n], elsewhere=elsewhere)

    sweep(name, KILLED, attempt)


@pytest.mark.parametrize("name", HERE)
def test_a_successor_that_is_killed_has_a_successor(
    name: str, observer: msgtx.Client, zygote: Zygote, tmp_path: Path
) -> None:
    kill_again(name, observer, zygote, tmp_path)


def kill_again(name: str, observer: msgtx.Client, zygote: Zygote, folder: Path) -> None:
    chance = random.Random(SEED)
    for _ in range(AGAIN):
        deaths = [chance.randrange(1, BOUNDARIES[KILLED][name] + 1) for _ in range(3)]
        killed(name, observer, zygote, folder, deaths=deaths)


def killed(
    name: str,
    observer: msgtx.Client,
    zygote: Zygote,
    folder: Path,
    *,
    deaths: list[int],
    elsewhere: str | None = None,
) -> bool:
    """Lives of one application, each killed at its boundary, but not the last one. Returns whether the first was killed."""
    path = folder / "-".join(map(str, deaths))
    world = begin(name, World(observer, f"{name}-killed-{path.name}", Journal(path), elsewhere=elsewhere))
    where = {"url": observer.secret_url, "elsewhere": elsewhere, "run": world.run, "journal": str(path)}
    ends: list[int] = []
    for number in [*deaths, 0]:
        ends.append(zygote.live(**where, name=name, life=world.life, die_at=number, before=name in SCENARIOS))
        assert ends[-1] in {0, -9}, f"{name}, lives killed at {deaths}: one ended with {ends[-1]}, see its output"
        world.life += 1
        if ends == [0]:
            break
    after = PROGRAMS[name].after
    if after is not None:
        after(world)
    world.close()
    judge(name, world, Oracle(Journal.read(path)))
    return ends[0] != 0


@pytest.mark.parametrize("name", HERE)
def test_a_server_that_crashes_anywhere_keeps_what_it_promised(name: str, crashing: CrashServer) -> None:
    crash_everywhere(name, crashing)


def crash_everywhere(name: str, crashing: CrashServer, elsewhere: str | None = None) -> None:
    url = crashing.server.create_database()
    chance = random.Random(SEED)

    def attempt(n: int) -> bool:
        # Another session flushes between two calls before the crash: only what follows that flush is lost.
        plan: dict[int, Action] = {n: crashing.crash_at}
        flush_at = chance.randrange(0, n)
        if flush_at:
            plan[flush_at] = crashing.flush_at
        with msgtx.connect(url) as observer:
            faults = Faults(plan, uncounted=READS, before=name in SCENARIOS)
            world = begin(name, World(observer, f"{name}-server-{n}", Journal(), faults, elsewhere=elsewhere))
            oracle = run(name, world, successor=n % 2 == 0)
        with msgtx.connect(url) as observer:
            world.observer = observer
            judge(name, world, oracle)
        return any("crash" in fired for fired in world.faults.fired)

    sweep(name, CRASHED, attempt)


def test_a_connection_that_breaks_while_the_pool_is_opened_is_a_passing_condition(database_url: str) -> None:
    for n in range(1, MOST):
        faults = Faults({n: lose_connection})
        engine = msgtx.database.pool.Engine(database_url, connect=faults.connect)
        try:
            with engine.connection():
                pass
        except errors.DatabaseUnavailable:
            with engine.connection():
                pass
        finally:
            engine.close()
        if not faults.fired:
            break
    assert n > 2
