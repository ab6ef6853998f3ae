"""PostgreSQL's wire protocol, as far as a proxy must read it: where a message ends, and what a call is named.

Source: PostgreSQL's documentation, "Frontend/Backend Protocol", version 3.
"""

import asyncio
import re
import struct
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from msgtx.database import throwaway
from msgtx.testing.naming import shortened

SSL_REQUEST: Final = 80_877_103
GSS_REQUEST: Final = 80_877_104
CANCEL_REQUEST: Final = 80_877_102
NO: Final = b"N"  # the answer to a request for encryption

PARSE, BIND, EXECUTE, QUERY, SYNC, FUNCTION_CALL = b"P", b"B", b"E", b"Q", b"S", b"F"
READY: Final = b"Z"
COPIES: Final = frozenset({b"G", b"W"})  # the server waits for the rows of a COPY
ENDS_OF_CALLS: Final = frozenset({QUERY, SYNC, FUNCTION_CALL})  # the server answers each with one READY

_FUNCTION: Final = re.compile(r"\bmsgtx\.(\w+)\s*\(")
_SPACE: Final = re.compile(r"\s+")
# What may hold anything, also the words and semicolons of other statements: comments, quoted names, texts.
_QUOTED: Final = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)"""
    r"""|(?P<name>"(?:[^"]|"")*")"""
    r"""|\b[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|(?<![\w$])(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?P=tag)""",
    re.DOTALL,
)
# What differs from run to run in a statement, and is not what it does: numbers, names that a driver has made up.
_VALUES: Final = re.compile(r"(?<!\$)\b\d+(?:\.\d+)?\b|\b[0-9a-f]{8}(?:-?[0-9a-f]{4,}){1,4}\b")
_OF_ROWS: Final = frozenset({"insert", "update", "delete", "merge", "copy", "with", "select", "call"})
# A break there leaves what the break after the write before it leaves.
_WRITE_NOTHING: Final = re.compile(
    r"(?:show|begin|start transaction|savepoint|release|(?:rollback|abort)(?! prepared)|listen|prepare(?! transaction))\b"
)
_SELECT: Final = re.compile(r"select\b(?!.*\binto\b)")
_NAME: Final = r"(?:\w+|\"[^\"]*\")"
_CALLED: Final = re.compile(rf"({_NAME}(?:\s*\.\s*{_NAME})*)\s*\(")
_ALIAS: Final = re.compile(r"\)\s*(?:as\s+)?\w+\s*\(")  # `(…) relaxed(mode)` names columns, and calls nothing


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `whole`: its bytes as they are sent, with type and length."""

    kind: bytes
    whole: bytes

    @property
    def body(self) -> bytes:
        """Return what follows type and length."""
        return self.whole[5:]


@dataclass(slots=True)
class Statements:
    """The statements that a connection has prepared and bound, and the texts of its next call."""

    _prepared: dict[bytes, str] = field(default_factory=dict)
    _bound: dict[bytes, str] = field(default_factory=dict)
    _texts: list[str] = field(default_factory=list)

    def note(self, message: Message) -> None:
        """Take note of a client's message."""
        if message.kind == QUERY:
            self._texts.append(_text(message.body))
        elif message.kind == PARSE:
            name, text, *_ = message.body.split(b"\0", 2)
            self._prepared[name] = _text(text)
        elif message.kind == BIND:
            portal, name, *_ = message.body.split(b"\0", 2)
            self._bound[portal] = self._prepared.get(name, "")
        elif message.kind == EXECUTE:
            self._texts.append(self._bound.get(message.body.partition(b"\0")[0], ""))
        elif message.kind == FUNCTION_CALL:
            self._texts.append(f"call function_{int.from_bytes(message.body[:4])}")

    def take(self, reading: Container[str]) -> tuple[str, bool]:
        """Return the name of the call that ends here, and whether it may write.

        The name is that of msgtx's functions in the call, or how its last statement begins that may write. `reading`: the
        functions that only read. They name no statement that writes rows.
        """
        statements = [found for text in self._texts for each in plain(text).split(";") if (found := each.strip())]
        self._texts = []
        writing = [each for each in statements if not only_reads(each, reading)]
        named = writing or statements
        functions = list(dict.fromkeys(found for each in named for found in _FUNCTION.findall(each)))
        if functions and not (writing and all(f"msgtx.{each}" in reading for each in functions)):
            return ", ".join(functions), bool(writing)
        return shortened(named[-1]) if named else "", bool(writing)


def plain(text: str) -> str:
    """Return a statement on one line, without its values and comments: by this it is known in every run."""
    return _VALUES.sub("…", _SPACE.sub(" ", _QUOTED.sub(_unquoted, text))).strip(" ;")


def _unquoted(found: "re.Match[str]") -> str:
    if found["comment"]:
        return " "
    return found["name"].replace(";", "…") if found["name"] else "…"


def only_reads(statement: str, reading: Container[str]) -> bool:
    """Return whether a statement writes nothing: it is of a transaction, or a query of msgtx or of a driver that only reads.

    A query of the user's own is none: what its functions, views and rules do is not known.
    """
    folded = statement.casefold()
    if _WRITE_NOTHING.match(folded):
        return True
    if _SELECT.match(folded) is None or not (_FUNCTION.search(folded) or folded.startswith(throwaway.OF_DRIVERS)):
        return False
    called = (_SPACE.sub("", each.replace('"', "")) for each in _CALLED.findall(_ALIAS.sub(")(", folded)))
    return all(each.removeprefix("pg_catalog.") in reading for each in called)


def listens(name: str) -> bool:
    """Return whether a call of this name makes a connection one that waits for notifications."""
    return name == throwaway.LISTENER


def is_statement(name: str) -> bool:
    """Return whether a call of this name is a statement on a program's own rows."""
    return " " in name and name.split(maxsplit=1)[0].casefold() in _OF_ROWS


async def read_message(stream: asyncio.StreamReader) -> Message:
    """Read the next message. Raise `asyncio.IncompleteReadError` at the end of the stream."""
    head = await stream.readexactly(5)
    (length,) = struct.unpack("!i", head[1:])
    return Message(head[:1], head + await stream.readexactly(length - 4))


async def read_startup(stream: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read the first message, which has no type. Returns its code and its bytes."""
    head = await stream.readexactly(8)
    length, code = struct.unpack("!ii", head)
    return code, head + await stream.readexactly(length - 8)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")
