"""Functions of the user's that msgtx calls in the middle of its work: delivery callbacks and observers.

They run in the thread that has news. None of them may end that thread, or wait for its work.
"""

import logging
import threading
from collections.abc import Callable

from msgtx.errors import IllegalState

_here = threading.local()  # `of`: the owners of the user's functions that the thread is in


def run(
    log: logging.Logger, message: str, owner: object, function: Callable[..., object], *arguments: object
) -> BaseException | None:
    """Call a user's function. An exception from it is logged under `message`, also `SystemExit`, which would end the thread.

    `owner`: the object whose work the thread does; that work waits during the call. Of a producer it is the lock of its
    accumulator. If the main thread was interrupted, as by Ctrl-C or a signal handler, return that exception: the caller
    raises it when its own work is done.
    """
    outer = getattr(_here, "of", ())
    _here.of = (*outer, owner)
    try:
        function(*arguments)
    except BaseException as error:
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            return error
        log.exception(message)
    finally:
        _here.of = outer
    return None


def is_inside(owner: object) -> bool:
    """Return whether the thread is in a user's function that was called for `owner`."""
    owners = getattr(_here, "of", ())
    return bool(owners) and any(each is owner for each in owners)


def require_none(call: str, owner: object) -> None:
    """Raise `IllegalState` in a function called for `owner`: `call` may wait for work of the same thread."""
    if is_inside(owner):
        raise IllegalState(
            f"{call} in a delivery callback would wait for itself: call it in another thread", reason="callback"
        )
