"""T3, the crash sweep of a batch that Spark writes: its driver and its tasks (I6).

As in `test_crash_sweep`, without Spark itself. Run by `make test-spark`.
"""

from pathlib import Path
from typing import Final

import pytest

import msgtx
from tests.faults import CrashServer
from tests.system.test_crash_sweep import break_everywhere, break_twice, crash_everywhere, kill_again, kill_everywhere
from tests.system.zygote import Zygote

pytestmark = pytest.mark.long

NAME: Final = "spark"


def test_a_connection_that_breaks_anywhere_loses_and_doubles_nothing(observer: msgtx.Client) -> None:
    break_everywhere(NAME, observer)


def test_two_connections_that_break_one_after_the_other_lose_and_double_nothing(observer: msgtx.Client) -> None:
    break_twice(NAME, observer)


def test_a_process_that_is_killed_anywhere_has_a_successor_that_goes_on(
    observer: msgtx.Client, zygote: Zygote, tmp_path: Path
) -> None:
    kill_everywhere(NAME, observer, zygote, tmp_path)


def test_a_successor_that_is_killed_has_a_successor(observer: msgtx.Client, zygote: Zygote, tmp_path: Path) -> None:
    kill_again(NAME, observer, zygote, tmp_path)


def test_a_server_that_crashes_anywhere_keeps_what_it_promised(crashing: CrashServer) -> None:
    crash_everywhere(NAME, crashing)
