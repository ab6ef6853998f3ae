"""Where a reset puts an offset: Kafka's targets, within the log (internals: groups#for-an-administrator)."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from msgtx.errors import InvalidRequest
from msgtx.rules.reset import Target, new_offset, time_of
from msgtx.types import PartitionDescription, ShiftBy, TopicPartition
from tests.refusals import refuses

TP = TopicPartition("t", 3)
ENDS = PartitionDescription(log_start_offset=10, last_stable_offset=90, log_end_offset=100)
NOW = datetime(2026, 1, 31, 12, 0, 0, 500, tzinfo=UTC)
NOW_MS = 1_769_860_800_000


@pytest.mark.parametrize(
    ("target", "committed", "at_time", "expected", "note"),
    [
        ("earliest", 50, None, 10, ""),
        ("earliest", None, None, 10, ""),
        ("latest", 50, None, 90, ""),
        ("current", 50, None, 50, ""),
        ("current", None, None, 90, "no offset is committed: latest"),
        ("current", 5, None, 10, "5 is below the log start"),
        (50, None, None, 50, ""),
        (10, None, None, 10, ""),
        (9, None, None, 10, "9 is below the log start"),
        (-1, None, None, 10, "-1 is below the log start"),
        (95, None, None, 95, ""),
        (100, None, None, 100, ""),
        (101, None, None, 100, "101 is above the log end"),
        (ShiftBy(7), 50, None, 57, ""),
        (ShiftBy(-7), 50, None, 43, ""),
        (ShiftBy(-41), 50, None, 10, "9 is below the log start"),
        (ShiftBy(51), 50, None, 100, "101 is above the log end"),
        (NOW, 50, 42, 42, ""),
        (NOW, 50, None, 90, "no record is that young: latest"),
        (timedelta(hours=1), None, 42, 42, ""),
        ({TP: 77}, 50, None, 77, ""),
        ({TP: 777}, 50, None, 100, "777 is above the log end"),
    ],
)
def test_a_target_means_an_offset_within_the_log(
    target: Target, committed: int | None, at_time: int | None, expected: int, note: str
) -> None:
    assert new_offset(TP, target, committed=committed, ends=ENDS, at_time=at_time) == (expected, note)


def test_there_is_nothing_to_shift_without_an_offset() -> None:
    with refuses(InvalidRequest, topic="t", partition=3):
        new_offset(TP, ShiftBy(1), committed=None, ends=ENDS, at_time=None)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("latest", None),
        (5, None),
        (ShiftBy(5), None),
        ({TP: 5}, None),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), NOW_MS),
        (datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))), NOW_MS),
        (datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC), NOW_MS + 1),  # at or after: rounded up
        (datetime(1969, 12, 31, tzinfo=UTC), 0),
        (timedelta(), NOW_MS + 1),
        (timedelta(hours=1), NOW_MS + 1 - 3_600_000),
        (timedelta(days=100_000), 0),
    ],
)
def test_the_time_that_a_target_means(target: Target, expected: int | None) -> None:
    assert time_of(target, NOW) == expected


@pytest.mark.parametrize(
    ("target", "words"),
    [(timedelta(seconds=-1), "does not go back"), (datetime(2026, 1, 31), "no time zone")],  # noqa: DTZ001 - that is refused
)
def test_a_time_that_cannot_be_meant_is_refused(target: Target, words: str) -> None:
    with refuses(InvalidRequest, name="target"):
        time_of(target, NOW)
