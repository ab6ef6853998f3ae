"""Live updates: one poll however many look, none while nobody looks."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from msgtx.console.live import MOST_OF_ONE, Live, event

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


def watch(
    live: Live,
    draw: Callable[[], str],
    is_allowed: Callable[[], bool] = lambda: True,
    *,
    page: object = "page",
    who: str = "a",
) -> AsyncIterator[str]:
    """Look at a page as a person who signs in as a role of the same name, `a`; `proxy/b` shares the role `proxy`."""
    return live.watch(page, draw, is_allowed, person=who, role=who.partition("/")[0])


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
        streams = [watch(live, drawn) for _ in range(2)]
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
        stream = watch(live, drawn)
        assert await asyncio.wait_for(events(stream, 1), SECONDS) == [event("the same")]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(events(stream, 1), 0.2)
        assert drawn.times > 2

    asyncio.run(look())


def test_a_slow_reader_gets_the_newest() -> None:
    async def look() -> None:
        live = Live(seconds=0.001)
        drawn = Drawn()
        stream = watch(live, drawn)
        await asyncio.wait_for(events(stream, 1), SECONDS)
        while drawn.times < 20:
            await asyncio.sleep(0.005)
        (text,) = await asyncio.wait_for(events(stream, 1), SECONDS)
        assert int(text.split("data: ")[1]) >= 19
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(look())


def test_a_page_that_fails_ends_its_streams_and_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    """Else its watchers, and all that come later, would wait for it for ever."""

    def fails() -> str:
        raise ValueError("no page")

    async def look() -> None:
        live = Live(seconds=0.01)
        texts = [text async for text in watch(live, fails)]
        assert [text for text in texts if text.startswith("event:")] == []  # not `over`: the browser comes back
        assert live.polls == 0
        assert len(await asyncio.wait_for(events(watch(live, Drawn()), 1), SECONDS)) == 1

    asyncio.run(asyncio.wait_for(look(), SECONDS))
    assert "a live page failed" in caplog.text


def test_a_stream_ends_with_its_session() -> None:
    async def look() -> None:
        live = Live(seconds=0.01)
        is_signed_in = True
        stream = watch(live, Drawn(), lambda: is_signed_in)
        await asyncio.wait_for(events(stream, 1), SECONDS)
        is_signed_in = False
        rest = [text async for text in stream]
        assert rest[-1] == "event: over\ndata:\n\n"
        assert live.polls == 0

    asyncio.run(look())


class Slow:
    """Pages that take their time: how many are drawn at once, and in which order."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at_once = self.most = self.times = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.at_once += 1
            self.times += 1
            self.most = max(self.most, self.at_once)
        time.sleep(self.seconds)
        with self._lock:
            self.at_once -= 1
        return str(self.times)


@pytest.mark.parametrize(("many", "one"), [("a", "b"), ("proxy/a", "proxy/b")])
def test_a_role_with_hundreds_of_slow_pages_does_not_slow_the_updates_of_others(many: str, one: str) -> None:
    """They take one thread, not all of them; a person with the same role behind a proxy gets every other turn."""

    async def look() -> None:
        live = Live(seconds=0.01)
        slow = Slow(0.05)
        streams = [watch(live, slow, page=number, who=many) for number in range(MOST_OF_ONE)]
        looking = [asyncio.create_task(events(each, 100)) for each in streams]
        while slow.times < 2:
            await asyncio.sleep(0.01)
        other = Drawn()
        stream = watch(live, other, who=one)
        began = time.monotonic()
        await asyncio.wait_for(events(stream, 5), SECONDS)
        assert time.monotonic() - began < 3.0  # a turn behind each of the others would take ten seconds
        assert slow.most == 1
        assert live.is_full(many)
        assert not live.is_full(one)
        for each in looking:
            each.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        for closed in [stream, *streams]:
            await closed.aclose()  # type: ignore[attr-defined]
        assert live.polls == 0

    asyncio.run(look())


def test_who_leaves_and_comes_back_in_a_hurry_has_one_page_drawn_at_a_time() -> None:
    async def look() -> None:
        live = Live(seconds=0.001)
        slow = Slow(0.1)
        for number in range(10):
            stream = watch(live, slow, page=number)
            await anext(stream)
            await asyncio.sleep(0.02)
            await stream.aclose()  # type: ignore[attr-defined]
        assert live.polls == 0
        assert slow.most == 1

    asyncio.run(look())


def test_no_text_can_end_an_event() -> None:
    assert (
        event("a\n\nevent: other\r\rdata: x")
        == "event: live\ndata: a\ndata: \ndata: event: other\ndata: \ndata: data: x\n\n"
    )
