"""T3, the crash sweep: for n = 1, 2, 3 … a crash at the n-th boundary to the database, until there is no such boundary.
With `--part` for each ninth n (tests/parts.py).

Three kinds of crash: the connection breaks (the same client continues), the process is killed (a successor with the same
transactional id continues), the server is killed and started again (what was not flushed is lost; the client, or a
successor, continues). Then everything is swept, read in every way, and given to the checker (I1–I5, I7–I10).
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

import msgtx
from msgtx import errors
from tests import parts
from tests.faults import READS, Action, CrashServer, Faults, lose_connection
from tests.system.scenarios import RECOVERY, SCENARIOS, Ground, World, prepare, settle
from tests.system.sessions import SESSIONS
from tests.system.zygote import Zygote

pytestmark = [pytest.mark.long, pytest.mark.sweep]

SEED: Final = 20_241_120
MOST: Final = 300  # boundaries of one scenario: more mean that a retry never ends
PROGRAMS: Final = {**SCENARIOS, **RECOVERY, **SESSIONS}
AGAIN: Final = 5  # crashes during the recovery from a crash, per scenario
BROKEN, KILLED, CRASHED = "connection breaks", "process killed", "server crashes"
# Boundaries of a connection, and of a process, which are the same whether it is killed or the server crashes. Timing decides
# how many batches share a call, so the number varies a little. These are minimums.
BOUNDARIES: Final = {
    "send": (8, 6),
    "commit": (36, 24),
    "fused": (18, 8),
    "together": (14, 14),
    "abort": (28, 24),
    "zombie": (8, 6),
    "timeout": (28, 22),
    "spark": (80, 50),
    "rebalance": (70, 28),
    "recovery": (16, 0),
    "sweep": (16, 16),
    "share-fused": (20, 20),
    "share-steps": (50, 50),
    "share-dead": (16, 18),
    "prepared": (40, 17),
    "session": (50, 19),
    "session-repeatable": (50, 19),
    "session-serializable": (50, 19),
    "publish": (18, 8),
    "publish-repeatable": (34, 16),
    "publish-serializable": (34, 16),
    "consume": (26, 8),
    "consume-repeatable": (38, 14),
    "consume-serializable": (38, 14),
}


def boundaries(name: str, kind: str) -> int:
    return BOUNDARIES[name][kind != BROKEN]


def run(name: str, world: World, *, successor: bool = False) -> World:
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
    return world


def begin(name: str, world: World) -> World:
    """Make a run's topics and its zombie; none of this is counted."""
    world.faults.on = False
    prepare(world, rows=PROGRAMS[name].rows)
    before = PROGRAMS[name].before
    if before is not None:
        before(world)
    world.faults.on = True
    return world


def judge(name: str, worlds: Sequence[World]) -> None:
    assert settle(worlds, image=PROGRAMS[name].image, rows=PROGRAMS[name].rows) == []


def sweep(name: str, kind: str, attempt: Callable[[int], tuple[World, bool]]) -> list[World]:
    """Crash at each boundary, until twice (in a part: once) none fired. `attempt` returns its world, and whether one did."""
    worlds: list[World] = []
    count = missed = 0
    enough = 2 if parts.is_whole() else 1
    for n in parts.points(range(1, MOST)):
        try:
            world, fired = attempt(n)
        except Exception as error:
            error.add_note(f"{name}, {kind}, n = {n}")
            raise
        worlds.append(world)
        count += fired
        missed = 0 if fired else missed + 1
        if missed == enough:
            break
    print(f"{name}: {count} boundaries, {kind}")  # noqa: T201 - the number is part of the report
    assert missed == enough, "it ends"
    assert count >= (boundaries(name, kind) if parts.is_whole() else boundaries(name, kind) // parts.PARTS)
    return worlds


@pytest.mark.parametrize("name", [*SCENARIOS, *RECOVERY])
def test_a_connection_that_breaks_anywhere_loses_and_doubles_nothing(name: str, ground: Ground) -> None:
    break_everywhere(name, ground)


def break_everywhere(name: str, ground: Ground) -> None:
    def attempt(n: int) -> tuple[World, bool]:
        faults = Faults({n: lose_connection})
        world = begin(name, ground.world(f"{name}-broken-{n}", faults))
        return run(name, world), bool(faults.fired)

    judge(name, sweep(name, BROKEN, attempt))


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_connections_that_break_one_after_the_other_lose_and_double_nothing(name: str, ground: Ground) -> None:
    break_twice(name, ground)


def break_twice(name: str, ground: Ground) -> None:
    worlds = []
    for seed in parts.points(range(SEED, SEED + AGAIN)):
        chance = random.Random(seed)
        first = chance.randrange(1, boundaries(name, BROKEN) + 1)
        plan: dict[int, Action] = {first: lose_connection, first + chance.randrange(1, 6): lose_connection}
        worlds.append(run(name, begin(name, ground.world(f"{name}-twice-{seed}", Faults(plan)))))
    judge(name, worlds)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_process_that_is_killed_anywhere_has_a_successor_that_goes_on(name: str, ground: Ground, zygote: Zygote) -> None:
    kill_everywhere(name, ground, zygote)


def kill_everywhere(name: str, ground: Ground, zygote: Zygote) -> None:
    judge(name, sweep(name, KILLED, lambda n: killed(name, ground, zygote, [n])))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_successor_that_is_killed_has_a_successor(name: str, ground: Ground, zygote: Zygote) -> None:
    chances = [random.Random(seed) for seed in parts.points(range(SEED, SEED + AGAIN))]
    plans = [[chance.randrange(1, boundaries(name, KILLED) + 1) for _ in range(3)] for chance in chances]
    judge(name, [killed(name, ground, zygote, deaths)[0] for deaths in plans])


def killed(name: str, ground: Ground, zygote: Zygote, deaths: list[int]) -> tuple[World, bool]:
    """Lives of one application, each killed at its boundary, but not the last one. Returns whether the first was killed."""
    world = begin(name, ground.world(f"{name}-killed-{'-'.join(map(str, deaths))}"))
    where = {"url": world.observer.secret_url, "elsewhere": world.elsewhere, "run": world.run, "folder": str(world.folder)}
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
    return world, ends[0] != 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_server_that_crashes_anywhere_keeps_what_it_promised(name: str, crashing: CrashServer, tmp_path: Path) -> None:
    crash_everywhere(name, crashing, tmp_path)


def crash_everywhere(name: str, crashing: CrashServer, folder: Path, elsewhere: str | None = None) -> None:
    url = crashing.server.create_database()
    chance = random.Random(SEED)

    def attempt(n: int) -> tuple[World, bool]:
        # Another session flushes between two calls before the crash: only what follows that flush is lost.
        plan: dict[int, Action] = {n: crashing.crash_at}
        flush_at = chance.randrange(0, n)
        if flush_at:
            plan[flush_at] = crashing.flush_at
        with msgtx.connect(url) as observer:
            faults = Faults(plan, uncounted=READS, before=name in SCENARIOS)
            world = begin(name, World(observer, f"{name}-server-{n}", folder, faults, elsewhere=elsewhere))
            run(name, world, successor=n % 2 == 0)
        crashing.flush()  # the next crash takes nothing of this run
        return world, any("crash" in fired for fired in world.faults.fired)

    worlds = sweep(name, CRASHED, attempt)
    with msgtx.connect(url) as observer:
        worlds[0].observer = observer
        judge(name, worlds)


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
