"""Exceptions that are raised in a background thread before one of its lines, as a bug, a limit or a signal would."""

import linecache
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from psycopg import errors as pg

from msgtx import errors
from msgtx.background import BackgroundThread
from tests.interrupts import LIBRARY, interrupted_files

EXCEPTIONS: Final[dict[str, BaseException]] = {
    "DatabaseUnavailable": errors.DatabaseUnavailable("planted"),
    "AuthorizationFailed": errors.AuthorizationFailed("planted"),
    "InternalError": pg.InternalError_("planted"),
    "OSError": OSError(24, "Too many open files"),
    "MemoryError": MemoryError("planted"),
    "RuntimeError": RuntimeError("can't start new thread"),
    "SystemExit": SystemExit("planted"),
    "KeyboardInterrupt": KeyboardInterrupt("planted"),
    "ZeroDivisionError": ZeroDivisionError("planted"),
}
Line = tuple[str, int]  # a file of the library, and the number of a line


class Planted:
    """Follows what threads of one name run in some files of the library, and raises once before a chosen line.

    Not before a `yield`, nor where a `with` or a `try` begins: what is raised there passes by the statement's end, which no
    program can help. `within`: names of the functions that are followed.
    """

    def __init__(self, thread: str, files: Collection[str], within: Collection[str]) -> None:
        self._thread = thread
        self._files = {str(LIBRARY / file) for file in files}
        self._within = within
        self.seen: dict[Line, None] = {}  # lines that were run, in the order of their first time
        self._came: Counter[Line] = Counter()
        self._at: Line | None = None
        self._error: BaseException | None = None
        self.raised = threading.Event()

    def plant(self, at: Line, error: BaseException) -> None:
        """Raise before this line, once."""
        self.raised.clear()
        self._came.clear()
        self._error, self._at = error, at

    @property
    def rounds(self) -> int:
        """How often a loop has gone round since the last `plant`: as often as the line that came most often."""
        return max([*self._came.values()], default=0)

    def remove(self) -> None:
        """Raise nothing."""
        self._at = None

    def go_on(self) -> None:
        """Follow the calling thread again: Python ends that with an exception of the follower's."""
        if threading.current_thread().name == self._thread and sys.gettrace() is None:
            sys.settrace(self._called)

    @contextmanager
    def following(self) -> Iterator["Planted"]:
        """Follow the threads that are started within the block."""
        interrupted_files.update(self._files)
        before, raised = threading.gettrace(), BackgroundThread._raised

        def told(thread: BackgroundThread, error: BaseException, seconds: float) -> float:
            self.go_on()
            return raised(thread, error, seconds)

        threading.settrace(self._called)
        BackgroundThread._raised = told  # type: ignore[method-assign]
        try:
            yield self
        finally:
            self.remove()
            BackgroundThread._raised = raised  # type: ignore[method-assign]
            threading.settrace(before)  # type: ignore[arg-type]  # None is allowed

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if threading.current_thread().name != self._thread:
            sys.settrace(None)
            return None
        is_followed = frame.f_code.co_filename in self._files and frame.f_code.co_name in self._within
        return self._reached if is_followed else None

    def _reached(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "line":
            return self._reached
        line = (Path(frame.f_code.co_filename).relative_to(LIBRARY).as_posix(), frame.f_lineno)
        if line not in self.seen:
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
            if text.startswith(("yield ", "with ", "try:")):
                return self._reached
            self.seen[line] = None
        self._came[line] += 1
        if line == self._at and self._error is not None:
            self._at = None
            self.raised.set()
            # A fresh one each time: a traceback grows with each raise.
            raise type(self._error)(*self._error.args)
        return self._reached
