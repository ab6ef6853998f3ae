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

PARSE, BIND, QUERY, SYNC, FUNCTION_CALL = b"P", b"B", b"Q", b"S", b"F"
READY: Final = b"Z"
COPIES: Final = frozenset({b"G", b"W"})  # the server waits for the rows of a COPY
ENDS_OF_CALLS: Final = frozenset({QUERY, SYNC, FUNCTION_CALL})  # the server answers each with one READY

_FUNCTION: Final = re.compile(r"\bmsgtx\.(\w+)\s*\(")
_SPACE: Final = re.compile(r"\s+")
# What differs from run to run in a statement, and is not what it does: texts, numbers, names that a driver has made up.
_VALUES: Final = re.compile(r"'(?:[^']|'')*'|(?<!\$)\b\d+(?:\.\d+)?\b|\b[0-9a-f]{8}(?:-?[0-9a-f]{4,}){1,4}\b")
_WRITING: Final = ("insert", "update", "delete", "merge", "copy", "create", "with", "do", "call")
_WRITES: Final = re.compile(rf"(?:^|;)\s*(?:{'|'.join(_WRITING)})\b", re.IGNORECASE)
_OF_ROWS: Final = frozenset({"insert", "update", "delete", "merge", "copy", "with", "select", "call"})


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
    """The statements that a connection has prepared, and the texts of its next call."""

    _prepared: dict[bytes, str] = field(default_factory=dict)
    _texts: list[str] = field(default_factory=list)

    def note(self, message: Message) -> None:
        """Take note of a client's message."""
        if message.kind == QUERY:
            self._texts.append(_text(message.body))
        elif message.kind == PARSE:
            name, text, *_ = message.body.split(b"\0", 2)
            self._prepared[name] = _text(text)
        elif message.kind == BIND:
            _, name, *_ = message.body.split(b"\0", 2)
            self._texts.append(self._prepared.get(name, ""))

    def take(self, reading: Container[str]) -> str:
        """Return the name of the call that ends here: msgtx's functions in it, or how its last statement begins.

        `reading`: functions that only read. They name no statement that writes rows.
        """
        texts, self._texts = [plain(text) for text in self._texts if text.strip()], []
        functions = list(dict.fromkeys(found for text in texts for found in _FUNCTION.findall(text)))
        last = texts[-1].rpartition(";")[2].strip() if texts else ""
        if functions and not (all(each in reading for each in functions) and any(map(_WRITES.search, texts))):
            return ", ".join(functions)
        return shortened(last)


def plain(text: str) -> str:
    """Return a statement on one line, without its values: by this it is known in every run."""
    return _VALUES.sub("…", _SPACE.sub(" ", text)).strip(" ;")


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
