"""Records at the bounds: those that every door refuses, and, from a seed, those that every reader bears.

    for odd in REFUSED: ...                       # arguments of `send` that no door takes, with the error that they lead to
    for record in odd_records(seed, count=100): ...   # `OutputRecord`s that every door takes

What is accepted is readable by all; what is refused has a typed error, and the sender goes on working.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

from msgtx.rules.record import TIMES_BEFORE
from msgtx.types import OutputRecord

LATEST_MS: Final = TIMES_BEFORE - 1
LONGEST: Final = 16_000  # bytes of a part of a usual record
# What somebody may take for a number, a text, JSON, a time, a part of a query.
CONTENTS: Final = (
    b"", b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\\",
    b"\\x00", b"\\000",
    b"null", b"NULL", b"true", b"NaN", b"Infinity", b"-Infinity", b"0", b"-0", b"-1", b"1e400", b"1e-400", b"1e131072",
    b"9" * 13, b"9" * 14, b"9" * 15, b"9" * 20, b"9" * 400, b"9" * 5_000, b"-" + b"9" * 20, b" 1", b"1 ", b"1\n",
    b"\n1", b"+1", "\u0661\u0662".encode(), b"0x10", b"1_000", b"1,000", b"1.5", b"\t", b"\r\n", b"\n", b"\n\n", b" ",
    b"{}", b"[]", b'""', b'"', b"{", b'{"a": 1}', b'{"a": 1, "a": 2}', b'"\\u0000"', b'"\\ud800"', b'{"\\u0000": 1}',
    b"[" * 3_000 + b"]" * 3_000, b"[" * 3_000, b'{"a": NaN}', b'{"a": 1e99999999}', b'{"key": null}', b"\xef\xbb\xbf{}",
    b"1970-01-01", b"infinity", b"-infinity", b"294277-01-01", b"9999-12-31T23:59:60Z", b"'; drop table x --", b"%s",
    b"{0}", b"$1",
    "\U0001f680".encode() * 50, "a\u0301\u202e".encode(), bytes(range(256)), b"a" * LONGEST,
    b"\0" * LONGEST, b"\xff" * LONGEST,
)  # fmt: skip
# Names of headers, some of which readers look for.
NAMES: Final = (
    "", " ", "a", "A", "\x01", "\n", "\r\n", "\ufeff", "\ufffd", "\U0001f680", "a\u0301", "'", '"', "\\", "{}", "null",
    "x" * 300, "é" * 2_000, "key", "value", "traceparent", "tracestate", "baggage", "content-type",
    "msgtx.deliver-at", "msgtx.timestamp", "msgtx.",
    *(f"msgtx.dead-letter.{name}" for name in
      ("group", "topic", "partition", "offset", "deliveries", "reason", "member", "time", "timestamp")),
)  # fmt: skip
TIMES: Final = (
    0, 1, 999, 1_000, 86_399_999, 2**31 - 1, 2**31, 2**31 * 1_000, 2**32 * 1_000, 10**12, 10**13, 10**14 - 1, 10**14,
    4_102_444_800_000, LATEST_MS - 1, LATEST_MS,
)  # fmt: skip


@dataclass(frozen=True)
class Refused:
    """What no door takes: arguments as `send` has them, the error's class, and words of its text.

    `by_type`: only Python can say it: SQL has a type for it.
    """

    name: str
    error: str
    words: str
    value: Any = b"v"
    rest: dict[str, Any] = field(default_factory=dict)

    @property
    def by_type(self) -> bool:
        return self.error == "WrongType"


TIME_WORDS: Final = "a timestamp is in milliseconds since 1970 UTC and before the year 9999, not "
TIME_TYPE: Final = "a timestamp is an int (milliseconds) or an aware datetime, not "


def _time(name: str, at: Any, words: str, error: str = "InvalidRequest") -> Refused:
    return Refused(f"time: {name}", error, words, rest={"timestamp": at})


def _header(name: str, headers: Any, words: str, error: str = "InvalidRequest") -> Refused:
    return Refused(f"header: {name}", error, words, rest={"headers": headers})


REFUSED: Final = (
    _time("-1", -1, f"{TIME_WORDS}-1"),
    _time("before 1970", datetime(1960, 1, 1, tzinfo=UTC), f"{TIME_WORDS}-315619200000"),
    _time("a millisecond before 1970", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), f"{TIME_WORDS}-1"),
    _time("before 1970 by its zone", datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=1))), f"{TIME_WORDS}-3600000"),
    _time("the year 9999", LATEST_MS + 1, f"{TIME_WORDS}{LATEST_MS + 1}"),
    _time("the last datetime", datetime.max.replace(tzinfo=UTC), f"{TIME_WORDS}253402300799999"),
    _time("the first datetime", datetime.min.replace(tzinfo=UTC), f"{TIME_WORDS}-62135596800000"),
    _time("microseconds", 1_764_000_000_000_000, f"{TIME_WORDS}1764000000000000"),
    _time("the largest of 64 bits", 2**63 - 1, f"{TIME_WORDS}{2**63 - 1}"),
    _time("the smallest of 64 bits", -(2**63), f"{TIME_WORDS}{-(2**63)}"),
    _time("65 bits", 2**64, f"{TIME_WORDS}{2**64}"),
    _time("huge", 10**5_000, f"{TIME_WORDS}a number of 16610 bits"),
    _time("naive", datetime(2026, 1, 1), "needs its time zone", "WrongType"),  # noqa: DTZ001
    _time("float", 1.0, f"{TIME_TYPE}float", "WrongType"),
    _time("NaN", float("nan"), f"{TIME_TYPE}float", "WrongType"),
    _time("infinite", float("inf"), f"{TIME_TYPE}float", "WrongType"),
    _time("bool", True, f"{TIME_TYPE}bool", "WrongType"),
    _time("text", "2026-01-01", f"{TIME_TYPE}str", "WrongType"),
    Refused("value: text", "WrongType", "a value is bytes or None, not str", value="v"),
    Refused("value: number", "WrongType", "a value is bytes or None, not int", value=1),
    Refused("value: list", "WrongType", "a value is bytes or None, not list", value=[b"v"]),
    Refused("key: text", "WrongType", "a key is bytes or None, not str", rest={"key": "k"}),
    Refused("key: empty text", "WrongType", "a key is bytes or None, not str", rest={"key": ""}),
    Refused("key: number", "WrongType", "a key is bytes or None, not int", rest={"key": 0}),
    _header("NUL in the name", [("a\0b", b"")], "the name of a header has no NUL character"),
    _header("half a surrogate pair", [("a\ud800", b"")], "the name of a header is valid UTF-8"),
    _header("number as name", [(1, b"")], "the name of a header is str, not int", "WrongType"),
    _header("bytes as name", [(b"a", b"")], "the name of a header is str, not bytes", "WrongType"),
    _header("no name", [(None, b"")], "the name of a header is str, not NoneType", "WrongType"),
    _header("text", [("a", "b")], "bytes or None, not str", "WrongType"),
    _header("number", [("a", 1)], "bytes or None, not int", "WrongType"),
    _header("no pairs", [("a",)], "headers are pairs", "WrongType"),
    _header("three parts", [("a", b"", b"")], "headers are pairs", "WrongType"),
    _header("no list", 1, "headers are pairs", "WrongType"),
)
# The same for keys of deduplication.
REFUSED_DEDUP_KEYS: Final = (
    ("", "InvalidRequest", "1 to 256 bytes"),
    ("k" * 257, "InvalidRequest", "1 to 256 bytes"),
    ("é" * 129, "InvalidRequest", "1 to 256 bytes"),
    ("a\0b", "InvalidRequest", "without a NUL character"),
    ("a\ud800", "InvalidRequest", "valid UTF-8"),
    (b"k", "WrongType", "a dedup_key is str, not bytes"),
    (1, "WrongType", "a dedup_key is str, not int"),
)


def odd_records(seed: int, *, count: int, most_bytes: int = 1_000_000) -> Iterator[OutputRecord]:
    """Yield records that every door takes: each content once in each place, then any mixture; `count` of them."""
    chance = random.Random(seed)
    listed = [*_listed()]
    chance.shuffle(listed)
    for at in range(count):
        yield listed[at] if at < len(listed) and chance.random() < 0.7 else _mixed(chance, most_bytes)


def _listed() -> Iterator[OutputRecord]:
    """Yield each content as value, as key and in each header that a reader looks at; each name; each time."""
    for content in CONTENTS:
        yield OutputRecord(content)
        yield OutputRecord(b"v", content)
        yield OutputRecord(None, content or None)
        yield OutputRecord(b"v", headers=[("msgtx.deliver-at", content)])
        yield OutputRecord(b"v", headers=[("traceparent", content), ("tracestate", content), ("baggage", content)])
        yield OutputRecord(content, headers=[(name, content) for name in NAMES])
    for name in NAMES:
        yield OutputRecord(b"v", headers=[(name, None)])
        yield OutputRecord(b"v", headers=[(name, b"1"), (name, b"1"), (name, None)])
    for at in TIMES:
        yield OutputRecord(b"v", timestamp=at)
    yield OutputRecord(None)
    yield OutputRecord(None, b"")
    yield OutputRecord(b"v", headers=[("", None)] * 5_000)


def _mixed(chance: random.Random, most_bytes: int) -> OutputRecord:
    headers = [(chance.choice(NAMES), _content(chance)) for _ in range(chance.choice((0, 0, 1, 1, 2, 5, 40)))]
    headers += headers[:1] * chance.choice((0, 0, 1, 3))
    value, key = _content(chance), _content(chance)
    if chance.random() < 0.02:
        value = chance.randbytes(most_bytes // 2)
    size = sum(len(name.encode()) + len(content or b"") for name, content in headers) + len(value or b"") + len(key or b"")
    if size > most_bytes:
        value, headers = b"", headers[:1]
    time = chance.choice((None, None, chance.choice(TIMES), chance.randrange(LATEST_MS)))
    return OutputRecord(value, key, headers, time)


def _content(chance: random.Random) -> bytes | None:
    kind = chance.random()
    if kind < 0.1:
        return None
    if kind < 0.2:
        return chance.randbytes(chance.randrange(200))
    return chance.choice(CONTENTS)
