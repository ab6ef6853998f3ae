"""Ctrl-C and SIGTERM: end at once, or end a long verb at its next safe place.

Outside `stopping` a signal raises `Interrupted` wherever the program is. Inside, it only asks: the verb looks at
`Stop.is_set` where nothing is half done, ends its transaction and goes. A verb that does not look in time is interrupted
after all: a write is stuck, or the database is away.
"""

import contextlib
import gc
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

PATIENCE_S: Final = 2.0  # from a signal to its exception, if the verb has not looked before
AGAIN_S: Final = 0.01  # an exception that Python had to swallow is raised again after so long
INTERRUPTED: Final = 130  # 128 and the number of SIGINT, as shells count it


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived."""


class StopEvent(threading.Event):
    """Whether the verb is to end, for its loop and for `client.process`. Nothing waits for it: it is looked at."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        super().__init__()
        self.patience_s = patience_s
        self.signal: int | None = None
        self.at_once = False  # the signal may raise right away: a read waits

    def is_set(self) -> bool:
        """Return whether a signal came. A verb that looks ends by itself, so the exception is called off."""
        if self.signal is None:
            return False
        signal.setitimer(signal.ITIMER_REAL, 0)
        return True

    @property
    def exit_code(self) -> int:
        """The exit code of a verb that has no end of its own: SIGTERM is the usual way to end it."""
        return INTERRUPTED if self.signal == signal.SIGINT else 0

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal raise at once: around a read that may wait forever."""
        self.at_once = True
        try:
            if self.signal is not None:
                raise Interrupted
            yield
        finally:
            self.at_once = False


_stop: StopEvent | None = None
_raised: int | None = None  # a signal whose exception has not reached the end of the program
_listens = False  # whether the process is this program; a test calls commands in its own


@contextlib.contextmanager
def stopping(patience_s: float = PATIENCE_S) -> Iterator[StopEvent]:
    """Have signals ask instead of raise. The block looks at the `Stop`; a second signal after a while raises.

    `patience_s`: how long what runs may take to its next look; with more than the usual, a second signal raises at once.
    A signal whose exception was lost on its way (code in C may clear one) asks here.
    """
    global _stop  # noqa: PLW0603 - a process has one set of signal handlers
    assert _stop is None, "one long verb at a time"
    stop = StopEvent(patience_s)
    _stop = stop
    stop.signal = stop.signal or _raised
    try:
        yield stop
    finally:
        _stop = None
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Hold a signal back until the end: an interrupted import would leave half a module."""
    if _stop is not None:
        yield
        return
    with stopping() as stop, _without_collector():
        yield
    if stop.signal is not None:
        raise Interrupted


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the collector in a program that starts: imports make no garbage. It never searches the modules."""
    if not _listens:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def listen() -> None:
    """Install the handlers, in a process that is this program. For the main thread."""
    global _listens  # noqa: PLW0603 - as above
    _listens = True
    signal.signal(signal.SIGALRM, _raise)
    sys.unraisablehook = _raise_again
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _handle)


def heard() -> None:
    """Note that the exception has ended the command."""
    global _raised  # noqa: PLW0603 - as above
    _raised = None


def ignore() -> None:
    """Ignore later signals: the program is ending, and has its exit code."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _handle(number: int, frame: FrameType | None) -> None:
    global _raised  # noqa: PLW0603 - as above
    if _stop is None:
        _raised = number
        raise Interrupted
    # An attribute, and no `Event.set`: that takes a lock, which the interrupted code may hold.
    first = _stop.signal is None
    _stop.signal = _stop.signal or number
    if _stop.at_once or (not first and _stop.patience_s > PATIENCE_S):
        raise Interrupted
    if first or signal.getitimer(signal.ITIMER_REAL)[0] == 0:
        signal.setitimer(signal.ITIMER_REAL, _stop.patience_s)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted


def _raise_again(unraisable: Any) -> None:
    # Python cannot raise inside a finalizer or a callback of the collector: it would print a traceback and continue.
    if isinstance(unraisable.exc_value, Interrupted):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(unraisable)
