"""Workers of one group as processes that are killed, stopped, ended and joined: each input has one output, in order."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.faults import crash_server
from tests.histories.crew import GROUP
from tests.histories.history import read_history
from tests.histories.rounds import Round
from tests.histories.storm import DECK, Storm
from tests.histories.workers import FENCED

pytestmark = pytest.mark.long

SEED: Final = 20_261_121
SECONDS: Final = 12.0
MORE_SECONDS: Final = 3.0  # of disturbance at a time, if the machine was too slow for everything to happen
MOST_MORE: Final = 15
SENT: Final = 1_000  # inputs at least


@pytest.fixture
def round_() -> Iterator[Round]:
    folder = Path(tempfile.mkdtemp(prefix="msgtx-storm-"))
    with crash_server() as server:
        round_ = Round(server, folder, seed=SEED, roles=GROUP, blow_seconds=0.8, kinds=DECK, nemesis=Storm)
        yield round_
        round_.close()
    shutil.rmtree(folder)


def test_workers_of_a_group_in_a_storm_give_each_input_one_output_in_the_order_of_its_key(round_: Round) -> None:
    """I10, I11; seeds plan what happens, not when. `make test-long` has longer storms with other seeds."""
    round_.disturb(SECONDS)
    for _ in range(MOST_MORE):
        if not missing(round_):
            break
        round_.nemesis.disturb(MORE_SECONDS)
    round_.drain()
    report = round_.judge()
    assert not report.failures, "\n".join(report.failures)
    assert not report.anomalies, "\n".join(map(str, report.anomalies))
    assert not missing(round_)


def missing(round_: Round) -> list[str]:
    """Return the kinds of faults that did not happen: a storm without faults would show nothing."""
    found = [f"no {kind}" for kind in dict.fromkeys(DECK) if not round_.nemesis.counts[kind]]
    if round_.crew.codes[FENCED] == 0:
        found.append("no zombie that heard of its successor")
    if round_.crew.lost() == 0:
        found.append("no worker that heard that its partitions were another one's")
    if (sent := read_history(round_.folder).counts()["records sent"]) <= 2 * SENT:
        found.append(f"no more than {sent} records")
    return found
