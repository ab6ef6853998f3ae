"""What Spark's rows may be: the same as at every other door, without a Spark session (I16)."""

import datetime
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

import msgtx
from msgtx import errors
from msgtx.spark_jobs.batch import abort, make_target
from msgtx.spark_jobs.reading.read_options import parse
from msgtx.spark_jobs.source import SCHEMA, BatchReader, read
from msgtx.spark_jobs.writing.attempt import write_attempt
from msgtx.store.spark import BatchName, decide_batch
from msgtx.types import OutputRecord
from tests.odd_records import REFUSED, Refused, odd_records
from tests.store.steps import unique

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
Row = tuple[
    bytes | None, bytes | None, Sequence[tuple[str | None, bytes | None]] | None, int | None
]  # its time in microseconds
FINE: Row = (b"fine", b"k", [("a", None)], 0)


def headers_of(rows: Sequence[Row]) -> pa.Array:
    """Return headers as the JVM hands them over: what it holds as text need not be UTF-8."""
    pairs = [pair for row in rows for pair in row[2] or ()]
    given = [None if name is None else name.encode(errors="surrogatepass") for name, _ in pairs]
    names = pa.Array.from_buffers(pa.string(), len(given), pa.array(given, pa.binary()).buffers())
    starts = itertools.accumulate((len(row[2] or ()) for row in rows), initial=0)
    contents = pa.array([content for _, content in pairs], pa.binary())
    found = pa.ListArray.from_arrays(
        pa.array(starts, pa.int32()), pa.StructArray.from_arrays([names, contents], names=["key", "value"])
    )
    return found if pairs else pa.nulls(len(rows), found.type)


def batches(rows: Sequence[Row], size: int = 2) -> Iterator[pa.RecordBatch]:
    """Yield rows as Spark does, some at a time."""
    for at in range(0, len(rows), size):
        some = rows[at : at + size]
        columns = [
            pa.array([row[0] for row in some], pa.binary()),
            pa.array([row[1] for row in some], pa.binary()),
            headers_of(some),
            pa.array([row[3] for row in some], pa.timestamp("us", tz="UTC")),
        ]
        yield pa.RecordBatch.from_arrays(columns, names=["value", "key", "headers", "timestamp"])


def write(client: msgtx.Client, topic: str, rows: Sequence[Row]) -> None:
    batch = BatchName(unique("app"), "", 0)
    try:
        written = write_attempt(batches(rows), make_target(client.runtime.engine, topic), batch)
        assert written is not None
        with client.runtime.engine.connection() as connection:
            assert decide_batch(connection, batch, [written]).error is None
    finally:
        abort(client.runtime.engine, batch)


def can_be_said(odd: Refused) -> bool:
    """Whether a DataFrame can hold it: its columns have types, and its times an end."""
    at = odd.rest.get("timestamp")
    return (not odd.by_type or odd.name == "header: no name") and (not isinstance(at, int) or abs(at) < 2**63 // 1_000)


def as_row(odd: Refused) -> Row:
    at = odd.rest.get("timestamp")
    if isinstance(at, datetime.datetime):
        at = (at - EPOCH) // datetime.timedelta(microseconds=1)
    elif at is not None:
        at *= 1_000
    return odd.value, odd.rest.get("key"), odd.rest.get("headers"), at


@pytest.mark.parametrize("odd", [each for each in REFUSED if can_be_said(each)], ids=lambda odd: odd.name)
def test_what_every_door_refuses_is_refused_and_names_its_row(client: msgtx.Client, odd: Refused) -> None:
    topic = unique("refused")
    client.topics.create(topic)
    with pytest.raises(getattr(errors, odd.error)) as caught:
        write(client, topic, [FINE, FINE, FINE, as_row(odd), FINE])
    assert odd.words in str(caught.value)
    assert "it is row 3 of its task, counting from 0" in str(caught.value)
    assert list(client.read(client.snapshot([topic]))) == []
    write(client, topic, [FINE])
    assert [each.value for each in client.read(client.snapshot([topic]))] == [b"fine"]


@pytest.mark.parametrize(
    ("settings", "row", "error"),
    [
        ({"max_message_bytes": 1_000}, (b"x" * 990, b"k" * 11, None, None), errors.RecordTooLarge),
        ({"max_message_bytes": 1_000}, (b"x", None, [("h" * 500, b"x" * 500)], None), errors.RecordTooLarge),
        ({"cleanup_policy": "compact"}, (b"x", None, None, None), errors.InvalidRecord),
    ],
    ids=["value and key", "headers", "no key"],
)
def test_what_a_topic_does_not_take_names_its_row(
    client: msgtx.Client, settings: dict[str, Any], row: Row, error: type[Exception]
) -> None:
    topic = unique("refused")
    client.topics.create(topic, **settings)
    with pytest.raises(error, match="it is row 3 of its task"):
        write(client, topic, [FINE, FINE, FINE, row])


def test_what_every_door_takes_is_written_and_read_as_it_is(client: msgtx.Client, database_url: str) -> None:
    topic = unique("odd")
    client.topics.create(topic, max_message_bytes=4_000_000)
    records = list(odd_records(1, count=600))
    times = [None if each.timestamp is None else as_milliseconds(each) for each in records]
    write(
        client,
        topic,
        [
            (each.value, each.key, list(each.headers) or None, None if at is None else at * 1_000)
            for each, at in zip(records, times, strict=True)
        ],
    )
    stored = list(client.read(client.snapshot([topic])))
    assert [(each.value, each.key, list(each.headers)) for each in stored] == [
        (each.value, each.key, list(each.headers)) for each in records
    ]
    assert [None if at is None else each.timestamp for each, at in zip(stored, times, strict=True)] == times
    options = {"url": database_url, "subscribe": topic, "includeHeaders": "true"}
    found = [
        row
        for task in BatchReader(parse(options), SCHEMA).partitions()
        for rows in read(task, SCHEMA)
        for row in rows.set_column(
            5, "timestamp", rows.column("timestamp").cast(pa.timestamp("ms")).cast(pa.int64())
        ).to_pylist()
    ]
    assert [(row["value"], row["key"], row["timestamp"], row["offset"]) for row in found] == [
        (each.value, each.key, each.timestamp, each.offset) for each in stored
    ]
    assert [[tuple(pair.values()) for pair in row["headers"] or ()] for row in found] == [
        list(each.headers) for each in stored
    ]


def as_milliseconds(record: OutputRecord) -> int:
    assert isinstance(record.timestamp, int)
    return record.timestamp
