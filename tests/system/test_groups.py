"""Workers of one group as processes that are killed, stopped, ended and joined: each input has one output, in order."""

from collections import Counter
from typing import Final

from tests.storm.storm import DECK, judged, play

SEED: Final = 20_261_121
SECONDS: Final = 15.0


def test_workers_of_a_group_in_a_storm_give_each_input_one_output_in_the_order_of_its_key(database_url: str) -> None:
    """I10, I11; seeds plan what happens, not when. `make test-long` has longer storms with other seeds."""
    report = play(database_url, seed=SEED, seconds=SECONDS)
    assert not report.failures, "\n".join(report.failures)
    assert (report.repeated, report.missing, report.disordered) == (0, 0, 0), report
    assert report.blows.keys() == set(DECK), report.blows
    assert report.fenced >= 1, "a zombie that heard of its successor"
    assert report.lost >= 1, "a zombie that heard that its partitions were another one's"
    assert report.sent > 1_000


def test_what_a_storm_may_break_is_seen() -> None:
    sent = Counter({b"a": 3, b"b": 1})
    right = [b"a 0", b"b 0", b"a 1", b"a 2"]
    assert judged(sent, right).clean
    assert judged(sent, [*right, b"a 1"]).repeated == 1
    assert judged(sent, [*right, b"c 0"]).repeated == 1
    assert judged(sent, right[:3]).missing == 1
    assert judged(sent, [b"a 1", b"b 0", b"a 0", b"a 2"]).disordered == 1
