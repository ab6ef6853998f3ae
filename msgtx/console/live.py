"""Live updates: one poll for each page of each role, however many look, and none while nobody looks.

A viewer's stream has at most one fragment waiting, the newest: a slow reader skips the others.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.concurrency import run_in_threadpool

LIVE_SECONDS: Final = 2.0
IDLE_SHARE: Final = 9  # a poll rests so many times as long as it took: a slow page has a tenth of a connection's time
HEARTBEAT_SECONDS: Final = 15.0  # proxies end a stream that says nothing for a minute
MOST_WATCHERS: Final = 500


@dataclass(slots=True)
class _Poll:
    task: "asyncio.Task[None] | None" = None
    watchers: int = 0
    version: int = 0
    text: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Live:
    """The polls that are running."""

    def __init__(self, *, seconds: float = LIVE_SECONDS) -> None:
        self._seconds = seconds
        self._polls: dict[object, _Poll] = {}
        self._is_over = False

    def end(self) -> None:
        """End all streams, since the server ends: browsers come back by themselves. Called in the event loop."""
        self._is_over = True
        for poll in self._polls.values():
            poll.changed.set()

    @property
    def polls(self) -> int:
        """How many run."""
        return len(self._polls)

    @property
    def is_full(self) -> bool:
        """Whether no further viewer has a place."""
        return sum(poll.watchers for poll in self._polls.values()) >= MOST_WATCHERS

    async def watch(self, key: object, draw: Callable[[], str], is_allowed: Callable[[], bool]) -> AsyncIterator[str]:
        """Yield events for a browser until the viewer leaves or is no longer signed in. `draw` runs in a thread."""
        poll = self._polls.setdefault(key, _Poll())
        poll.watchers += 1
        if poll.task is None:
            poll.task = asyncio.create_task(self._run(poll, draw))
        seen = 0
        try:
            yield "retry: 5000\n\n"
            while not self._is_over and is_allowed():
                if poll.version == seen:
                    try:
                        await asyncio.wait_for(poll.changed.wait(), HEARTBEAT_SECONDS)
                    except TimeoutError:
                        yield ": nothing new\n\n"
                        continue
                    if poll.version == seen:
                        break  # the server ends
                seen = poll.version
                yield event(poll.text)
            if not self._is_over:
                yield "event: over\ndata:\n\n"
        finally:
            poll.watchers -= 1
            if not poll.watchers:
                poll.task.cancel()
                if self._polls.get(key) is poll:
                    del self._polls[key]

    async def _run(self, poll: _Poll, draw: Callable[[], str]) -> None:
        pause = self._seconds
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            text = await run_in_threadpool(draw)
            pause = max(self._seconds, IDLE_SHARE * (time.monotonic() - began))
            if text != poll.text:
                poll.text, poll.version = text, poll.version + 1
                changed, poll.changed = poll.changed, asyncio.Event()
                changed.set()


def event(text: str) -> str:
    """Return a fragment as an event: a line each, since an empty one would end it."""
    return "event: live\n" + "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
