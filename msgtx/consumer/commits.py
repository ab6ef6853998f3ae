"""The offsets that a consumer commits: one after the other, in the order in which they were handed over."""

import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from msgtx import errors
from msgtx.types import GroupMetadata, OffsetAndMetadata

log = logging.getLogger("msgtx.consumer")
Offsets = Mapping[int, OffsetAndMetadata]  # by partition id
Write = Callable[[GroupMetadata, Offsets], None]


class Commits:
    """Commits in the background, and the one in front of which those are done: an older offset is never written last.

    `write` commits offsets and waits, within its own bound; `timeout`: seconds for all that was handed over before.
    """

    def __init__(self, write: Write, *, timeout: float) -> None:
        self._write = write
        self._timeout = timeout
        # Never `with` the condition: what interrupts its Python between two lines would leave the lock held for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[tuple[GroupMetadata, Offsets]] = deque()
        self._writing = False  # the background thread writes, or a caller that waits
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None

    def hand_over(self, group: GroupMetadata, offsets: Offsets) -> None:
        """Commit these in the background, a failure goes to the log. What waits and is superseded is not written at all."""
        with self._lock:
            # One offset of each partition waits, so there are no more commits than partitions, however slow the database is.
            left = [(other, {each: at for each, at in older.items() if each not in offsets}) for other, older in self._queue]
            self._queue = deque([*(each for each in left if each[1]), (group, offsets)])
            if self._writing:
                return
            if self._thread is None:
                self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="msgtx-commit")
            self._writing = True
            try:
                self._thread.submit(self._write_queue).add_done_callback(_tell)
            except RuntimeError:  # the interpreter is ending: `settle` writes it
                self._writing = False

    def commit(self, group: GroupMetadata, offsets: Offsets) -> None:
        """Commit these, behind what was handed over, and wait. Raise what `write` does, and `DatabaseUnavailable`."""
        self.settle()
        self._write(group, offsets)

    def settle(self) -> None:
        """Wait until what was handed over is written or refused. Raise `DatabaseUnavailable` when time is over."""
        deadline = time.monotonic() + self._timeout
        while True:
            with self._lock:
                if not self._changed.wait_for(lambda: not self._writing, max(deadline - time.monotonic(), 0.0)):
                    raise errors.DatabaseUnavailable(
                        f"offsets that were handed over before are not committed after {self._timeout:g} s"
                    )
                if not self._queue:
                    return
                self._writing = True  # its thread has ended
            self._write_queue()

    def give_up(self) -> None:
        """Leave what is not being written now, and the thread to its end."""
        with self._lock:
            for group, offsets in self._queue:
                log.warning("group %r: offsets of %s partitions were not committed: closed", group.group, len(offsets))
            self._queue.clear()
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def _write_queue(self) -> None:
        try:
            while (waiting := self._next()) is not None:
                group, offsets = waiting
                try:
                    self._write(group, offsets)
                except errors.MsgtxError as error:
                    log.warning("group %r: offsets were not committed: %s", group.group, error)
        except BaseException:
            self._stopped()
            raise

    def _next(self) -> tuple[GroupMetadata, Offsets] | None:
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            self._stopped()
            return None

    def _stopped(self) -> None:
        with self._lock:
            self._writing = False
            self._changed.notify_all()


def _tell(ended: "concurrent.futures.Future[None]") -> None:
    """Log what no caller waits for: a bug, which has ended the thread's work."""
    if (error := ended.exception()) is not None:
        log.error("offsets were not committed", exc_info=error)
