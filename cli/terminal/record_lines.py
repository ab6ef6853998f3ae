"""A record as a JSON line, as `consume -o jsonl` writes and `produce --json` reads it, byte for byte.

`topic, partition, offset, timestamp, key, value, headers`, of a share group also `delivery_count`. A value that is a JSON
object or array on one line stands there as it is. Other bytes are text if they are valid UTF-8, else base64 in `key_base64`
or `value_base64`. Headers are a list of `{"key": …, "value": …}`, since names may repeat.
"""

import base64
import binascii
import json
import re
from datetime import datetime
from typing import Any, Final

from msgtx.rules.record import EPOCH, MILLISECOND
from msgtx.types import Headers, OutputRecord

_WHITE: Final = re.compile(r"[ \t\r\n]*")
FIELDS: Final = frozenset(
    ("topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers", "delivery_count")
)


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
