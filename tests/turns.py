"""Runs of pytest that share the tests: each takes the next module that no other has taken, the longest first.

A plugin (`-p tests.turns --turns=FOLDER`); the folder holds a file for each module that was taken. `python -m tests` starts
the runs. A module is as in a run of its own: its tests keep their order, and have a database and a server for themselves.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

# Who came late to one of these would end late: they take from twenty seconds to minutes, the others less.
LONGEST: Final = (
    "spark/test_session.py",
    "spark/test_demo.py",
    "spark/test_cluster.py",
    "spark/test_streaming.py",
    "system/test_crash_sweep_of_batches.py",
    "system/test_crash_sweep.py",
    "system/test_crash_sweep_of_sessions.py",
    "spark/test_pipeline.py",
    "spark/test_export.py",
    "spark/test_source.py",
    "spark/test_read.py",
    "spark/test_sink.py",
    "cli/test_interruption.py",
    "histories/test_history.py",
    "system/test_groups.py",
    "model/test_model.py",
    "system/test_bad_days_settings.py",
    "system/test_daemon.py",
    "system/test_interleavings.py",
    "system/test_server_crash.py",
)
HERE: Final = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turns", type=Path, required=True, metavar="FOLDER", help="where the runs note what they took")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {HERE / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Do as pytest's own loop, for the tests that are ours. What runs nothing is left to that."""
    if session.testsfailed or session.config.option.collectonly:
        return None
    items = ours(session.items, session.config.getoption("turns"))
    item = next(items, None)
    while item is not None:
        # A test that is told which comes after it leaves the fixtures that both have.
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def ours(items: Iterable[pytest.Item], folder: Path) -> Iterator[pytest.Item]:
    """Yield the tests of modules that we took: when we come to the first of them, and nobody was faster."""
    taken: dict[Path, bool] = {}
    for item in items:
        if item.path not in taken:
            taken[item.path] = _take(folder / str(item.path).replace("/", "|"))
        if taken[item.path]:
            yield item


def _take(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
