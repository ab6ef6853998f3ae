"""The end of a worker: its caller's event, a SIGTERM that nobody else handles, or the end of its client."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Final

from msgtx.settings import StopSignal

DRAIN_SECONDS: Final = 30.0  # what a worker may take to the end of its batch when its client is closed; as Kubernetes allows


class Ending:
    """Whether a worker is to end: its caller's event, a SIGTERM that nobody else handles, or the end of its client."""

    def __init__(self, given: StopSignal | None) -> None:
        self.threads = {threading.get_ident()}  # that wait for nothing but the work
        self.over = threading.Event()
        self._given = given
        self._asked = False

    def ask(self) -> None:
        """Have the loop end after its batch. No lock is taken: a signal may come at any moment."""
        self._asked = True

    def is_set(self) -> bool:
        """Return whether to end."""
        return self._asked or (self._given is not None and self._given.is_set())

    @contextlib.contextmanager
    def by_sigterm(self) -> Iterator[None]:
        """Within the block SIGTERM asks, and all others in such a block, if it would end the program else."""
        if (
            self._given is not None
            or threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _ask_all)
        ):
            yield
            return
        _by_sigterm.append(self)
        signal.signal(signal.SIGTERM, _ask_all)
        try:
            yield
        finally:
            if self in _by_sigterm:  # else a child of a fork leaves the block
                _by_sigterm.remove(self)
            if not _by_sigterm and signal.getsignal(signal.SIGTERM) is _ask_all:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


_by_sigterm: Final[list[Ending]] = []  # an event loop may run several workers


def _ask_all(*_: object) -> None:
    for each in _by_sigterm:
        each.ask()


_blocked: Final = threading.local()  # `before`: the signals that were blocked in a thread that forks


def _forks() -> None:
    """Hold SIGTERM back during a fork: the child would take it with the handler of its parent."""
    if _by_sigterm:
        _blocked.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _has_forked() -> None:
    if hasattr(_blocked, "before"):
        signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.before)
        del _blocked.before


def _is_child() -> None:
    """Have SIGTERM end a child, as it would without a worker in its parent."""
    if _by_sigterm and signal.getsignal(signal.SIGTERM) is _ask_all:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _by_sigterm.clear()
    _has_forked()


os.register_at_fork(before=_forks, after_in_parent=_has_forked, after_in_child=_is_child)
