"""Background threads: a loop that an exception has ended is reported and run again.

No caller hears of an exception in a background thread. Without a supervisor the thread would end in silence, and its
users would wait for ever, or work without its protection. Beside our own errors and those of the database there are the
`SystemExit` of a callback, `MemoryError`, and at the start of a thread "can't start new thread".
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from msgtx import forks
from msgtx.errors import FatalError, MsgtxError, ThreadNotStarted

log = logging.getLogger("msgtx.background")
FIRST_PAUSE_SECONDS: Final = 0.1  # after an error that is not ours; doubled each time
LONGEST_PAUSE_SECONDS: Final = 5.0
PASSING: Final = (MsgtxError, OSError)  # errors of a loop when the database or the system is away or refuses


@contextlib.contextmanager
def left_for_later(what: str) -> Iterator[None]:
    """Log an exception of `PASSING` from the block, and continue: the work is done again later."""
    try:
        yield
    except PASSING as error:
        log.debug("%s: %s", what, error)


class BackgroundThread:
    """A daemon thread that runs `loop` until it returns. The loop keeps its state for the next run in its object.

    `what`: the thread's task in messages, "the heartbeat of group 'g'". `failed` is called in the thread, at once, with each
    exception: with a `MsgtxError` as it is, else with a new `FatalError` whose cause it is. Then the loop is run again:
    after `pause` seconds if the error is msgtx's or the system's (`PASSING`), else after pauses that grow. An exception
    in these lines ends the thread: its users call `start` before they need it, which starts it again.
    """

    def __init__(
        self,
        name: str,
        loop: Callable[[], object],
        *,
        what: str,
        failed: Callable[[MsgtxError], object] | None = None,
        pause: float | Callable[[BaseException], float] = FIRST_PAUSE_SECONDS,
    ) -> None:
        self._name = name
        self._loop = loop
        self._what = what
        self._failed = failed
        self._pause = pause
        self._origin = forks.here()
        self._lock = threading.RLock()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._in_a_row = 0  # exceptions that are neither ours nor the system's
        self._over = False  # stopped, or the loop has returned
        self._thread: threading.Thread | None = None

    @property
    def lives(self) -> bool:
        """Whether the thread runs. In the child of a fork it does not."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    @property
    def started(self) -> bool:
        """Whether the thread was started, and so whether its task was ever begun."""
        return self._thread is not None

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread, which cannot wait for itself."""
        return self._thread is threading.current_thread()

    def start(self) -> None:
        """Start the thread unless it runs, also one that has died. Nothing happens after `stop`, or after the loop's end.

        Raise `ThreadNotStarted` if the system gives none, `IllegalState` in the child of a fork.
        """
        if self._over or self.lives:
            return
        self._origin.require(self._what)
        with self._lock:
            self._begin()

    def revive(self) -> None:
        """Start the thread if it was started and has died. Raise as `start`."""
        thread = self._thread
        if thread is not None and not thread.is_alive():
            self.start()

    def stop(self) -> None:
        """Run the loop no more once it returns or raises. End a pause between two runs; the caller ends the loop."""
        self._over = True
        self._wakes.put(None)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread's end, at most `timeout` seconds. Returns whether it has ended; False in the thread itself."""
        thread = self._thread
        if thread is None:
            return True
        if self.is_current:
            return False
        with contextlib.suppress(RuntimeError):  # an interrupt came before it was started
            thread.join(timeout)
        return not thread.is_alive()

    def _begin(self) -> None:
        if self.lives:  # by another caller's start
            return
        before, self._thread = self._thread, threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError) as error:  # "can't start new thread": of this one call
            self._thread = before
            raise ThreadNotStarted(
                f"{self._what} needs a thread, and the system gives none ({error}): raise the limit of threads (ulimit -u,"
                " or pids.max of the container), or the memory"
            ) from error
        if before is not None:
            log.warning("%s had died; it is started again", self._what)

    def _run(self) -> None:
        # An interrupted start may be followed by another one: only the newest thread works.
        while self._thread is threading.current_thread():
            began = time.monotonic()
            try:
                self._loop()
                self._over = True
                return
            except BaseException as error:  # noqa: BLE001 - its waiters are told, the log says it, and it goes on
                try:
                    pause = self._raised(error, time.monotonic() - began)
                except BaseException:  # noqa: BLE001 - as when there is no memory for a line of the log
                    pause = LONGEST_PAUSE_SECONDS
            if not self._over:
                with contextlib.suppress(queue.Empty):
                    self._wakes.get(timeout=pause)
            if self._over:
                return

    def _raised(self, error: BaseException, seconds: float) -> float:
        """Tell the waiting callers, and the log. Returns the seconds until the next run."""
        passes = isinstance(error, PASSING)
        self._in_a_row = 0 if passes or seconds > LONGEST_PAUSE_SECONDS else self._in_a_row + 1
        pause: float = self._pause(error) if callable(self._pause) else self._pause
        if not passes:
            pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self._in_a_row, 16))
        try:
            if self._failed is not None:
                self._failed(error if isinstance(error, MsgtxError) else self._told(error))
        finally:
            again = "it ends" if self._over else f"it goes on in {pause:g} s"
            if passes:
                log.debug("%s: %s; %s", self._what, error, again)
            else:
                log.error("%s failed; %s", self._what, again, exc_info=error)
        return pause

    def _told(self, error: BaseException) -> FatalError:
        told = FatalError(f"{self._what} failed: {error!r}", reason="failed")
        told.__cause__ = error
        return told
