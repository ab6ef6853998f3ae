"""The offsets that a consumer commits: one commit after the other, in the order of the calls."""

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from msgtx import errors, forks
from msgtx.background import BackgroundThread
from msgtx.database.connection import seconds_left, until
from msgtx.types import GroupMetadata, OffsetAndMetadata

log = logging.getLogger("msgtx.consumer")
OffsetsById = Mapping[int, OffsetAndMetadata]  # by partition id
IDLE_SECONDS: Final = 10.0  # until the thread ends: it keeps a consumer in memory that was dropped without `close`
COMMITS_EXIT_SECONDS: Final = 10.0  # that the end of the interpreter waits for all commits together
Write = Callable[[GroupMetadata, OffsetsById], None]


class Commits:
    """Commits in the background, and those that wait for them: an older offset is never written last.

    `write` commits offsets and waits, within its own bound; `timeout`: seconds for all earlier commits. A thread writes
    waiting commits, or a caller that waits for them; one at a time.
    """

    def __init__(self, write: Write, *, timeout: float) -> None:
        self._write = write
        self._timeout = timeout
        self._origin = forks.here()
        # Never `with` the condition: an interrupt between two lines of its Python would leave the lock held for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[tuple[GroupMetadata, OffsetsById]] = deque()
        self._writer: threading.Thread | None = None
        self._closed = False
        self._thread = self._new_thread()
        _pending.add(self)

    def hand_over(self, group: GroupMetadata, offsets: OffsetsById) -> None:
        """Commit these in the background, a failure goes to the log.

        A waiting commit that a newer one supersedes is not written at all.
        """
        with self._lock:
            # One offset of each partition waits, so there are no more commits than partitions, however slow the database is.
            left = [(other, {each: at for each, at in older.items() if each not in offsets}) for other, older in self._queue]
            self._queue = deque([*(each for each in left if each[1]), (group, offsets)])
            self._changed.notify_all()
        try:
            self._thread.start()
        except errors.ThreadNotStarted as error:  # also when the interpreter is ending: `settle` writes it
            log.debug("group %r: offsets wait for the next commit: %s", group.group, error)

    def commit(self, group: GroupMetadata, offsets: OffsetsById) -> None:
        """Commit these, after all earlier commits, and wait. Raise the errors of `write`, and `DatabaseUnavailable`."""
        self.settle()
        self._write(group, offsets)

    def settle(self) -> None:
        """Wait until all commits are written or refused. Raise `DatabaseUnavailable` when time is over."""
        deadline = time.monotonic() + min(self._timeout, seconds_left())
        self._leave_turn()  # an interrupt may have kept this thread from that
        while True:
            with self._lock:
                if not self._changed.wait_for(lambda: not self._writing, max(deadline - time.monotonic(), 0.0)):
                    raise errors.DatabaseUnavailable(
                        f"offsets that were handed over before are not committed after {self._timeout:g} s",
                        reason="late commits",
                    )
                if not self._queue:
                    return
                group, offsets = self._take()
            self._write_taken(group, offsets)

    def give_up(self) -> None:
        """Drop commits that are not being written now, and let the thread end."""
        with self._lock:
            for group, offsets in self._queue:
                log.warning("group %r: offsets of %s partitions were not committed: closed", group.group, len(offsets))
            self._queue.clear()
            self._closed = True
            self._changed.notify_all()
        self._thread.stop()

    @property
    def _writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _take(self) -> tuple[GroupMetadata, OffsetsById]:
        """Take the oldest commit. The caller holds the lock, and writes it."""
        self._writer = threading.current_thread()
        return self._queue.popleft()

    def _write_taken(self, group: GroupMetadata, offsets: OffsetsById) -> None:
        try:
            self._write(group, offsets)
        except errors.MsgtxError as error:
            log.warning("group %r: offsets were not committed: %s", group.group, error)
        finally:
            self._leave_turn()

    def _leave_turn(self) -> None:
        with self._lock:
            if self._writer is threading.current_thread():
                self._writer = None
                self._changed.notify_all()

    # ── the thread ──

    def _new_thread(self) -> BackgroundThread:
        return BackgroundThread("msgtx-commit", self._write_in_turn, what="committing offsets in the background")

    def _write_in_turn(self) -> None:
        self._leave_turn()  # an exception may have kept the run before from that
        while True:
            with self._lock:
                found = self._changed.wait_for(lambda: self._closed or (self._queue and not self._writing), IDLE_SECONDS)
                if self._closed:
                    return
                if not found and self._queue:  # another thread writes for longer
                    continue
                if not found:
                    self._thread = self._new_thread()
                    return
                group, offsets = self._take()
            self._write_taken(group, offsets)


_pending: "Final[weakref.WeakSet[Commits]]" = weakref.WeakSet()


def settle_all() -> None:
    """Write waiting commits when the interpreter ends: the thread ends with it."""
    with until(time.monotonic() + COMMITS_EXIT_SECONDS):
        for commits in list(_pending):
            if commits._origin.is_parent:
                continue
            try:
                commits.settle()
            except errors.MsgtxError as error:
                log.warning("offsets were not committed: %s", error)
