"""The one gate for records in front of every door (internals: append#what-a-record-may-be).

The database has the last word, for clients that pass this gate by: `check_times`, `headers_fit` and `check_records` say the
same there.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from json import dumps
from typing import Any, Final

from msgtx import errors
from msgtx.arguments import shown

HeaderPairs = Sequence[tuple[str, bytes | None]]
GivenHeaders = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
# Of a record's time: 9999-01-01 UTC. Each reader can represent what lies before it, in each time zone: Python's datetime
# ends with that year, and PySpark turns times into local ones.
TIMES_BEFORE: Final = 253_370_764_800_000
REASON_CHARACTERS: Final = 1_000  # it has to fit into its topic with its record
CONTENT: Final = (bytes, bytearray, memoryview, type(None))
PLAIN: Final = frozenset((bytes, type(None)))  # values that need not be converted
OWN_HEADERS: Final = "msgtx."  # the prefix of msgtx's own headers
OWN_HEADER_BYTES: Final = 8 * 1024  # the headers of a dead letter beside its record's: with its reason up to 7 KiB
DEDUP_KEY_BYTES: Final = 256  # the most of a dedup_key: it stands in an index


def as_bytes(item: Any, name: str) -> bytes | None:
    """Return a value, a key or the content of a header. Raise `WrongType` for a value that is not bytes."""
    if isinstance(item, CONTENT):
        return None if item is None else bytes(item)
    hint = "; encode it, or give the producer a serializer" if isinstance(item, str) else ""
    raise errors.WrongType(f"a {name} is bytes or None, not {type(item).__name__}{hint}", name=name)


def as_json(value: Any, json: Any) -> bytes:
    """Return the value of a record that is given as JSON, so without `value`; `...` is not given. Raise `WrongType`."""
    if (value is ...) is (json is ...):
        raise errors.WrongType("a record has a value (None is a tombstone) or json=…, one of both", name="value")
    try:
        return dumps(json, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.WrongType(f"json cannot be written as JSON: {error}", name="json") from error


def as_headers(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers, given as pairs or by name. Raise `WrongType`, `InvalidRequest`."""
    if not isinstance(headers, list | tuple) and isinstance(headers, Mapping):
        headers = headers.items()
    try:
        pairs = tuple((name, content) for name, content in headers)
    except (TypeError, ValueError) as error:
        raise errors.WrongType(
            f'headers are pairs, [("name", b"content")], or {{"name": b"content"}}, not {shown(headers)}', name="headers"
        ) from error
    plain = True
    for name, content in pairs:
        if not isinstance(name, str):
            raise errors.WrongType(f"the name of a header is str, not {type(name).__name__}", name="headers")
        if "\0" in name:
            raise errors.InvalidRequest(f"the name of a header has no NUL character; this one is {name!r}", name="headers")
        if not name.isascii() and not is_utf8(name):
            raise errors.InvalidRequest(f"the name of a header is valid UTF-8; this one is {name!r}", name="headers")
        if content.__class__ in PLAIN:
            continue
        plain = False
        if not isinstance(content, CONTENT):
            raise errors.WrongType(
                f"the content of a header is bytes or None, not {type(content).__name__}: {name}={shown(content)}",
                name="headers",
            )
    if plain:
        return pairs
    return tuple((name, None if content is None else bytes(content)) for name, content in pairs)


def as_milliseconds(timestamp: Any) -> int:
    """Return a record's timestamp. Raise `WrongType`, `InvalidRequest`."""
    if timestamp.__class__ is int and 0 <= timestamp < TIMES_BEFORE:
        return timestamp  # as it mostly is
    if isinstance(timestamp, datetime):
        if timestamp.utcoffset() is None:
            raise errors.WrongType(
                "a timestamp needs its time zone: use an aware datetime, or milliseconds since 1970 UTC", name="timestamp"
            )
        timestamp = (timestamp - EPOCH) // MILLISECOND
    if isinstance(timestamp, bool) or not hasattr(timestamp, "__index__"):
        raise errors.WrongType(
            f"a timestamp is an int (milliseconds) or an aware datetime, not {type(timestamp).__name__}", name="timestamp"
        )
    number = operator.index(timestamp)
    if not are_times((number,)):
        raise errors.InvalidRequest(
            f"a timestamp is in milliseconds since 1970 UTC and before the year 9999, not {_shown(number)}", name="timestamp"
        )
    return number


def are_times(timestamps: Sequence[int]) -> bool:
    """Return whether records may have these times, in milliseconds since 1970 UTC."""
    return not timestamps or (min(timestamps) >= 0 and max(timestamps) < TIMES_BEFORE)


def check_dedup_key(dedup_key: object) -> None:
    """Raise `WrongType`, `InvalidRequest` for a value that is no dedup key."""
    if not isinstance(dedup_key, str):
        raise errors.WrongType(f"a dedup_key is str, not {type(dedup_key).__name__}", name="dedup_key")
    size = len(dedup_key.encode(errors="surrogatepass"))
    if not 0 < size <= DEDUP_KEY_BYTES:
        raise errors.InvalidRequest(
            f"a dedup_key has 1 to {DEDUP_KEY_BYTES} bytes of UTF-8, not {size}", name="dedup_key", limit=DEDUP_KEY_BYTES
        )
    if "\0" in dedup_key or not is_utf8(dedup_key):
        raise errors.InvalidRequest(
            f"a dedup_key is valid UTF-8 without a NUL character; this one is {dedup_key!r}", name="dedup_key"
        )


def as_reason(text: str) -> str:
    """Return why a record is set aside, as the database can hold it: short, valid UTF-8, without NUL."""
    return text[:REASON_CHARACTERS].encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded: half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def record_bytes(value: bytes | None, key: bytes | None, headers: HeaderPairs = ()) -> int:
    """Return the size of a record in bytes: key, value, headers."""
    size = len(value or b"") + len(key or b"")
    return size + sum(len(name.encode()) + len(content or b"") for name, content in headers) if headers else size


def counted_bytes(size: int, headers: HeaderPairs) -> int:
    """Return the bytes of a record that count for `max_message_bytes`: msgtx's own headers count only beyond 8 KiB.

    So a record that fits into a topic fits into another one as a dead letter, too.
    """
    own = sum(len(name.encode()) + len(content or b"") for name, content in headers if name.startswith(OWN_HEADERS))
    return size - min(own, OWN_HEADER_BYTES)


def too_large(topic: str, limit: int, size: int) -> errors.RecordTooLarge:
    """Return the refusal of a record of so many bytes."""
    return errors.RecordTooLarge(
        f"{topic} takes records of at most {limit} bytes (max_message_bytes); one has {size}",
        topic=topic,
        given=size,
        limit=limit,
    )


def lacks_key(topic: str) -> errors.InvalidRecord:
    """Return the refusal of a record without a key by a topic that is compacted."""
    return errors.InvalidRecord(f"{topic} is compacted: every record needs a key", topic=topic, reason="no key")


def _shown(number: int) -> str:
    return str(number) if number.bit_length() < 256 else f"a number of {number.bit_length()} bits"
