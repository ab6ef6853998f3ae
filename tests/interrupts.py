"""Interrupts between two lines of the library: what a signal handler raises there (Ctrl-C, a job's time limit)."""

import gc
import itertools
import linecache
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

import msgtx

LIBRARY: Final = Path(msgtx.__file__).parent
MISSES: Final = 5  # interrupts in a row that came too late: what a call runs differs by some lines from one time to the next
interrupted_files: set[str] = set()  # of this library, so far: another follower of lines sees nothing of what is run there


class Interrupt:
    """One that comes before the n-th line that a block runs in some files of the library, and is caught behind it.

    Not before a `yield`: there the interpreter looks at no signal. `place`: where it came; None: not yet. `within`: in these
    functions only, and not where a `with` or a `try` begins or ends, where it looks at none either, and a lock of theirs
    would stay held. Raise `AssertionError` if the library caught it.
    """

    def __init__(self, line: int, files: Iterable[str], within: Collection[str] | None = None) -> None:
        self._line = line
        self._files = {str(LIBRARY / file) for file in files}
        self._within = within
        self.place: str | None = None

    def __enter__(self) -> "Interrupt":
        interrupted_files.update(self._files)
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        sys.settrace(self._before)
        is_it = isinstance(error, KeyboardInterrupt) and error.args == (self.place,)
        assert error is not None or self.place is None, f"the interrupt at {self.place} did not reach its caller"
        return is_it

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        is_followed = self._within is None or frame.f_code.co_name in self._within
        return self._reached if is_followed and frame.f_code.co_filename in self._files else None

    def _reached(self, frame: FrameType, event: str, argument: Any) -> Any:
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        is_unseen = text.startswith(("yield ", "with ", "try:") if self._within else "yield ")
        self._line -= event == "line" and not is_unseen
        if self._line == 0 and self.place is None:
            sys.settrace(None)
            self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            raise KeyboardInterrupt(self.place)
        return self._reached


def interrupts(*files: str, within: Collection[str] | None = None, least: int) -> Iterator[Interrupt]:
    """Yield an interrupt before each line that a block runs in these files, and at last some that come too late.

    Raise `AssertionError` where there are not at least so many lines.
    """
    missed = 0
    for line in itertools.count(1):
        interrupt = Interrupt(line, files, within)
        yield interrupt
        missed = missed + 1 if interrupt.place is None else 0
        if missed == MISSES:
            assert line > least
            gc.collect()  # a connection that was in use warns in this test, not in another one
            return


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
