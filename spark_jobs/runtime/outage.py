"""Calls of the database that are repeated while it is away: the driver's and the tasks', in streams and in batches."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from msgtx import errors, units
from msgtx.database.connection import Connection, seconds_left
from msgtx.database.outages import Wait
from msgtx.database.pool import Engine
from msgtx.declared.spark import BATCH_OUTAGE_TIMEOUT
from msgtx.errors import ConfigError, Fault

# A stream waits as long as it takes, like a worker.
BATCH_OUTAGE_SECONDS: Final = units.seconds("outage_timeout", BATCH_OUTAGE_TIMEOUT)
PASSING_SECONDS: Final = 60.0  # for conditions that pass while the database answers, such as a lock that another one has
BACKOFF_SECONDS: Final = (0.1, 2.0)  # between two looks at them: the first and the longest pause
REPLICA: Final = "replica"  # the reason of an error for a replica that lags: `replica_timeout_ms` is the limit for it

T = TypeVar("T")


def patient(engine: Engine, outage_timeout: float | None) -> Engine:
    """Return the engine. `again` waits so many seconds of an outage for its database; None: as long as it takes."""
    engine.outage_timeout = outage_timeout
    return engine


def persevering(engine: Engine, work: Callable[[Connection], T]) -> T:
    """Do calls that may be repeated, on a connection, as `again` does."""

    def call() -> T:
        with engine.connection() as connection:
            return work(connection)

    return again(engine, call)


def again(engine: Engine, work: Callable[[], T]) -> T:
    """Repeat calls while their failure is a passing one: calls with the same names write once.

    Raise the failure if it does not pass in time; of an outage, the limit is the engine's, and that of `until`.
    """
    wait = Wait(engine.outages, engine.outage_timeout)
    deadline: float | None = None
    pause, longest = BACKOFF_SECONDS
    while True:
        try:
            answer = work()
        except errors.MsgtxError as error:
            if not error.retriable or seconds_left() <= 0:
                raise
            if error.fault is Fault.OUTAGE and error.reason != REPLICA:
                wait.failed(error)
                continue
            deadline = deadline or time.monotonic() + PASSING_SECONDS
            if time.monotonic() + pause > deadline:
                raise
            time.sleep(pause)
            pause = min(2 * pause, longest)
        else:
            wait.answered()
            return answer


def outage_timeout_of(value: object, *, default: float | None = None) -> float | None:
    """Return the option `outage_timeout` in seconds. Raise `ConfigError`."""
    if value is None:
        return default
    seconds = units.seconds("outage_timeout", value)
    if seconds < 0:
        raise ConfigError(f"outage_timeout must be 0 or more, not {value!r}", name="outage_timeout", limit=0)
    return seconds
