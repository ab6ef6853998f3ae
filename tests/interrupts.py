"""Interrupts between two lines of the library: what a signal handler raises there (Ctrl-C, a job's time limit)."""

import contextlib
import itertools
import linecache
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgtx

LIBRARY = Path(msgtx.__file__).parent
interrupted_files: set[str] = set()  # of this library, so far: another follower of lines sees nothing of what is run there


@dataclass
class Interrupt:
    """One that comes before the n-th line that is run in these files. `place`: where it came; None: not yet.

    `within`: in these functions only, and not where a `with` or a `try` begins or ends: there the interpreter looks at no
    signal, and a lock of theirs would stay held.
    """

    line: int
    files: tuple[str, ...]
    within: Collection[str] | None = None
    place: str | None = None

    def called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow a function of these files."""
        code = frame.f_code
        is_followed = code.co_filename in self.files and (self.within is None or code.co_name in self.within)
        return self.reached if is_followed else None

    def reached(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Count a line, and raise at the last one."""
        text = "" if self.within is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        self.line -= event == "line" and not text.startswith(("with ", "try:"))
        if self.line == 0 and self.place is None:
            sys.settrace(None)
            self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            raise KeyboardInterrupt(self.place)
        return self.reached


@contextlib.contextmanager
def interrupted(line: int, *files: str, within: Collection[str] | None = None) -> Iterator[Interrupt]:
    """Interrupt the block before the n-th line that it runs in these files of the library, and catch that.

    Raise `AssertionError` if the library has caught it.
    """
    interrupt = Interrupt(line, tuple(str(LIBRARY / file) for file in files), within)
    interrupted_files.update(interrupt.files)
    before = sys.gettrace()
    try:
        sys.settrace(interrupt.called)
        yield interrupt
        assert interrupt.place is None, f"the interrupt at {interrupt.place} did not reach its caller"
    except KeyboardInterrupt as error:
        if error.args != (interrupt.place,):
            raise
    finally:
        sys.settrace(before)


def write_rows(client: msgtx.Client, topic: str) -> None:
    """Write 500 rows of three records to each of the first two partitions."""
    with client.producer() as producer:
        for start, partition in itertools.product(range(0, 1_500, 3), range(2)):
            producer.send_batch(topic, [b"%d" % number for number in range(start, start + 3)], partition=partition)


def require_each_once(records: Iterable[msgtx.Record], interrupt: Interrupt) -> None:
    """Raise if one of these records of two partitions is missing, there twice, or out of order."""
    records = list(records)
    for partition in range(2):
        found = [record.offset for record in records if record.partition == partition]
        assert found == list(range(len(found))), interrupt.place
