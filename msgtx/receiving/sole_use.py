"""One thread at a time uses an open consumer; only `stop` and `close` may come from another one."""

import contextlib
import threading
from collections.abc import Iterator

from msgtx import forks
from msgtx.errors import IllegalState


class SoleUse:
    """Which thread uses a consumer, as long as it is open. `kind`: the consumer's name in a refusal."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.closed = False
        self._lock = threading.RLock()  # held by the thread `user`, whose call is under way; it knows its owner
        self.user: int | None = None
        self.origin = forks.here()

    def require_open(self) -> None:
        """Raise `IllegalState` for a closed consumer, and in the child of a fork."""
        self.origin.require(f"a {self._kind}")
        if self.closed:
            raise IllegalState(f"the {self._kind} is closed", reason="closed")

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Make a call within the block, by a callback a part of the one that is under way. Raise `IllegalState`."""
        self.origin.require(f"a {self._kind}")
        me = threading.get_ident()
        if self.user == me:
            yield
            return
        self.require_open()
        try:
            if not self._lock.acquire(blocking=False):
                raise IllegalState(
                    f"a {self._kind} is for one thread at a time; only stop() and close() may come from another",
                    reason="thread",
                )
            self.user = me
            yield
            self.user = None
            self._lock.release()
        except BaseException:  # also an interrupt, in any of these lines
            if self.user == me:
                self.user = None
            with contextlib.suppress(RuntimeError):  # this thread does not hold it
                self._lock.release()
            raise

    @contextlib.contextmanager
    def close(self, seconds: float) -> Iterator[None]:
        """Close it within the block, after another thread's current call; wait for this call at most `seconds`."""
        # A callback of this thread's own call is not waited for.
        is_alone = self.user != threading.get_ident() and self._lock.acquire(timeout=seconds)
        try:
            yield
        finally:
            if is_alone:
                self._lock.release()
