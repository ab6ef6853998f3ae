"""Committed ranges as Arrow record batches: built from the columns of the log's rows, without an object per record."""

import bisect
import functools
import itertools
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute

from msgtx import errors
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.rules.ranges import PartitionRange
from msgtx.spark_jobs.runtime.outage import persevering
from msgtx.store.fetch.fetch import FetchedBatch, FetchedPartition, Position, fetch
from msgtx.types import Isolation

FETCH_BYTES: Final = 4 * 1024 * 1024  # of one fetch, and so of one record batch: more only costs memory
FETCH_ROWS: Final = 10_000  # of one fetch: enough for a log of one-record rows to come near to those bytes
LONG: Final = 512  # records of a batch: from here on Arrow counts offsets faster than Python, whose time is that of one call
CREATE_TIME: Final = 0  # `timestampType`, numbered as Kafka does
LOG_APPEND_TIME: Final = 1
TIME: Final = pa.timestamp("us", tz="UTC")
HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
COLUMNS: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIME,
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER)),
}


@dataclass(slots=True)
class _Columns:
    """The columns of one fetch, one element per record. `headers`: whether any record has some."""

    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    timestamps: "array[int]" = field(default_factory=lambda: array("q"))
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    header_counts: list[int] = field(default_factory=list)
    header_keys: list[str] = field(default_factory=list)
    header_values: list[bytes | None] = field(default_factory=list)

    def add(self, batch: FetchedBatch) -> None:
        count = len(batch.values)
        base = batch.base_offset
        deltas = batch.offset_deltas
        if deltas is not None:
            self.offsets.extend([base + delta for delta in deltas])
        elif count < LONG:
            self.offsets.extend(range(base, base + count))
        else:
            self.offsets.frombytes(_counted(base, count))
        self.timestamps.extend(array("q", [batch.max_timestamp]) * count if batch.timestamps is None else batch.timestamps)
        self.keys.extend(itertools.repeat(None, count) if batch.keys is None else batch.keys)
        self.values.extend(batch.values)
        if batch.header_counts is None:
            self.header_counts.extend(itertools.repeat(0, count))
        else:
            self.header_counts.extend(batch.header_counts)
            self.header_keys.extend(batch.header_keys or ())
            self.header_values.extend(batch.header_values or ())


def record_batch(
    batches: Sequence[FetchedBatch], wanted: PartitionRange, schema: pa.Schema, *, timestamp_type: int = CREATE_TIME
) -> pa.RecordBatch:
    """Return the records of these rows in a range, with the columns of `schema` (those of `COLUMNS`, in any case)."""
    columns = _Columns()
    for batch in batches:
        columns.add(batch)
    made = [_column(name, columns, wanted, timestamp_type) for name in schema.names]
    first = bisect.bisect_left(columns.offsets, wanted.start)
    last = bisect.bisect_left(columns.offsets, wanted.end)
    # Only the range's first and last fetch return more than the range: a slice copies nothing.
    return pa.RecordBatch.from_arrays(made, schema=schema).slice(first, last - first)


def _column(name: str, columns: _Columns, wanted: PartitionRange, timestamp_type: int) -> pa.Array:
    count = len(columns.offsets)
    match name.lower():
        case "key":
            return pa.array(columns.keys, pa.binary())
        case "value":
            return pa.array(columns.values, pa.binary())
        case "topic":
            return pa.repeat(wanted.topic, count)
        case "partition":
            return pa.repeat(pa.scalar(wanted.partition, pa.int32()), count)
        case "offset":
            return _numbers(columns.offsets, pa.int64())
        case "timestamp":
            return _numbers(columns.timestamps, pa.timestamp("ms", tz="UTC")).cast(TIME)
        case "timestamptype":
            return pa.repeat(pa.scalar(timestamp_type, pa.int32()), count)
        case "headers":
            return _headers(columns)
        case _:
            raise AssertionError(name)


def _counted(start: int, count: int) -> pa.Buffer:
    """Return `count` offsets from `start` on, counted by Arrow: in Python these are half of what a record costs."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    return pyarrow.compute.cumulative_sum(ones, start=start - 1).buffers()[1]


def _numbers(numbers: "array[int]", kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _headers(columns: _Columns) -> pa.Array:
    """Return lists of headers; a record without any has null, as with Spark's Kafka source."""
    if not columns.header_keys:
        return pa.nulls(len(columns.offsets), COLUMNS["headers"])
    pairs = pa.StructArray.from_arrays(
        [pa.array(columns.header_keys, pa.string()), pa.array(columns.header_values, pa.binary())], fields=list(HEADER)
    )
    bounds = pa.array([0, *itertools.accumulate(columns.header_counts)], pa.int32())
    none = pyarrow.compute.equal(pa.array(columns.header_counts, pa.int32()), 0)
    return pa.ListArray.from_arrays(bounds, pairs, type=COLUMNS["headers"], mask=none)


def read_range(
    engine: Engine, wanted: PartitionRange, schema: pa.Schema, *, timestamp_type: int = CREATE_TIME, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the committed records of a range. Records that retention or a crash has removed are an error, or are left out.

    Raise `OffsetOutOfRange`, `LogTruncated`, `UnknownTopicOrPartition`.
    """
    position = Position(wanted.start)
    while position.offset < wanted.end:
        answer = persevering(engine, functools.partial(_answer, wanted, position))
        lost = _loss(answer, wanted, position)
        if lost is not None and fail_on_data_loss:
            raise lost
        if answer is None or (lost is not None and not isinstance(lost, errors.OffsetOutOfRange)):
            return
        if lost is not None:
            position = Position(answer.log_start_offset)
            continue
        if answer.batches:
            rest = replace(wanted, start=position.offset)
            made = record_batch(answer.batches, rest, schema, timestamp_type=timestamp_type)
            if made.num_rows:
                yield made
        position = Position(answer.position, answer.token)


def _answer(wanted: PartitionRange, position: Position, connection: RawConnection) -> FetchedPartition | None:
    found = fetch(
        connection,
        {wanted.partition_id: position},
        isolation=Isolation.READ_COMMITTED,
        max_bytes=FETCH_BYTES,
        max_rows=FETCH_ROWS,
    )
    return found.get(wanted.partition_id)


def _loss(answer: FetchedPartition | None, wanted: PartitionRange, position: Position) -> errors.MsgtxError | None:
    """Return the lost range, if the answer does not continue where the range does."""
    todo = "failOnDataLoss=false goes on without them"
    if answer is None:
        return errors.UnknownTopicOrPartition(
            f"{wanted.topic_partition} was deleted while [{wanted.start}, {wanted.end}) of it was to be read; {todo}"
        )
    if position.offset < answer.log_start_offset:
        return errors.OffsetOutOfRange(
            f"{wanted.topic_partition}: records from offset {position.offset} to {min(answer.log_start_offset, wanted.end)}"
            f" were removed by retention before they were read; {todo}"
        )
    if answer.truncated or answer.position == position.offset:
        return errors.LogTruncated(
            f"{wanted.topic_partition}: records from offset {position.offset} to {wanted.end} are not there (any more), the"
            f" log ends at {answer.log_end_offset}: a crash took them back; {todo}"
        )
    return None
