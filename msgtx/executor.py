"""Threads for blocking calls that an event loop awaits."""

import concurrent.futures
import queue
import threading
import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from msgtx import forks
from msgtx.errors import ThreadNotStarted

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


class Threads(concurrent.futures.Executor):
    """Up to `most` threads, started as they are needed.

    Unlike those of a `ThreadPoolExecutor` they are daemons. At its end the interpreter would wait for such a thread, and the
    thread for an event loop that was stopped: neither would ever end.
    """

    def __init__(self, most: int, *, name: str) -> None:
        self.origin = forks.here()
        self._most = most
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._over = False
        weakref.finalize(self, self._calls.put, None).atexit = False

    def submit(
        self, fn: Callable[Arguments, Answer], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> "concurrent.futures.Future[Answer]":
        """Have a thread make a call.

        Raise `ThreadNotStarted`, `IllegalState` in the child of a fork, `RuntimeError` after `shutdown`.
        """
        self.origin.require("this client")
        if self._over:
            raise RuntimeError("the threads were shut down")
        future: concurrent.futures.Future[Answer] = concurrent.futures.Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                answer = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - it is for the waiting caller, and ends no thread
                future.set_exception(error)
            else:
                future.set_result(answer)

        self._start()
        self._calls.put(call)
        return future

    def __exit__(self, *_: object) -> None:
        """Shut down without waiting: a caller that needs the end of a call waits for its future."""
        self.shutdown(wait=False)

    def _start(self) -> None:
        """Start a thread unless one is idle. Raise `ThreadNotStarted` if the system gives none."""
        if self._idle.acquire(blocking=False) or len(self._threads) >= self._most:
            return
        thread = threading.Thread(target=_work, args=(self._calls, self._idle), name=self._name, daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            raise ThreadNotStarted(f"a call needs a thread, and the system gives none ({error})") from error
        self._threads.append(thread)

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Accept no further calls. `wait` for their end."""
        self._over = True
        self._calls.put(None)
        for thread in self._threads if wait else ():
            thread.join()


def _work(calls: "queue.SimpleQueue[Callable[[], object] | None]", idle: threading.Semaphore) -> None:
    # Without a reference to the object: when that is dropped, its threads end.
    while (call := calls.get()) is not None:
        call()
        del call  # it holds its answer
        idle.release()
    calls.put(None)  # for the next thread
