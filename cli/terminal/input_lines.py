"""Lines of files and of stdin, in blocks: memory does not grow with the input."""

import codecs
import io
import itertools
import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from msgtx.cli.terminal.failure import CommandFailed
from msgtx.cli.terminal.interruption import StopEvent

BLOCK_BYTES: Final = 1024 * 1024  # of one read: enough that its cost does not show
STDIN: Final = Path("-")


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that follow one another, without their ends. `first`: the number of the first, from 1."""

    source: str
    first: int
    lines: Sequence[bytes]
    bytes_read: int = 0

    def place(self, index: int) -> str:
        """Return where a line is, for a message."""
        return f"{self.source}:{self.first + index}"

    def split(self, count: int) -> "tuple[Lines, Lines]":
        """Return the first `count` lines, and the others."""
        return (
            Lines(self.source, self.first, self.lines[:count], self.bytes_read),
            Lines(self.source, self.first + count, self.lines[count:]),
        )

    def without_blank(self) -> "Iterator[Lines]":
        """Yield the lines that hold more than white space, as many together as follow one another."""
        if all(line.strip() for line in self.lines):
            yield self
            return
        yield Lines(self.source, self.first, (), self.bytes_read)
        for blank, found in itertools.groupby(enumerate(self.lines), key=lambda pair: not pair[1].strip()):
            if not blank:
                pairs = list(found)
                yield Lines(self.source, self.first + pairs[0][0], [line for _, line in pairs])


def total_bytes(files: Sequence[Path]) -> int | None:
    """Return the size of all files together; None if one of them has no size."""
    total = 0
    for file in files:
        if file == STDIN:
            return None
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size
    return total


def read_lines(files: Sequence[Path], stop: StopEvent, *, longest: int, idle_s: float) -> Iterator[Lines]:
    """Yield the lines of files, one file after the other, as they come; a last line needs no end.

    A byte order mark of UTF-8 at the beginning of a file is not of its first line. When nothing came for `idle_s` a block
    comes without lines. Raise `Failed` for a line of more than `longest` bytes.
    """
    for file in files:
        if file == STDIN:
            stdin = cast(io.BufferedReader, sys.stdin.buffer)
            yield from _read_stream(stdin, "stdin", stop, longest=longest, idle_s=idle_s)
        else:
            with file.open("rb") as stream:
                yield from _read_stream(stream, str(file), stop, longest=longest, idle_s=idle_s)


def _read_stream(stream: io.BufferedReader, source: str, stop: StopEvent, *, longest: int, idle_s: float) -> Iterator[Lines]:
    waits = _waits(stream)
    number = 1
    begun: list[bytes] = []  # the pieces of a line whose end is not read yet
    length = 0
    while True:
        with stop.interruptible():
            # A read of more than the buffer's size leaves nothing in the buffer, so `select` can be trusted.
            came = not waits or bool(select.select([stream], [], [], idle_s)[0])
            block = stream.read1(BLOCK_BYTES) if came else None
        if block is None:
            yield Lines(source, number, ())
            continue
        *lines, rest = block.split(b"\n")
        if lines:
            lines[0] = _without_mark(b"".join([*begun, lines[0]]), number)
            begun, length = [], 0
        begun.append(rest)
        length += len(rest)
        if not block and (rest := _without_mark(b"".join(begun), number)):
            lines, length = [rest], 0
        if lines:
            yield Lines(source, number, lines, len(block))
            number += len(lines)
        if not block:
            return
        if length > longest:
            raise CommandFailed(
                f"{source}:{number}: the line is longer than {longest} bytes, and nothing of it can be stored"
            )


def _without_mark(line: bytes, number: int) -> bytes:
    return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def _waits(stream: io.BufferedReader) -> bool:
    try:
        return not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:
        return False
