"""Histories of the everyday run; `python -m tests.model` makes longer ones."""

from collections.abc import Iterator
from tests.model.place import Place
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Machine


@pytest.fixture(scope="module")
def place(database_url: str) -> Iterator[Place]:
    made = Place(database_url)
    yield made
    made.close()


def test_histories_with_lost_connections(place: Place) -> None:
    class Here(Machine):
        find_place = staticmethod(lambda: place)

    import os
    run_state_machine_as_test(Here, settings=settings(max_examples=int(os.environ.get("EX", "20")), stateful_step_count=40, verbosity=__import__("hypothesis").Verbosity[os.environ.get("V","normal")], phases=[__import__("hypothesis").Phase.generate], suppress_health_check=list(__import__("hypothesis").HealthCheck)))
    print("operations", place.operations)
