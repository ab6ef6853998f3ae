"""Rows and offsets of workers on each kind of connection are one, whenever the worker is killed (I10)."""

from collections.abc import Callable

import pytest

from tests.system.kills_of_drivers import MOMENTS, WORKERS, run

pytestmark = pytest.mark.long

KILLS = 12  # `python -m tests.system.kills_of_drivers` takes more


@pytest.mark.parametrize("name", WORKERS)
def test_a_killed_worker_leaves_no_row_without_its_offset(make_database: Callable[..., str], name: str) -> None:
    seen = run(name, make_database(), kills=KILLS)
    assert (seen.torn, seen.twice, seen.missing) == (0, 0, 0)
    assert KILLS // len(MOMENTS) <= seen.done <= KILLS - KILLS // len(MOMENTS), "a third before a COMMIT, a third behind one"
