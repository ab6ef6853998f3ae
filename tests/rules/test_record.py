"""What a record may be."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from msgtx.rules import record
from msgtx.rules.record import TIMES_BEFORE, are_times, as_bytes, as_headers, as_milliseconds, check_dedup_key, record_bytes
from tests.house.sources import SQL
from tests.odd_records import REFUSED, REFUSED_DEDUP_KEYS, Refused, odd_records
from tests.refusals import refuses


def test_times_are_from_1970_on_as_far_as_each_reader_can_represent_them() -> None:
    """Those of no record are, too."""
    assert are_times([])
    assert are_times([0, TIMES_BEFORE - 1])
    assert not are_times([5, -1])
    assert not are_times([TIMES_BEFORE, 5])
    last = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=TIMES_BEFORE - 1)
    for hours in (-14, 0, 14):
        assert last.astimezone(timezone(timedelta(hours=hours))).year in {9998, 9999}


def test_the_database_has_the_same_bound() -> None:
    text = (SQL / "append" / "is_record_time.sql").read_text()
    assert re.findall(r"timestamp_ms < (\d+)", text) == [str(TIMES_BEFORE)]


def test_a_datetime_is_as_exact_as_it_says() -> None:
    assert as_milliseconds(datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)) == 1_767_225_600_999
    assert as_milliseconds(datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == TIMES_BEFORE - 1
    assert as_milliseconds(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0


def test_bytes_may_come_in_each_of_pythons_types() -> None:
    assert [as_bytes(item, "value") for item in (None, b"a", bytearray(b"b"), memoryview(b"c"))] == [None, b"a", b"b", b"c"]
    assert as_headers([("a", bytearray(b"b")), ("c", None)]) == (("a", b"b"), ("c", None))


def test_headers_are_pairs_or_a_mapping() -> None:
    assert as_headers({"a": b"1", "b": None}) == as_headers([("a", b"1"), ("b", None)]) == (("a", b"1"), ("b", None))
    assert as_headers([("a", b"1"), ("a", b"1")]) == (("a", b"1"), ("a", b"1")), "names may repeat"


@pytest.mark.parametrize("odd", REFUSED, ids=lambda odd: odd.name)
def test_what_no_record_may_be_is_refused(odd: Refused) -> None:
    def gate() -> None:
        as_bytes(odd.value, "value")
        as_bytes(odd.rest.get("key"), "key")
        as_headers(odd.rest.get("headers", ()))
        as_milliseconds(odd.rest.get("timestamp", 0))

    with pytest.raises((TypeError, record.errors.InvalidRequest), match=re.escape(odd.words)) as refused:
        gate()
    assert type(refused.value).__name__ == odd.error


@pytest.mark.parametrize(("key", "error", "words"), REFUSED_DEDUP_KEYS, ids=lambda key: ascii(key)[:20])
def test_what_no_key_of_deduplication_may_be_is_refused(key: object, error: str, words: str) -> None:
    with refuses((TypeError, record.errors.InvalidRequest), name="dedup_key") as refused:
        check_dedup_key(key)
    assert type(refused.value).__name__ == error
    check_dedup_key("k" * 256)


def test_odd_records_are_records() -> None:
    for odd in odd_records(20_261_127, count=1_000):
        assert as_bytes(odd.value, "value") == odd.value
        assert as_headers(odd.headers) == tuple(odd.headers)
        assert odd.timestamp is None or as_milliseconds(odd.timestamp) == odd.timestamp
        assert record_bytes(odd.value, odd.key, odd.headers) <= 1_000_000
