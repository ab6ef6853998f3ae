"""Whatever is accepted, everything can read, measure, pass on and set aside (`tests/onlookers.py`)."""

import os
from collections.abc import Iterator

import pytest

import msgtx
from tests.onlookers import ONLOOKERS, Onlooker, Scene

pytestmark = pytest.mark.slow

COUNT = 120
SEED = 20_261_127  # the same everywhere; ONLOOKERS_SEED overrides it, and `python -m tests.onlookers` takes new ones


@pytest.fixture(scope="module")
def scene(database_url: str) -> Iterator[Scene]:
    seed = int(os.environ.get("ONLOOKERS_SEED", SEED))
    print(f"ONLOOKERS_SEED={seed}")  # noqa: T201 - shown when a test fails
    with msgtx.connect(database_url) as client:
        made = Scene(client, database_url, seed=seed, count=COUNT)
        yield made
        made.close()


def test_what_is_refused_is_refused_with_its_error_and_the_sender_works(scene: Scene) -> None:
    """I16."""
    assert scene.failures == []
    assert len(scene.sent) == COUNT


@pytest.mark.parametrize("onlooker", ONLOOKERS, ids=lambda onlooker: onlooker.__name__)
def test_what_is_accepted_is_borne_by(scene: Scene, onlooker: Onlooker) -> None:
    onlooker(scene)
