"""How far a micro-batch reads: whole transactions where possible, and never stuck."""

from collections.abc import Mapping

from msgtx.rules.boundary import Span
from msgtx.rules.ranges import PartitionRange
from msgtx.spark_jobs.reading.ends import Ends


class Log:
    """Two partitions whose transactions are given; `at` is the clock."""

    def __init__(self, *transactions: Span) -> None:
        self.at = 0.0
        self.ends = Ends(self.spans, 1_000, lambda: self.at)
        self._transactions = transactions

    def spans(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Span]:
        return [
            span
            for span in self._transactions
            if any(first < ends[where] and last >= starts[where] for where, (first, last) in span.items())
        ]

    def choose(
        self, ranges: Mapping[int, tuple[int, int]], stable: Mapping[int, int], most: int | None = None
    ) -> dict[int, int]:
        asked = [PartitionRange(where, "t", where, *bounds) for where, bounds in ranges.items()]
        return {each.partition_id: each.end for each in self.ends.choose(asked, stable, most)}


def test_without_a_limit_a_batch_ends_at_the_cut() -> None:
    assert Log().choose({1: (0, 7), 2: (3, 3)}, {1: 9, 2: 3}) == {1: 7, 2: 3}


def test_a_limit_ends_between_transactions() -> None:
    log = Log({1: (0, 3), 2: (0, 3)}, {1: (4, 7), 2: (4, 7)}, {1: (8, 11), 2: (8, 11)})
    assert log.choose({1: (0, 12), 2: (0, 12)}, {1: 12, 2: 12}, 20) == {1: 8, 2: 8}
    assert log.choose({1: (0, 12), 2: (0, 12)}, {1: 12, 2: 12}, 24) == {1: 12, 2: 12}


def test_a_transaction_above_the_limit_is_read_whole_if_it_is_not_far_above() -> None:
    log = Log({1: (0, 9), 2: (0, 9)}, {1: (10, 19), 2: (10, 19)}, {1: (20, 99), 2: (20, 99)})
    assert log.choose({1: (0, 100), 2: (0, 100)}, {1: 100, 2: 100}, 6) == {1: 10, 2: 10}


def test_a_transaction_far_above_the_limit_is_read_in_pieces() -> None:
    log = Log({1: (0, 499), 2: (0, 499)})
    start = 0
    for _ in range(3):
        found = log.choose({1: (start, 500), 2: (start, 500)}, {1: 500, 2: 500}, 6)
        assert found == {1: start + 3, 2: start + 3}
        start = found[1]


def test_what_has_waited_for_a_cut_is_read_as_far_as_it_is_committed() -> None:
    """Transactions that overlap without a pause would hold the cut forever."""
    log = Log()
    for _ in range(2):
        assert log.choose({1: (0, 0), 2: (0, 5)}, {1: 4, 2: 5}) == {1: 0, 2: 5}
        log.at += 0.9
    log.at += 0.2
    assert log.choose({1: (0, 0), 2: (5, 5)}, {1: 4, 2: 9}) == {1: 4, 2: 9}
    assert log.choose({1: (4, 4), 2: (9, 9)}, {1: 6, 2: 9}) == {1: 4, 2: 9}, "it waits again"


def test_a_partition_that_a_limit_passes_by_does_not_wait_for_ever() -> None:
    log = Log({1: (0, 99)}, *({2: (at, at)} for at in range(100)))
    start = 0
    while (found := log.choose({1: (0, 100), 2: (start, 100)}, {1: 100, 2: 100}, 10))[1] == 0:
        start = found[2]
        log.at += 0.4
        assert start < 40
    assert found[1] > 0


def test_what_was_moved_is_not_late() -> None:
    log = Log()
    log.choose({1: (0, 0)}, {1: 4})
    log.at = 0.9
    assert log.choose({1: (0, 4)}, {1: 4}) == {1: 4}
    log.at = 1.5
    assert log.choose({1: (4, 4)}, {1: 8}) == {1: 4}
