"""Calls that an event loop has a thread do, when the system gives none."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from msgtx import errors
from msgtx.aio import _in_thread


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_call_that_got_no_thread_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its executor has queued it: a commit, for one, would come when nobody expects it any more."""
    done: list[int] = []

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                with pytest.raises(errors.ThreadNotStarted, match="gives none"):
                    await _in_thread(threads, lambda: done.append(1))
            await _in_thread(threads, lambda: done.append(2))
        with pytest.raises(errors.IllegalState, match="closed"):
            await _in_thread(threads, lambda: done.append(3))

    asyncio.run(main())
    assert done == [2]


def test_a_call_that_another_thread_has_begun_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor wanted one thread more for it, and the one that it has was faster."""
    threads = ThreadPoolExecutor(2)
    submit = threads.submit

    def refuses_late(*arguments: object) -> object:
        submit(*arguments)  # type: ignore[arg-type]
        time.sleep(0.2)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "submit", refuses_late)
    with threads:
        assert asyncio.run(_in_thread(threads, lambda: 7)) == 7


def test_what_a_call_raises_is_raised_where_it_is_awaited() -> None:
    def fails() -> None:
        raise MemoryError

    with ThreadPoolExecutor(1) as threads, pytest.raises(MemoryError):
        asyncio.run(_in_thread(threads, fails))
