"""Ends of a batch that split no transaction, checked against all possible ends."""

import itertools

import hypothesis
from hypothesis import strategies as st

from msgtx.rules.boundary import Span, lowered

PARTITIONS = (0, 1, 2)
spans = st.dictionaries(
    st.sampled_from([*PARTITIONS, 9]),
    st.tuples(st.integers(0, 7), st.integers(0, 7)).map(lambda pair: (min(pair), max(pair))),
    min_size=1,
)
places = st.fixed_dictionaries({each: st.integers(0, 4) for each in PARTITIONS})
NOWHERE = dict.fromkeys(PARTITIONS, 0)


@hypothesis.example(NOWHERE, NOWHERE | {0: 4}, [{0: (2, 4)}])  # its last record is the first one that is left out
@hypothesis.example(NOWHERE, NOWHERE | {0: 4}, [{0: (2, 3)}])  # its last record is the last one
@hypothesis.given(places, places, st.lists(spans, max_size=6))
def test_the_ends_are_the_greatest_that_divide_nothing(
    starts: dict[int, int], sizes: dict[int, int], transactions: list[Span]
) -> None:
    """I15: transactions may overlap freely; parts before the start, or in other partitions, do not count."""
    ends = {each: starts[each] + sizes[each] for each in PARTITIONS}

    def whole(found: dict[int, int]) -> bool:
        for transaction in transactions:
            offsets = [
                (where, at)
                for where, (first, last) in transaction.items()
                if where in starts and last >= starts[where]
                for at in (max(first, starts[where]), last)
            ]
            if len({at < found[where] for where, at in offsets}) > 1:
                return False
        return True

    possible = [
        found
        for chosen in itertools.product(*(range(starts[each], ends[each] + 1) for each in PARTITIONS))
        if whole(found := dict(zip(PARTITIONS, chosen, strict=True)))
    ]
    greatest = {each: max(found[each] for found in possible) for each in PARTITIONS}
    assert lowered(starts, ends, transactions) == greatest


def test_a_transaction_that_begins_behind_every_end_lowers_none() -> None:
    assert lowered({1: 0, 2: 0}, {1: 5, 2: 5}, [{1: (5, 6), 2: (7, 9)}]) == {1: 5, 2: 5}


def test_what_reaches_over_a_lowered_end_is_lowered_too() -> None:
    chain = [{1: (0, 4), 2: (0, 0)}, {1: (2, 6), 2: (1, 1)}, {1: (5, 9), 2: (2, 2)}]
    assert lowered({1: 0, 2: 0}, {1: 8, 2: 3}, chain) == {1: 0, 2: 0}
    assert lowered({1: 0, 2: 0}, {1: 8, 2: 3}, chain[1:]) == {1: 2, 2: 1}


def test_an_end_that_another_partition_lowers_is_looked_at_again() -> None:
    """In whichever order the partitions are taken."""
    for first, second, third in itertools.permutations((1, 2, 3)):
        overlapping = [{first: (4, 9), second: (2, 2)}, {second: (1, 3), third: (0, 0)}]
        assert lowered({1: 0, 2: 0, 3: 0}, {1: 8, 2: 8, 3: 8}, overlapping) == {first: 4, second: 1, third: 0}
