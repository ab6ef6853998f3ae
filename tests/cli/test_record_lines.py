"""A record and its JSON line."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgtx.cli.terminal.record_lines import record_of_line
from msgtx.rows import json_text, line_of_record
from msgtx.types import OutputRecord, Record

json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
written = st.builds(
    lambda value, indent, ascii_: json.dumps(value, indent=indent, ensure_ascii=ascii_).encode(),
    json_values,
    st.sampled_from([None, 1]),
    st.booleans(),
)
content = st.none() | st.binary(max_size=40) | st.text(max_size=40).map(str.encode) | written
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)


@given(
    content,
    content,
    st.lists(st.tuples(names, content), max_size=3).map(tuple),
    st.integers(min_value=-(2**63), max_value=2**63 - 1),
)
def test_a_record_survives_its_line(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...], timestamp: int
) -> None:
    record = Record("orders", 3, 42, timestamp, key, value, headers)
    line = line_of_record(record).encode()
    assert b"\n" not in line
    assert record_of_line(line) == OutputRecord(value, key, headers, timestamp, partition=3)


def test_a_line_has_the_names_of_the_record_and_text_where_there_is_text() -> None:
    record = Record("orders", 1, 7, 1_767_268_800_123, b"caf\xc3\xa9", b"\xff\x00", (("source", b"web"), ("source", None)))
    assert json.loads(line_of_record(record)) == {
        "topic": "orders",
        "partition": 1,
        "offset": 7,
        "timestamp": "2026-01-01T12:00:00.123Z",
        "key": "café",
        "value_base64": "/wA=",
        "headers": [{"key": "source", "value": "web"}, {"key": "source", "value": None}],
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"id": 305,"id":1.10}', '"value": {"id": 305,"id":1.10}'),
        (b"[ ]", '"value": [ ]'),
        (b"305", '"value": "305"'),
        (b'"text"', r'"value": "\"text\""'),
        (b"[NaN]", '"value": "[NaN]"'),
        (b"[1,]", '"value": "[1,]"'),
        (b'{\n"id": 1}', r'"value": "{\n\"id\": 1}"'),
        (b"[" * 100_000 + b"]" * 100_000, '"value": "[['),
    ],
    ids=lambda each: repr(each)[:20],
)
def test_a_value_that_is_json_stands_in_its_line_as_it_is(value: bytes, shown: str) -> None:
    line = line_of_record(Record("orders", 0, 7, 0, None, value, ()))
    assert shown in line
    assert record_of_line(line.encode()).value == value


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"", "not JSON"),
        (b"{'value': 1}", "not JSON: Expecting property name enclosed in double quotes at character 2"),
        (b'{"value": "\xff"}', "not UTF-8 at byte 12"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "not a JSON object"),
        (b"{}", "needs value"),
        (b'{"value": 1}', "value is a text or null"),
        (b'{"value": "a", "valeu": "b"}', "unknown field 'valeu'"),
        (b'{"value": "a", "value_base64": "YQ=="}', "exclude each other"),
        (b'{"value_base64": "not base64"}', "value_base64"),
        (b'{"value": "\\ud800"}', "half a surrogate pair"),
        (b'{"value": "a", "timestamp": "2026-01-01T12:00:00"}', "timestamp"),
        (b'{"value": "a", "timestamp": true}', "timestamp"),
        (b'{"value": "a", "partition": "1"}', "partition"),
        (b'{"value": "a", "headers": {"a": "b"}}', "headers"),
        (b'{"value": "a", "headers": [{"key": "a\\u0000", "value": "b"}]}', "zero"),
        (b'{"value": "a", "headers": [["a", "b"]]}', "a header is"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        record_of_line(line)


@pytest.mark.parametrize(("levels", "is_shown"), [(100, True), (101, False), (900, False)])
def test_a_value_that_is_very_deep_is_text(levels: int, is_shown: bool) -> None:
    """Python writes JSON by recursion: inside a page's JSON it would be too deep."""
    value = b"[" * levels + b"]" * levels
    assert (json_text(value) is not None) is is_shown
    assert json_text(b"[" + b",".join([b"[]"] * 200) + b"]") is not None
