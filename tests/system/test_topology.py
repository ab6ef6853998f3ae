"""Topics that grow, shrink, go and come again under every kind of reader, once, by a seed (`tests/topology.py`)."""

import os
from collections.abc import Callable

import pytest

from tests.topology import ONCE, READERS, play

pytestmark = pytest.mark.long

CHANGES = 20
SEED = 20_261_127  # the same everywhere; TOPOLOGY_SEED overrides it, and `python -m tests.topology` takes new ones


def test_topics_change_under_every_kind_of_reader(make_database: Callable[..., str]) -> None:
    """I1, I5, I14, I16: nobody dies, nobody stands still, and what promises it gets each record once."""
    seed = int(os.environ.get("TOPOLOGY_SEED", SEED))
    print(f"TOPOLOGY_SEED={seed}")  # noqa: T201 - shown when the test fails
    report = play(make_database(), seed=seed, changes=CHANGES)
    assert report.failures == []
    assert report.changes.keys() >= {"grow", "shrink", "delete", "make", "make again"}
    assert set(report.read) == set(READERS.values())
    assert not ONCE & set(report.again)
