"""Rows of the log: however records are added, the same records are the same row."""

import random
from typing import Any

import pytest

from msgtx import errors
from msgtx.config import ROW_BYTES, ROW_RECORDS
from msgtx.rules.record import HeaderPairs, record_bytes
from msgtx.store.append.rows import OpenRow
from msgtx.store.topics.topics import Topic
from tests.refusals import refuses

Record = tuple[bytes | None, bytes | None, int | None, HeaderPairs]
SEEDS = range(20)


def records(seed: int) -> list[Record]:
    """Records of which some have no value, key, time or headers; and now and then none has."""
    draw = random.Random(seed)
    keyed, timed, headed = (draw.random() < 0.7 for _ in range(3))
    return [
        (
            draw.choice([None, b"", b"value %d" % at]),
            draw.choice([None, b"", b"key"]) if keyed else None,
            draw.choice([None, 5, 7]) if timed else None,
            draw.choice([(), (("name", b"content"),), (("ä", None), ("b", b""))]) if headed else (),
        )
        for at in range(draw.randrange(1, 9))
    ]


def added(wanted: list[Record]) -> OpenRow:
    row = OpenRow(6)
    for value, key, timestamp, headers in wanted:
        row.add(value, key, timestamp, headers, size=1)
    return row


def expected(wanted: list[Record]) -> dict[str, Any]:
    """What the row says, written the long way."""
    times = [6 if timestamp is None else timestamp for _, _, timestamp, _ in wanted]
    pairs = [headers for *_, headers in wanted]
    return {
        "values": [value for value, *_ in wanted],
        "keys": [key for _, key, *_ in wanted] if any(key is not None for _, key, *_ in wanted) else None,
        "max_timestamp": max(times),
        "timestamps": times if len(set(times)) > 1 else None,
        "header_counts": [len(each) for each in pairs] if any(pairs) else None,
        "header_keys": [name for each in pairs for name, _ in each] if any(pairs) else None,
        "header_values": [content for each in pairs for _, content in each] if any(pairs) else None,
    }


def said(row: OpenRow, without: tuple[int, ...] = ()) -> dict[str, Any]:
    columns = row.stored_as(3, (1, 2), transaction_number=4, base_sequence=5, without=without)
    assert (columns.partition_id, columns.producer_id, columns.producer_epoch) == (3, 1, 2)
    assert (columns.transaction_number, columns.base_sequence) == (4, 5)
    return {name: getattr(columns, name) for name in expected([(None, None, None, ())])}


@pytest.mark.parametrize("seed", SEEDS)
def test_records_one_by_one_or_by_columns_make_the_same_row(seed: int) -> None:
    wanted = records(seed)
    assert said(added(wanted)) == expected(wanted)
    half = len(wanted) // 2
    row = added(wanted[:half])
    values, keys, timestamps, headers = map(list, zip(*wanted[half:], strict=True))
    row.extend(values, keys, timestamps, headers, size=len(values))
    assert said(row) == expected(wanted)
    assert row.size == len(wanted)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_without_some_records_is_a_row_of_the_others(seed: int) -> None:
    wanted = records(seed) + records(seed + 1000)
    without = tuple(random.Random(seed).sample(range(len(wanted)), len(wanted) // 2))
    assert said(added(wanted), without) == expected([each for at, each in enumerate(wanted) if at not in without])


def test_columns_that_are_left_out_are_absent() -> None:
    row = OpenRow(6)
    row.extend([b"a", b"b"], size=2)
    assert said(row) == expected([(b"a", None, None, ()), (b"b", None, None, ())])
    assert row.time_of(1) == 6


def test_records_without_times_behind_others_have_that_of_the_row() -> None:
    row = added([(b"a", None, 5, ())])
    row.extend([b"b", b"c"], size=2)
    assert said(row) == expected([(b"a", None, 5, ()), (b"b", None, None, ()), (b"c", None, None, ())])
    assert [row.time_of(at) for at in range(3)] == [5, 6, 6]


def test_a_row_ends_where_the_next_record_would_make_it_too_large() -> None:
    row = OpenRow()
    assert row.takes(10 * ROW_BYTES), "a record that is larger than a row has one of its own"
    row.add(b"x", None, None, (), size=ROW_BYTES - 1)
    assert (row.takes(1), row.takes(2), row.is_full) == (True, False, False)
    row.extend([None] * (ROW_RECORDS - 2), size=0)
    assert (row.takes(0), row.is_full) == (True, False)
    row.add(None, None, None, (), size=0)
    assert (row.takes(0), row.is_full) == (False, True)
    row = OpenRow()
    row.extend([b"x"], size=ROW_BYTES)
    assert (row.takes(1), row.is_full) == (False, True)


def test_a_records_size_is_that_of_its_parts() -> None:
    assert record_bytes(b"abc", b"de", [("ä", b"x"), ("n", None)]) == 3 + 2 + 2 + 1 + 1
    assert record_bytes(None, None) == 0
    row = added([(b"abc", b"de", None, [("n", b"xy")]), (None, b"k", None, ())])
    assert [row.record_bytes(at) for at in range(2)] == [3 + 2 + 1 + 2, 1]
    assert added([(b"abc", None, None, ())]).record_bytes(0) == 3


@pytest.mark.parametrize("index", [-1, 2])
def test_a_partition_that_a_topic_has_not_is_refused(index: int) -> None:
    topic = Topic("orders", (7, 8), {})
    assert [topic.partition_id(0), topic.partition_id(1)] == [7, 8]
    with refuses(errors.UnknownTopicOrPartition, topic=topic.name, partition=index):
        topic.partition_id(index)
