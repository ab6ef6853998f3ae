"""Live updates: one poll however many look, none while nobody looks."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from msgtx.console.live import Live, event

SECONDS = 10.0


class Drawn:
    """A page that changes with each look, or not."""

    def __init__(self, texts: Callable[[int], str] = str) -> None:
        self.times = 0
        self._texts = texts
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.times += 1
            return self._texts(self.times)


async def events(stream: AsyncIterator[str], number: int) -> list[str]:
    """Return the next fragments of a stream."""
    found: list[str] = []
    async for text in stream:
        if text.startswith("event:"):
            found.append(text)
        if len(found) == number:
            break
    return found


def test_two_viewers_of_a_page_cost_one_poll_and_none_when_they_leave() -> None:
    async def look() -> None:
        live = Live(seconds=0.01)
        drawn = Drawn()
        streams = [live.watch("page", drawn, lambda: True) for _ in range(2)]
        first, second = await asyncio.wait_for(asyncio.gather(*(events(each, 3) for each in streams)), SECONDS)
        assert live.polls == 1
        assert set(first) & set(second)
        assert drawn.times <= 8  # not twice as many
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        assert live.polls == 0
        times = drawn.times
        await asyncio.sleep(0.1)
        assert drawn.times <= times + 1

    asyncio.run(look())


def test_a_page_that_does_not_change_is_not_sent_again() -> None:
    async def look() -> None:
        live = Live(seconds=0.01)
        drawn = Drawn(lambda _: "the same")
        stream = live.watch("page", drawn, lambda: True)
        assert await asyncio.wait_for(events(stream, 1), SECONDS) == [event("the same")]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(events(stream, 1), 0.2)
        assert drawn.times > 2

    asyncio.run(look())


def test_a_slow_reader_gets_the_newest() -> None:
    async def look() -> None:
        live = Live(seconds=0.001)
        drawn = Drawn()
        stream = live.watch("page", drawn, lambda: True)
        await asyncio.wait_for(events(stream, 1), SECONDS)
        while drawn.times < 20:
            await asyncio.sleep(0.005)
        (text,) = await asyncio.wait_for(events(stream, 1), SECONDS)
        assert int(text.split("data: ")[1]) >= 19
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(look())


def test_a_stream_ends_with_its_session() -> None:
    async def look() -> None:
        live = Live(seconds=0.01)
        is_signed_in = True
        stream = live.watch("page", Drawn(), lambda: is_signed_in)
        await asyncio.wait_for(events(stream, 1), SECONDS)
        is_signed_in = False
        rest = [text async for text in stream]
        assert rest[-1] == "event: over\ndata:\n\n"
        assert live.polls == 0

    asyncio.run(look())


def test_no_text_can_end_an_event() -> None:
    assert (
        event("a\n\nevent: other\r\rdata: x")
        == "event: live\ndata: a\ndata: \ndata: event: other\ndata: \ndata: data: x\n\n"
    )
