"""Rows and offsets of workers on each kind of connection are one, whenever the worker is killed (I10)."""

from collections.abc import Callable

import pytest

from tests.system.kills_of_drivers import WORKERS, run

pytestmark = pytest.mark.slow

KILLS = 25  # `python -m tests.system.kills_of_drivers` takes more


@pytest.mark.parametrize("name", WORKERS)
def test_a_killed_worker_leaves_no_row_without_its_offset(make_database: Callable[..., str], name: str) -> None:
    seen = run(name, make_database(), kills=KILLS)
    assert (seen.torn, seen.twice, seen.missing) == (0, 0, 0)
    assert 0 < seen.done < KILLS, "some kills come before the first COMMIT, some behind it"
