"""What a test does around the library's calls of the database: count them, let them fail, hold them up."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, NoReturn

from msgtx import errors
from msgtx.database.pool import Engine
from tests.calls import FUNCTIONS

SECONDS: Final = 30.0


def away() -> NoReturn:
    """Fail as a call does while the database is away; after a call: as one whose answer is lost."""
    raise errors.DatabaseUnavailable("the database is away")


class Held:
    """Stops the threads that come to a moment."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.go_on.wait(SECONDS)

    def wait(self) -> None:
        """Wait until a thread has come."""
        assert self.reached.wait(SECONDS)


class Hook:
    """The hook of an engine. A moment is "connect", "check out", or "before NAME" or "after NAME" of a function."""

    def __init__(self, engine: Engine) -> None:
        self.seen: Counter[str] = Counter()
        self._plans: dict[str, Callable[[], object]] = {}
        engine.hook = self

    def __call__(self, moment: str) -> None:
        self.seen[moment] += 1
        if (act := self._plans.get(moment)) is not None:
            act()

    def at(
        self, moment: str, act: BaseException | Callable[[], object], *, times: int | None = None, thread: str = ""
    ) -> ExitStack:
        """Raise this, or do it, at each of these moments: from now on, until so many, or to the end of the block.

        `thread`: only in threads whose names begin like this.
        """
        assert moment in ("connect", "check out") or moment.split()[1] in FUNCTIONS, "no call has this name"
        left = times

        def planned() -> None:
            nonlocal left
            if left == 0 or not threading.current_thread().name.startswith(thread):
                return
            left = None if left is None else left - 1
            if isinstance(act, BaseException):
                raise act
            act()

        self._plans[moment] = planned
        stack = ExitStack()
        stack.callback(self._plans.pop, moment, None)
        return stack

    def hold(self, moment: str, *, times: int | None = None) -> Held:
        """Stop at this moment whoever comes there."""
        held = Held()
        self.at(moment, held, times=times)
        return held
