"""Calls that an event loop has a thread do, when the system gives none."""

import asyncio
import threading

import pytest

from msgtx import aio, errors
from msgtx.aio import _in_thread
from msgtx.executor import Threads
from tests.databases import PATIENCE_SECONDS
from tests.refusals import refuses


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_call_that_got_no_thread_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit, for one, would come when nobody expects it any more."""
    done: list[int] = []

    async def main() -> None:
        with Threads(1, name="test") as threads:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                with pytest.raises(errors.ThreadNotStarted, match="gives none"):
                    await _in_thread(threads, lambda: done.append(1))
            await _in_thread(threads, lambda: done.append(2))
        with refuses(errors.IllegalState, reason="closed"):
            await _in_thread(threads, lambda: done.append(3))

    asyncio.run(main())
    assert done == [2]


def test_a_thread_that_is_idle_needs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        with Threads(2, name="test") as threads:
            await _in_thread(threads, lambda: 6)
            await asyncio.sleep(0.05)  # until it is idle
            monkeypatch.setattr(threading.Thread, "start", refuse)
            return await _in_thread(threads, lambda: 7)

    assert asyncio.run(main()) == 7


def test_what_a_call_raises_is_raised_where_it_is_awaited() -> None:
    def fails() -> None:
        raise MemoryError

    with Threads(1, name="test") as threads, pytest.raises(MemoryError):
        asyncio.run(_in_thread(threads, fails))


async def test_a_close_that_is_cancelled_leaves_no_thread(database_url: str, topic: str) -> None:
    """It is done all the same, and a second one finds nothing to do."""

    client = await aio.connect(database_url)
    consumer = await client.consumer(topic, group=topic).__aenter__()
    share_consumer = await client.share_consumer(topic, group=f"{topic}-shares").__aenter__()
    for each in (consumer, share_consumer):
        await each.poll(0.01)
    for each in (consumer, share_consumer, client):
        closing = asyncio.create_task(each.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await each.close()
    for threads in (consumer._thread, share_consumer._thread, client._threads):
        for thread in threads._threads:
            await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
            assert not thread.is_alive()


def test_a_consumer_goes_on_in_the_next_event_loop_and_is_refused_in_two_at_once(database_url: str, topic: str) -> None:
    made: list[aio.Client | aio.Consumer | aio.ShareConsumer] = []

    async def make() -> None:
        client = await aio.connect(database_url)
        made.append(await client.consumer(topic, group=topic).__aenter__())
        made.append(await client.share_consumer(topic, group=f"{topic}-shares").__aenter__())
        made.append(client)

    async def poll() -> None:
        for each in made[:2]:
            assert isinstance(each, aio.Consumer | aio.ShareConsumer)
            assert await asyncio.gather(each.poll(0.05), each.poll(0.01)) == [[], []]

    async def poll_in_two() -> None:
        await poll()
        with refuses(errors.IllegalState, reason="event loop"):
            await asyncio.to_thread(asyncio.run, poll())
        for each in made:
            await each.close()

    asyncio.run(make())
    asyncio.run(poll())
    asyncio.run(poll_in_two())
