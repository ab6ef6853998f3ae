"""A producer's questions to the database, by calls that may be repeated."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from msgtx.config import ProducerConfig
from msgtx.database.pool import STANDBY, Engine
from msgtx.database.retry import retried
from msgtx.errors import ConfigError, DatabaseUnavailable, Fault, MsgtxError, OutcomeUnknown
from msgtx.producer.state import ProducerStatus
from msgtx.store.transactions.producers import init_producer_id
from msgtx.types import ProducerId

Answer = TypeVar("Answer")
MAX_BACKOFF_SECONDS: Final = 1.0


class ProducerCalls:
    """Repeats calls until they are answered or time is over; a refusal fails the producer or its transaction."""

    def __init__(self, engine: Engine, config: ProducerConfig, state: ProducerStatus) -> None:
        self._engine = engine
        self._config = config
        self._state = state

    def deadline(self, timeout: float | None = None) -> float:
        """Return when a call has to be over that begins now: after `timeout` seconds, by default `max_block_ms`."""
        return time.monotonic() + (self._config.max_block_ms / 1000 if timeout is None else timeout)

    def answered(
        self, attempt: Callable[[], Answer], deadline: float, when_late: type[MsgtxError] = DatabaseUnavailable
    ) -> Answer:
        """Return the answer to a call that may be repeated. Raise its refusal, and `when_late` when time is over."""
        try:
            return retried(
                attempt,
                deadline=deadline,
                pause=self._config.retry_backoff_ms / 1000,
                longest=MAX_BACKOFF_SECONDS,
                silence=self._config.request_timeout_ms / 1000,
            )
        except MsgtxError as error:
            if error.fatal:
                raise self.refused(error) from error
            if error.retriable and (isinstance(error, DatabaseUnavailable) or when_late is OutcomeUnknown):
                raise when_late(f"no answer in time ({error}); the same call may be repeated") from error
            raise

    def refused(self, error: MsgtxError) -> MsgtxError:
        """Fail with a refusal, or with the reason behind it. Return the exception to raise."""
        if error.fatal:
            error = self._engine.cause_of(error)
        self._state.fail(error)
        return error

    def initialize(self, transactional_id: str | None, *, keep_prepared: bool = False) -> ProducerId:
        """Return a producer id and its epoch. Raise `ConfigError` on a standby: the URL of a new producer leads there.

        A client that has reached a primary before waits for it: it may be moving.
        """
        server = "the server"
        try:
            with self._engine.connection() as connection:
                server = f"{connection.info.host or 'the server'}:{connection.info.port}"
                return init_producer_id(
                    connection,
                    transactional_id,
                    timeout_ms=self._config.transaction_timeout_ms,
                    keep_prepared=keep_prepared,
                )
        except DatabaseUnavailable as error:
            if error.reason != STANDBY or self._state.producer is not None or self._engine.server is not None:
                raise
            raise ConfigError(
                f"{server} is a standby, and takes no writes: name the primary in the URL, or all hosts with"
                " target_session_attrs=read-write",
                reason=STANDBY,
                fault=Fault.ENVIRONMENT,
            ) from error
