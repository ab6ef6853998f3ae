"""T3, the crash sweep of transactions that a session or another database decides (I6, I10).

As in `test_crash_sweep`; the boundaries of the user's own SQLAlchemy connection are counted, too, as are those of the
connection that the library opens beside it above READ COMMITTED. The user's rows, the records and the offsets are there, or
none of them is.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import msgtx
from msgtx import orm
from tests.faults import CrashServer, Faults, lose_connection
from tests.system.scenarios import Ground, prepare, read_all
from tests.system.sessions import SESSIONS
from tests.system.test_crash_sweep import break_everywhere, break_twice, crash_everywhere, kill_everywhere
from tests.system.zygote import Zygote

pytestmark = [pytest.mark.long, pytest.mark.sweep]

LONG = hypothesis.settings.get_current_profile_name() == "long"
# The everyday run breaks each kind of COMMIT, and ends each in one of the ways to die.
BREAKING = [*SESSIONS] if LONG else ["session", "publish", "publish-serializable", "consume-repeatable"]
DYING = [*SESSIONS] if LONG else ["prepared", "consume-repeatable"]
CRASHING = [*SESSIONS] if LONG else ["session", "publish-serializable"]


@pytest.fixture
def ground(ground: Ground, make_database: Callable[..., str]) -> Ground:
    """Beside a database without msgtx."""
    return replace(ground, elsewhere=make_database(schema=False))


@pytest.mark.parametrize("name", BREAKING)
def test_a_connection_that_breaks_anywhere_divides_nothing(name: str, ground: Ground) -> None:
    break_everywhere(name, ground)


def test_what_is_written_beside_a_session_is_aborted_at_once_when_that_connection_breaks(ground: Ground) -> None:
    """No client waits for its timeout."""

    def crossed(run: str, faults: Faults) -> Faults:
        world = ground.world(run, faults)
        world.faults.on = False
        prepare(world, rows=SESSIONS["publish-repeatable"].rows)
        world.faults.on = True
        SESSIONS["publish-repeatable"].program(world)
        for found in ground.observer.admin.partitions.offsets([world.topic], -1, msgtx.Isolation.READ_COMMITTED).values():
            assert found.last_stable_offset == found.log_end_offset
        return faults

    at = crossed("whole", Faults()).crossed.index("after asking_together") + 1
    assert crossed("broken", Faults({at: lose_connection})).fired == [f"{at} after asking_together: lose_connection"]


def test_a_session_meets_no_connection_that_broke_in_the_commit_of_another(ground: Ground) -> None:
    world = ground.world("again")
    prepare(world)
    with world.sessions("READ COMMITTED") as sessions:

        def publish() -> None:
            with Session(sessions) as session:
                orm.publish(session, world.topic, b"value", partition=0)
                session.commit()

        publish()  # which also looks up the topic
        world.faults.crossed.clear()
        publish()
        at = len(world.faults.crossed) + world.faults.crossed.index("before append_at_commit") + 1
        world.faults.at[at] = lose_connection
        with pytest.raises(sqlalchemy.exc.OperationalError):  # as for any lost COMMIT
            publish()
        assert world.faults.fired == [f"{at} before append_at_commit: lose_connection"]
        publish()
    assert len(read_all(ground.observer, world.topic)[0]) == 3


@pytest.mark.parametrize("name", SESSIONS)
def test_two_connections_that_break_one_after_the_other_divide_nothing(name: str, ground: Ground) -> None:
    break_twice(name, ground)


@pytest.mark.parametrize("name", DYING)
def test_a_process_that_is_killed_anywhere_has_a_successor_that_finds_out(name: str, ground: Ground, zygote: Zygote) -> None:
    kill_everywhere(name, ground, zygote)


@pytest.mark.parametrize("name", CRASHING)
def test_a_server_that_crashes_anywhere_divides_nothing(name: str, crashing: CrashServer, tmp_path: Path) -> None:
    crash_everywhere(name, crashing, tmp_path, crashing.server.create_database(schema=False))
