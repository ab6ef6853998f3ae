"""A record as a JSON line, as `consume -o jsonl` writes and `produce --json` reads it, byte for byte.

`topic, partition, offset, timestamp, key, value, headers`, of a share group also `delivery_count`. A value that is a JSON
object or array on one line stands there as it is. Other bytes are text if they are valid UTF-8, else base64 in `key_base64`
or `value_base64`. Headers are a list of `{"key": …, "value": …}`, since names may repeat.
"""

import base64
import binascii
import json
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgtx.types import Headers, OutputRecord, Record, ShareRecord

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
# The times that ISO 8601 has four digits of a year for; others are written as the number they are.
FIRST_MS: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
LAST_MS: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
_WHITE: Final = re.compile(r"[ \t\r\n]*")
FIELDS: Final = frozenset(
    ("topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers", "delivery_count")
)


def line_of_record(record: Record) -> str:
    """Return a record as a JSON object, on one line."""
    place = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": time_text(record.timestamp),
        **content_row("key", record.key),
    }
    value = json_text(record.value)
    rest = {
        **({} if value is not None else content_row("value", record.value)),
        "headers": [{"key": name, **content_row("value", content)} for name, content in record.headers],
        **({"delivery_count": record.delivery_count} if isinstance(record, ShareRecord) else {}),
    }
    head, tail = (json.dumps(part, ensure_ascii=False) for part in (place, rest))
    return head[:-1] + ("" if value is None else f', "value": {value}') + f", {tail[1:]}"


def json_text(value: bytes | None) -> str | None:
    """Return a value that is a JSON object or array, in its own letters; None if it is none, or has several lines."""
    if value is None or value[:1] not in {b"{", b"["} or value[-1:] not in {b"}", b"]"} or len(value.splitlines()) > 1:
        return None
    try:
        text = value.decode()
        json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    """Read a number. Refuse one that a reader of JSON would take for Infinity, which it could not write again."""
    if math.isinf(number := float(text)):
        _refuse(text)
    return number


def time_text(timestamp_ms: int) -> str | int:
    """Return a time as ISO 8601 in UTC, to the millisecond."""
    if not FIRST_MS <= timestamp_ms <= LAST_MS:
        return timestamp_ms
    return (EPOCH + timestamp_ms * MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def record_of_line(line: bytes) -> OutputRecord:
    """Read a JSON line. Raise `ValueError` with the fault."""
    row = object_of_line(line)
    if isinstance(row.get("value"), dict | list):
        row["value"] = _member(line.decode(), "value")
    unknown = row.keys() - FIELDS
    if unknown:
        raise ValueError(f"unknown field {min(unknown)!r}; a record has {', '.join(sorted(FIELDS))}")
    if "value" not in row and "value_base64" not in row:
        raise ValueError("a record needs value or value_base64 (null: a tombstone)")
    partition = row.get("partition")
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool)):
        raise ValueError(f"partition is a whole number, not {partition!r}")
    return OutputRecord(
        value=_bytes(row, "value"),
        key=_bytes(row, "key"),
        headers=_headers(row.get("headers")),
        timestamp=_timestamp(row.get("timestamp")),
        partition=partition,
    )


def _member(text: str, name: str) -> str:
    """Return a member of a JSON object in its own letters. The last one of that name counts, as for `json.loads`."""
    decoder = json.JSONDecoder()
    found, at = "", text.index("{") + 1
    while True:
        key, at = decoder.raw_decode(text, _WHITE.match(text, at).end())  # type: ignore[union-attr]  # matches nothing, too
        at = _WHITE.match(text, text.index(":", at) + 1).end()  # type: ignore[union-attr]
        begin = at
        _, at = decoder.raw_decode(text, begin)
        if key == name:
            found = text[begin:at]
        at = _WHITE.match(text, at).end()  # type: ignore[union-attr]
        if text[at] == "}":
            return found
        at += 1


def object_of_line(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line. Raise `ValueError`."""
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object but {json.dumps(row)[:40]}")
    return row


def text_bytes(text: str) -> bytes:
    """Return a JSON text as UTF-8. Raise `ValueError` for half a surrogate pair, which no UTF-8 can hold."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text[:40]!a} holds half a surrogate pair; write such bytes as base64") from None


def content_row(name: str, content: bytes | None) -> dict[str, str | None]:
    """Return bytes as JSON has them: as a text, else in base64."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def _bytes(row: dict[str, Any], name: str) -> bytes | None:
    coded = row.get(f"{name}_base64")
    if coded is None:
        return _text(row.get(name), name)
    if row.get(name) is not None:
        raise ValueError(f"{name} and {name}_base64 exclude each other")
    if not isinstance(coded, str):
        raise ValueError(f"{name}_base64 is a text, not {json.dumps(coded)[:40]}")
    try:
        return base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{name}_base64: {error}") from None


def _text(content: object, name: str) -> bytes | None:
    if content is None:
        return None
    if not isinstance(content, str):
        raise ValueError(f"{name} is a text or null, not {json.dumps(content)[:40]}")
    return text_bytes(content)


def _headers(given: object) -> Headers:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise ValueError('headers are a list of {"key": …, "value": …}')
    return tuple(_header(one) for one in given)


def _header(one: object) -> tuple[str, bytes | None]:
    if not isinstance(one, dict) or not isinstance(one.get("key"), str) or one.keys() - {"key", "value", "value_base64"}:
        raise ValueError(f'a header is {{"key": …, "value": …}}, not {json.dumps(one)[:40]}')
    name = one["key"]
    if "\0" in name:
        raise ValueError(f"the name of a header holds no zero character: {name!r}")
    text_bytes(name)
    return name, _bytes(one, "value")


def _timestamp(given: object) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    if isinstance(given, str):
        try:
            time = datetime.fromisoformat(given)
        except ValueError:
            time = None
        if time is not None and time.tzinfo is not None:
            return (time - EPOCH) // MILLISECOND
    raise ValueError(f"timestamp is ISO 8601 with its zone, or milliseconds, not {json.dumps(given)[:40]}")
