"""Functions of the user's that msgtx calls in the middle of its work: delivery callbacks and observers.

They run in whatever thread has news. None of them may end that thread, or wait for what the thread itself has to do.
"""

import logging
import threading
from collections.abc import Callable

from msgtx.errors import IllegalState

_here = threading.local()  # `depth`: of the user's functions that the thread is in


def run(log: logging.Logger, message: str, function: Callable[..., object], *arguments: object) -> BaseException | None:
    """Call a user's function. What it raises is logged under `message`, also `SystemExit`, which would end the thread.

    Return what is no `Exception` if the main thread was interrupted, as by Ctrl-C or a signal handler: the caller raises it
    when its own work is done.
    """
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        function(*arguments)
    except BaseException as error:
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            return error
        log.exception(message)
    finally:
        _here.depth -= 1
    return None


def is_inside() -> bool:
    """Return whether the thread is in a user's function that was called by `run`."""
    return bool(getattr(_here, "depth", 0))


def require_none(call: str) -> None:
    """Raise `IllegalState` in a user's function: what `call` waits for may have to be done by the same thread."""
    if is_inside():
        raise IllegalState(f"{call} in a delivery callback would wait for itself: call it in another thread")
