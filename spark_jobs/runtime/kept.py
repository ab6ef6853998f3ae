"""Connections that Spark's Python workers keep: a worker does many small tasks, and a new connection costs more than most.

Each process has its own. A connection unused for a while is closed, so that idle workers hold no sessions; the end of a
worker ends its connection, too.
"""

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from msgtx import errors
from msgtx.database.pool import Engine
from msgtx.spark_jobs.runtime.outage import patient
from msgtx.spark_jobs.runtime.primary import Primary
from msgtx.store.operator.installation import describe_installation

# Between two batches of a stream that is not idle; Spark itself ends workers that were idle for a minute.
KEEP_SECONDS: Final = 10.0

_Key = tuple[int, str, str | None, float | None, Primary | None]


@dataclass(slots=True)
class _Kept:
    engine: Engine
    users: int = 0
    used_at: float = 0.0


_kept: dict[_Key, _Kept] = {}
_lock: Final = threading.Lock()


@contextlib.contextmanager
def lent(
    url: str, incarnation: str | None, outage_timeout: float | None = None, primary: Primary | None = None
) -> Iterator[Engine]:
    """Check out this process's engine for a database, of one connection. Raise `IncarnationChanged` if it changed.

    Raise `FailedOver` if another primary answers than this one; None: any may.
    """
    key = (os.getpid(), url, incarnation, outage_timeout, primary)
    with _lock:
        kept = _kept.get(key)
        if kept is not None:
            kept.users += 1
    if kept is not None and not _is_well(kept.engine, incarnation):
        _give_back(key, kept, keep=False)
        kept = None
    if kept is None:
        made = patient(Engine(url, pool_size=1), outage_timeout)
        if incarnation is not None:
            made.expect(uuid.UUID(incarnation))
        if primary is not None:
            made.server, made.on_failover = primary, "stop"
        with _lock:
            kept = _kept.setdefault(key, _Kept(made))
            kept.users += 1
    try:
        yield kept.engine
    finally:
        _give_back(key, kept, keep=True)


def _is_well(engine: Engine, incarnation: str | None) -> bool:
    """Ask the connection that was kept: only a new one asks for the incarnation by itself."""
    try:
        with engine.connection() as connection:
            found = describe_installation(connection).incarnation
    except errors.MsgtxError:
        return False
    return incarnation is None or str(found) == incarnation


def _give_back(key: _Key, kept: _Kept, *, keep: bool) -> None:
    with _lock:
        kept.users -= 1
        kept.used_at = time.monotonic()
        if not keep and _kept.get(key) is kept:
            del _kept[key]
        is_free = kept.users == 0
        is_gone = _kept.get(key) is not kept
    if is_free and is_gone:
        kept.engine.close()
    elif is_free:
        timer = threading.Timer(KEEP_SECONDS, _close_idle, (key, kept))
        timer.daemon = True
        timer.start()


def _close_idle(key: _Key, kept: _Kept) -> None:
    with _lock:
        if kept.users or _kept.get(key) is not kept or time.monotonic() - kept.used_at < KEEP_SECONDS:
            return
        del _kept[key]
    kept.engine.close()
