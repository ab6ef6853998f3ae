"""The calls of a consumer of either kind: repeated until they are answered, or `request_timeout_ms` are over."""

import time
from collections.abc import Callable
from typing import TypeVar

from msgtx.config import ConsumerConfig, ShareConsumerConfig
from msgtx.database.connection import Connection
from msgtx.database.pool import Engine
from msgtx.database.retry import retried

Answer = TypeVar("Answer")


class Calls:
    """Makes the calls of one consumer."""

    def __init__(self, engine: Engine, config: ConsumerConfig | ShareConsumerConfig) -> None:
        self.engine = engine
        self._config = config

    def answered(self, once: Callable[[], Answer]) -> Answer:
        """Return the answer to a call that may be repeated."""
        seconds = self._config.request_timeout_ms / 1000
        return retried(
            once, deadline=time.monotonic() + seconds, pause=self._config.retry_backoff_ms / 1000, silence=seconds
        )

    def asked(self, question: Callable[[Connection], Answer]) -> Answer:
        """Return the database's answer to a question that may be repeated."""

        def once() -> Answer:
            with self.engine.connection() as connection:
                return question(connection)

        return self.answered(once)
