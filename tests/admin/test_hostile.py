"""What a login with few rights may do harms nobody else (`tests/hostile.py`)."""

import os
import time
from collections.abc import Callable

from tests.databases import Server
from tests.hostile import attack

CALLS = 600


def test_a_login_that_calls_everything_it_may_breaks_no_promise_to_others(
    server: Server, make_database: Callable[..., str]
) -> None:
    """I1 to I16 of others. HOSTILE_SEED plays a run again."""
    seed = int(os.environ.get("HOSTILE_SEED", time.time()))
    print(f"HOSTILE_SEED={seed}")  # noqa: T201 - shown when the test fails
    report = attack(server, make_database(), seed=seed, calls=CALLS)
    assert report.failures == []
    assert len(report.functions) > 40
    assert {"append", "join_group", "decide", "init_producer_id"} <= report.functions
    assert len(report.answered) > 20
