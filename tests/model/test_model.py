"""Any history beside the oracle (I1–I12). `HYPOTHESIS_PROFILE=long MINUTES=…` runs for so long, with fresh seeds."""

import itertools
from collections.abc import Callable, Iterator

import hypothesis
import pytest

from tests.faults import crash_server
from tests.model.history import LONG_MS, PARTITIONS, SHORT_MS
from tests.model.machine import Machine
from tests.model.oracle import ABORT, COMMIT
from tests.model.place import Place
from tests.model.rounds import minutes_wanted, places, run_round, run_rounds

SEED = 20_261_121  # of the everyday run, so that it is the same everywhere; the long one has fresh ones
LONG = hypothesis.settings.get_current_profile_name() == "long"


def test_any_history_with_lost_connections_is_as_the_oracle_says(make_database: Callable[[], str]) -> None:
    with places(make_database) as where:
        if LONG:
            assert not run_rounds(where, minutes=minutes_wanted() / 2, first=None, report=print)
        else:
            run_round(where, number=SEED, histories=50)


def test_any_history_with_crashes_of_the_server_is_as_the_oracle_says() -> None:
    with crash_server() as server, places(server.server.create_database, server) as where:
        if LONG:
            assert not run_rounds(where, minutes=minutes_wanted() / 2, first=None, report=print)
        else:
            run_round(where, number=SEED, histories=5)


@pytest.fixture
def history(database_url: str) -> Iterator[Machine]:
    """A history that is written by hand."""
    place = Place(database_url)

    class Here(Machine):
        find_place = staticmethod(lambda: place)

    made = Here()
    made.begin(by_hand=[False, False])
    yield made
    made.teardown()
    place.close()


def test_members_that_hand_over_die_and_come_back_are_as_the_oracle_says(history: Machine) -> None:
    """I11, I10: at each station everybody commits for everything, plainly and with transactions, with what it was told."""

    def everybody_commits() -> None:
        history.everything_agrees()
        for which, partition in itertools.product(range(len(history.guests)), range(PARTITIONS)):
            commit = {"who": "anybody", "which": which, "where": [partition], "crash": 0}
            for at, when in enumerate((-1, 0, 1, 2)):
                history.commit_as_member(**commit, at=at, when=when)
                history.everything_agrees()
            for life, sends in enumerate(("nothing", "at once", "flushed")):
                history.transact_as_member(**commit, life=life, at=1, when=0, sends=sends, outcome=COMMIT)
                history.everything_agrees()
                if history.begun():
                    history.finish(which=0, outcome=ABORT, crash=0)
        history.commit_as_member(who="nobody", which=0, where=[0], at=1, when=0, crash=0)
        history.everything_agrees()

    def divide(how: str) -> None:
        history.rebalance(how=how, spread=[1, 2, 2], which=0, crash=0)

    history.send_plainly(where=[0, 1, 2], sizes=[3], crash=0)
    history.gather(members=2, static=True)  # one that owns all, one that waits for what it shall own
    everybody_commits()
    history.release(which=0, given=[0, 1, 2], own=False, looks=True, crash=0)
    everybody_commits()
    divide("later")
    history.join(which=0, static=True, timeout=LONG_MS, everything=False, crash=0)
    divide("arrives")
    everybody_commits()
    divide("by hand")
    history.join(which=1, static=True, timeout=SHORT_MS, everything=True, crash=0)  # it replaces the first
    everybody_commits()
    divide("library")
    history.release(which=1, given=[0, 1, 2], own=False, looks=True, crash=0)
    everybody_commits()
    history.outlast(which=1, late=1, by=1, crash=0)
    everybody_commits()
    history.join(which=0, static=True, timeout=LONG_MS, everything=True, crash=0)
    divide("library")
    history.release(which=1, given=[0, 1, 2], own=False, looks=True, crash=0)
    everybody_commits()
    for which in range(len(history.guests)):
        history.live(which=which, how="leave", beat=0, crash=0)
    everybody_commits()
