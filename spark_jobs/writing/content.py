"""The rows of a task as records: from Arrow to Python, and past the gate that all records pass (`rules/record.py`).

A refusal names its row: the place among all rows of its task, counting from 0. Columns are looked at as a whole, in
Arrow; only where one holds something that is refused, the row is searched.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from msgtx import errors
from msgtx.config import ROW_BYTES, ROW_RECORDS
from msgtx.rules.record import TIMES_BEFORE, as_headers, as_milliseconds, lacks_key, record_bytes, too_large

ROW: Final = "msgtx_row"  # a column: the place of a row in its task
Refused = TypeVar("Refused", bound=errors.MsgtxError)


def numbered(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the place of each row in its task."""
    before = 0
    for each in rows:
        places = pa.array(range(before, before + each.num_rows), pa.int64())
        yield pa.RecordBatch.from_arrays([*each.columns, places], names=[*each.schema.names, ROW])
        before += each.num_rows


def placed(error: Refused, rows: pa.RecordBatch, at: int) -> Refused:
    """Return an error that names its row."""
    return type(error)(f"{error}; it is row {rows.column(ROW)[at].as_py()} of its task, counting from 0")


def pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of about a row of the log."""
    at_once = max(1, min(ROW_RECORDS, ROW_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, at_once):
        yield rows.slice(start, at_once)


def bytes_of(rows: pa.RecordBatch, name: str) -> list[Any]:
    """Return a column of bytes, or of text as bytes."""
    column = rows.column(name)
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        column = column.cast(pa.binary())
    found: list[Any] = column.to_pylist()
    return found


def milliseconds_of(rows: pa.RecordBatch) -> list[Any]:
    """Return the times of records. Raise `InvalidRequest` for one that a record cannot have."""
    times = rows.column("timestamp").cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    bounds = pc.min_max(times).as_py()
    if bounds["min"] is not None and (bounds["min"] < 0 or bounds["max"] >= TIMES_BEFORE * 1_000):
        _search(rows, times.to_pylist(), lambda microseconds: microseconds is None or as_milliseconds(microseconds // 1_000))
    found: list[Any] = times.cast(pa.timestamp("us")).cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_pylist()
    return found


def headers_of(rows: pa.RecordBatch) -> list[Any]:
    """Return the headers of records. Raise `InvalidRequest`, `WrongType` for an impossible header."""
    column = rows.column("headers")
    pairs = column.flatten()
    names = pairs.field(0)
    if pairs.null_count or not _are_names(names):
        _search(rows, column, lambda found: _headers(found.values))
    return [() if found is None else tuple(tuple(pair.values()) for pair in found) for found in column.to_pylist()]


def _are_names(names: pa.Array) -> bool:
    try:
        names.validate(full=True)  # that it is UTF-8
    except pa.ArrowInvalid:
        return False
    return not names.null_count and not pc.any(pc.match_substring(names, "\0")).as_py()


def _headers(found: pa.Array | None) -> object:
    """Pass the headers of one record through the gate."""
    pairs: list[Any] = []
    for each in found or ():
        if not each.is_valid:
            pairs.append(None)
            continue
        name, content = each.values()
        try:
            pairs.append((name.as_py(), content.as_py()))
        except UnicodeDecodeError:
            raise errors.InvalidRequest(
                f"the name of a header is valid UTF-8; this one is {name.as_buffer().to_pybytes()!r}"
            ) from None
    return as_headers(pairs)


def check_content(
    rows: pa.RecordBatch, columns: Mapping[str, Sequence[Any]], *, topic: str, limit: int, compacted: bool
) -> None:
    """Raise `RecordTooLarge`, `InvalidRecord` for a record that a topic does not take."""
    keys = columns.get("key")
    if compacted and (keys is None or None in keys):
        raise placed(lacks_key(topic), rows, 0 if keys is None else list(keys).index(None))
    if _most_bytes(rows) <= limit:
        return
    values, headers = columns["value"], columns.get("headers")
    for at, value in enumerate(values):
        size = record_bytes(value, None if keys is None else keys[at], () if headers is None else headers[at])
        if size > limit:
            raise placed(too_large(topic, limit, size), rows, at)


def _most_bytes(rows: pa.RecordBatch) -> int:
    """Return a size that no record has more bytes than."""
    longest = (
        pc.max(pc.binary_length(rows.column(name))).as_py() or 0 for name in ("value", "key") if name in rows.schema.names
    )
    return int(sum(longest)) + (rows.column("headers").nbytes if "headers" in rows.schema.names else 0)


def _search(rows: pa.RecordBatch, found: Iterable[Any], check: Callable[[Any], object]) -> None:
    """Raise the first error of a check, with the row's place."""
    for at, each in enumerate(found):
        try:
            check(each)
        except errors.MsgtxError as error:
            raise placed(error, rows, at) from None
