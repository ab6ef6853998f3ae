"""Any history beside the oracle (I1–I10, I12). `HYPOTHESIS_PROFILE=long MINUTES=…` runs for so long, with fresh seeds."""

from collections.abc import Callable

import hypothesis

from tests.faults import crash_server
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
