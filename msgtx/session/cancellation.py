"""Work in threads and tasks that are cancelled: a thread cannot be interrupted, so its end is waited for."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


async def to_its_end(work: "asyncio.Future[Answer]", *, stop: Callable[[], object] | None = None) -> Answer:
    """Return the answer of a thread. When the task is cancelled, call `stop`, and wait all the same.

    Then the thread is done, and its result can be undone.
    """
    try:
        await asyncio.wait([work])
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # nothing else will ask for it
        raise
    return work.result()
