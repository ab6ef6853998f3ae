"""Interrupts between two lines of the library: what a signal handler raises there (Ctrl-C, a job's time limit)."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgtx

LIBRARY = Path(msgtx.__file__).parent


@dataclass
class Interrupt:
    """One that comes before the n-th line that is run in these files. `place`: where it came; None: not yet."""

    line: int
    files: tuple[str, ...]
    place: str | None = None

    def called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow a function of these files."""
        return self.reached if frame.f_code.co_filename in self.files else None

    def reached(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Count a line, and raise at the last one."""
        self.line -= event == "line"
        if self.line == 0 and self.place is None:
            sys.settrace(None)
            self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            raise KeyboardInterrupt(self.place)
        return self.reached


@contextlib.contextmanager
def interrupted(line: int, *files: str) -> Iterator[Interrupt]:
    """Interrupt the block before the n-th line that it runs in these files of the library, and catch that."""
    interrupt = Interrupt(line, tuple(str(LIBRARY / file) for file in files))
    before = sys.gettrace()
    try:
        sys.settrace(interrupt.called)
        yield interrupt
    except KeyboardInterrupt as error:
        if error.args != (interrupt.place,):
            raise
    finally:
        sys.settrace(before)
