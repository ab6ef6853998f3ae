"""The calls of a share consumer: repeated within `request_timeout_ms`, numbered where an answer may be lost."""

import itertools
import time
from collections.abc import Callable
from typing import TypeVar

from msgtx.config import ShareConsumerConfig
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.database.retry import retried

Answered = TypeVar("Answered")


class Calls:
    """Makes the calls of one share consumer."""

    def __init__(self, engine: Engine, config: ShareConsumerConfig) -> None:
        self.engine = engine
        self._config = config
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """Return the number of the next call: one whose answer was lost is sent again under the same one."""
        return next(self._numbers)

    def again(self, once: Callable[[], Answered]) -> Answered:
        """Call a function until it is answered, or time is over."""
        seconds = self._config.request_timeout_ms / 1000
        return retried(
            once, deadline=time.monotonic() + seconds, pause=self._config.retry_backoff_ms / 1000, silence=seconds
        )

    def answered(self, attempt: Callable[[RawConnection], Answered]) -> Answered:
        """Ask the database, as `again`."""

        def once() -> Answered:
            with self.engine.connection() as connection:
                return attempt(connection)

        return self.again(once)
