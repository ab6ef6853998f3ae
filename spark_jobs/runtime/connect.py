"""Spark Connect: a session without a JVM of its own.

The function of `foreachBatch` runs in a process of the server's, on a session of its own that knows no query. So the process
asks the server for the queries of the session that started it, and a tag of its jobs names the batch to their tasks.
"""

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.utils import is_remote

from msgtx.errors import ConfigError, InvalidRequest
from msgtx.store.spark import StreamBatch

# The process of a server in which functions of `foreachBatch` run.
FOREACH_BATCH: Final = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"
_PARENT: Final = os.getppid()
_TAG: Final = re.compile(r"_Tag_msgtx:([^:,]+):([^:,]+):(\d+)(?:,|$)")


def require_classic() -> None:
    """Raise `ConfigError` on Spark Connect, for a job that works on the session's JVM."""
    if is_remote():
        raise ConfigError(
            "this job works on a session's own JVM, and one of Spark Connect has none: run it on a classic session, for"
            " example with --master local[*]"
        )


def is_in_foreach_batch() -> bool:
    """Return whether this process runs functions of `foreachBatch` for a server."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == FOREACH_BATCH


def is_orphan() -> bool:
    """Return whether the server of this process of `foreachBatch` has ended. The process may wait minutes for its answer."""
    return is_in_foreach_batch() and os.getppid() != _PARENT


def query_of(session: Any, name: str | None) -> Any:
    """Return the query whose `foreachBatch` runs in this process.

    `name`: its `queryName` or its id, which counts where several queries of one session run. Raise `InvalidRequest`.
    """
    sessions = {each.session_id: each for each in (session, *_sessions_of_worker())}
    active = {query.id: query for each in sessions.values() for query in each.streams.active}
    chosen = [each for each in active.values() if len(active) == 1 or name in {each.name, each.id}]
    if len(chosen) == 1:
        return chosen[0]
    if not active:
        raise InvalidRequest(
            "this server of Spark Connect does not tell which query the batch is of: write the stream with format('msgtx')"
        )
    names = ", ".join(sorted(each.name or each.id for each in active.values()))
    raise InvalidRequest(
        f"the queries {names} of this session run, and query_id {f'is {name}' if name else 'names none of them'}: give each"
        " query a name with queryName(…), and write_transactional the same name as query_id"
    )


def _sessions_of_worker() -> Iterator[Any]:
    """Yield the session with which the process has begun, that of the query: only a variable of its main function has it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__":
            yield from (each for each in frame.f_locals.values() if type(each).__name__ == "SparkSession")
        frame = frame.f_back


@contextlib.contextmanager
def named_to_tasks(session: Any, stream: StreamBatch | None) -> Iterator[None]:
    """Name a micro-batch to the tasks of the block's jobs; on a classic session Spark does."""
    if stream is None or not is_remote():
        yield
        return
    tag = f"msgtx:{stream.query_id}:{stream.run_id}:{stream.batch_id}"
    session.addTag(tag)
    try:
        yield
    finally:
        session.removeTag(tag)


def named_by(tags: str) -> StreamBatch | None:
    """Return the micro-batch that `named_to_tasks` has put among the tags of a job."""
    found = _TAG.search(tags)
    return None if found is None else StreamBatch(found[1], found[2], int(found[3]))
