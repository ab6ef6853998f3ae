"""The text that `consume --format` prints for each record, with kcat's names of its parts."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import click

from msgtx.types import Record

Part = Callable[[Record], bytes]
# A part is % and a letter; an escape is a backslash and a letter, or x and two digits.
_MARK: Final = re.compile(rb"%(.?)|\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}


def _size(content: bytes | None) -> bytes:
    return b"%d" % (-1 if content is None else len(content))


def _headers(record: Record) -> bytes:
    return b",".join(name.encode() + b"=" + (content or b"") for name, content in record.headers)


_PARTS: Final[Mapping[bytes, Part]] = {
    b"t": lambda record: record.topic.encode(),
    b"p": lambda record: b"%d" % record.partition,
    b"o": lambda record: b"%d" % record.offset,
    b"k": lambda record: record.key or b"",
    b"K": lambda record: _size(record.key),
    b"s": lambda record: record.value or b"",
    b"S": lambda record: _size(record.value),
    b"T": lambda record: b"%d" % record.timestamp,
    b"h": _headers,
    b"%": lambda record: b"%",
}


def rendering(template: str) -> Callable[[Sequence[Record]], bytes]:
    """Return a function that renders records. Fail for an unknown part, and name the known ones."""
    parts = list(_parts(template.encode(errors="surrogateescape")))
    return lambda records: b"".join(part(record) for record in records for part in parts)


def _parts(template: bytes) -> "list[Part]":
    found: list[Part] = []
    at = 0
    for mark in _MARK.finditer(template):
        found.append(_text(template[at : mark.start()]))
        at = mark.end()
        if mark[1] is not None:
            part = _PARTS.get(mark[1])
            if part is None:
                known = " ".join(f"%{name.decode()}" for name in _PARTS)
                raise click.BadParameter(f"unknown part {mark[0].decode(errors='replace')!r}; known are {known}")
            found.append(part)
        else:
            found.append(_text(_escaped(mark[2], mark[0])))
    return [*found, _text(template[at:])]


def _escaped(letters: bytes, whole: bytes) -> bytes:
    if len(letters) == 3:
        return bytes.fromhex(letters[1:].decode())
    if letters not in _ESCAPES:
        raise click.BadParameter(rf"unknown escape {whole.decode(errors='replace')!r}; known are \n \r \t \\ \x00")
    return _ESCAPES[letters]


def _text(content: bytes) -> Part:
    return lambda record: content
