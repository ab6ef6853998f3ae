"""Ranges divided and bounded as by Spark's Kafka source."""

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from msgtx.rules.ranges import PartitionRange, limit, ordered, packed, split
from msgtx.types import TopicPartition


def made(*bounds: tuple[int, int]) -> list[PartitionRange]:
    return [PartitionRange(10 + at, "t", at, start, end) for at, (start, end) in enumerate(bounds)]


def bounds(ranges: list[PartitionRange]) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.end) for each in ranges]


@pytest.mark.parametrize(
    ("given", "min_partitions", "expected"),
    [
        ([(1, 2)], None, [(0, 1, 2)]),
        ([(1, 1)], 3, []),
        ([(1, 2), (1, 1)], 1, [(0, 1, 2)]),
        ([(1, 5)], 4, [(0, 1, 2), (0, 2, 3), (0, 3, 4), (0, 4, 5)]),
        ([(1, 5)], 3, [(0, 1, 2), (0, 2, 3), (0, 3, 5)]),
        # skewed: the small ones stay whole, the large one gets what is left
        ([(1, 10000), (0, 1000)], 6, [(0, 1, 2000), (0, 2000, 4000), (0, 4000, 6000), (0, 6000, 8000), (0, 8000, 10000),
                                      (1, 0, 1000)]),
        ([(0, 2), (0, 2), (0, 3), (0, 1000)], 7, [(0, 0, 2), (1, 0, 2), (2, 0, 3), (3, 0, 250), (3, 250, 500),
                                                  (3, 500, 750), (3, 750, 1000)]),
        ([(0, 1)], 5, [(0, 0, 1)]),
        ([(0, 5), (0, 5), (0, 5)], 2, [(0, 0, 5), (1, 0, 5), (2, 0, 5)]),
        # as many as are wanted: none is divided, however large
        ([(0, 75), (0, 19), *[(0, 1)] * 6], 8, [(0, 0, 75), (1, 0, 19), *((at, 0, 1) for at in range(2, 8))]),
        ([(7, 3)], 2, []),
    ],
)  # fmt: skip
def test_large_ranges_are_divided_in_proportion(
    given: list[tuple[int, int]], min_partitions: int | None, expected: list[tuple[int, int, int]]
) -> None:
    assert bounds(split(made(*given), min_partitions=min_partitions)) == expected


@pytest.mark.parametrize(
    ("sizes", "at_least", "most", "expected"),
    [
        ([], 2, 10, []),
        ([1] * 6, 2, 10, [[0, 1, 2], [3, 4, 5]]),
        ([1] * 6, 4, 10, [[0, 1], [2, 3], [4, 5]]),
        ([1] * 6, 8, 10, [[0], [1], [2], [3], [4], [5]]),
        ([9, 1, 1, 20, 1, 1], 1, 10, [[0, 1], [2], [3], [4, 5]]),
    ],
)
def test_small_ranges_share_a_task(sizes: list[int], at_least: int, most: int, expected: list[list[int]]) -> None:
    found = packed(made(*((0, size) for size in sizes)), at_least=at_least, most=most)
    assert [[each.partition for each in task] for task in found] == expected


def test_no_task_reads_more_offsets_than_it_may() -> None:
    assert bounds(split(made((0, 10), (0, 3)), max_records=4)) == [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 3)]
    assert len(split(made((0, 10)), max_records=4, min_partitions=10)) == 10
    assert len(split(made((0, 10)), max_records=4, min_partitions=2)) == 3


@pytest.mark.parametrize(
    ("given", "most", "expected"),
    [
        ([(0, 10), (0, 20)], 30, [10, 20]),
        ([(0, 10), (5, 25)], 15, [5, 15]),
        ([(0, 1), (0, 1000)], 10, [1, 9]),  # a small partition is not starved
        ([(3, 3), (0, 1000)], 10, [3, 10]),
        ([(0, 1), (0, 1), (0, 1)], 1, [1, 1, 1]),
        ([], 5, []),
        ([(2**62, 2**62 + 3), (0, 3)], 2, [2**62 + 1, 1]),
    ],
)
def test_a_batch_is_bounded_and_no_partition_waits_for_ever(
    given: list[tuple[int, int]], most: int, expected: list[int]
) -> None:
    limited = limit(made(*given), most)
    assert [each.end for each in limited] == expected
    assert [each.start for each in limited] == [start for start, _ in given]


ranges_of_a_log = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**50)), max_size=8).map(
    lambda pairs: made(*((start, start + size) for start, size in pairs))
)


@hypothesis.given(ranges_of_a_log, st.none() | st.integers(1, 50))
def test_parts_cover_each_range_once_in_order(ranges: list[PartitionRange], min_partitions: int | None) -> None:
    parts = split(ranges, min_partitions=min_partitions)
    assert parts == ordered(parts)
    for whole in ranges:
        mine = [part for part in parts if part.partition == whole.partition]
        assert all(part.size > 0 and part.partition_id == whole.partition_id for part in mine)
        assert sum(part.size for part in mine) == whole.size
        if mine:
            assert (mine[0].start, mine[-1].end) == (whole.start, whole.end)
            assert all(one.end == two.start for one, two in itertools.pairwise(mine))


@hypothesis.given(ranges_of_a_log, st.integers(1, 2**50))
def test_bounded_batches_end_where_the_ranges_do(ranges: list[PartitionRange], most: int) -> None:
    limited = limit(ranges, most)
    assert sum(each.size for each in limited) <= most + len(ranges)
    for before, after in zip(ranges, limited, strict=True):
        assert before.start == after.start
        assert min(before.size, 1) <= after.size <= before.size


def test_a_range_has_its_partitions_name() -> None:
    (one,) = made((3, 9))
    assert (one.topic_partition, one.size) == (TopicPartition("t", 0), 6)
