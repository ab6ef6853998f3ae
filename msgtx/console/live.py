"""Live updates: one poll for each page of each role, however many look, and none while nobody looks.

A viewer's stream has at most one fragment waiting, the newest: a slow reader skips the others. Polls take turns: one at a
time for each person, and one for each role. Whoever opens many slow pages makes only their own updates rare.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from starlette.concurrency import run_in_threadpool

log = logging.getLogger("msgtx.console")
LIVE_SECONDS: Final = 2.0
IDLE_SHARE: Final = 9  # a poll rests so many times as long as it took: a slow page has a tenth of a connection's time
LONGEST_REST_SECONDS: Final = 30.0  # so that a page recovers soon from a server that did not answer
HEARTBEAT_SECONDS: Final = 15.0  # proxies end a stream that says nothing for a minute
MOST_WATCHERS: Final = 500
MOST_OF_ONE: Final = 200  # of one person, or of people with one role: others find a place, too


@dataclass(slots=True)
class _Poll:
    person: Hashable
    task: "asyncio.Task[None] | None" = None
    is_drawing: bool = False  # a thread cannot be stopped: the turn ends with it, whoever has left meanwhile
    watchers: int = 0
    version: int = 0
    text: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Live:
    """The polls that are running."""

    def __init__(self, *, seconds: float = LIVE_SECONDS) -> None:
        self._seconds = seconds
        self._polls: dict[Hashable, _Poll] = {}
        self._turns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
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

    def is_full(self, person: Hashable) -> bool:
        """Whether no further page of this person has a place."""
        polls = list(self._polls.values())
        own = sum(poll.watchers for poll in polls if poll.person == person)
        return own >= MOST_OF_ONE or sum(poll.watchers for poll in polls) >= MOST_WATCHERS

    async def watch(
        self, page: Hashable, draw: Callable[[], str], is_allowed: Callable[[], bool], *, person: str, role: Hashable
    ) -> AsyncIterator[str]:
        """Yield events for a browser until the viewer leaves or is no longer signed in. `draw` runs in a thread.

        `role`: whose connections `draw` uses. Several persons share a role's behind a proxy that names them.
        """
        key = (page, person, role)
        poll = self._polls.setdefault(key, _Poll(person))
        poll.watchers += 1
        if poll.task is None:
            # In this order, a person has at most one poll that waits for the role's turn. A lock serves the first one first.
            turns = [self._turns.setdefault(each, asyncio.Lock()) for each in (("person", person, role), ("role", role))]
            poll.task = asyncio.create_task(self._run(poll, draw, turns))
            poll.task.add_done_callback(lambda task: self._ended(key, poll, task))
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
                        break  # the server ends, or the poll
                seen = poll.version
                yield event(poll.text)
            if not self._is_over and not poll.task.done():
                yield "event: over\ndata:\n\n"
        finally:
            poll.watchers -= 1
            if not poll.watchers:
                if not poll.is_drawing:
                    poll.task.cancel()
                if self._polls.get(key) is poll:
                    del self._polls[key]

    def _ended(self, key: Hashable, poll: _Poll, task: "asyncio.Task[None]") -> None:
        """End the streams of a poll that has failed: browsers come back, and begin another one."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a live page failed", exc_info=error)
        poll.changed.set()
        if self._polls.get(key) is poll:
            del self._polls[key]

    async def _run(self, poll: _Poll, draw: Callable[[], str], turns: list[asyncio.Lock]) -> None:
        pause = self._seconds
        while poll.watchers:
            await asyncio.sleep(pause)
            async with AsyncExitStack() as held:
                for turn in turns:
                    await held.enter_async_context(turn)
                began = time.monotonic()
                poll.is_drawing = True
                text = await run_in_threadpool(draw)
                poll.is_drawing = False
            pause = max(self._seconds, min(IDLE_SHARE * (time.monotonic() - began), LONGEST_REST_SECONDS))
            if text != poll.text:
                poll.text, poll.version = text, poll.version + 1
                changed, poll.changed = poll.changed, asyncio.Event()
                changed.set()


def event(text: str) -> str:
    """Return a fragment as an event: a line each, since an empty one would end it."""
    return "event: live\n" + "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
