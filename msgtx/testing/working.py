"""Running a worker in a test until nothing is left for it."""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.orm import sessionmaker

from msgtx.client import Client
from msgtx.errors import DatabaseUnavailable, GroupNotFound
from msgtx.observer import Observer
from msgtx.process.places import reason_of
from msgtx.store.shares.shares import waiting_shares
from msgtx.types import ProcessReport, TopicPartition
from msgtx.units import Duration, wait_seconds

if TYPE_CHECKING:
    from msgtx import aio

TIMEOUT: Final = "30s"
MOST_WAITING: Final = 10_000  # of share groups on which records wait


class _Attempts(Observer):
    """Keeps the error of a worker's last transaction that failed."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.error: Exception | None = None

    def attempted(self, group: str, *, records: int, seconds: float, error: Exception | None) -> None:
        if group == self._group and error is not None:
            self.error = error


class NothingLeft:
    """What ends a worker: nothing is left for its group on these topics. Pass it as `stop`.

    Records that others have locked are left: they come when the locks expire. A record of a share group that waits for a
    time (a delay, or the group's back-off) is not: move the clock, and run the worker again. `share`: it is a share group.
    `partitions`: indexes of those that count. Raise `AssertionError` in the worker if it takes longer than `timeout`.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        *topics: str,
        share: bool = False,
        partitions: Collection[int] | None = None,
        timeout: Duration = TIMEOUT,
    ) -> None:
        self._client, self._group, self._topics, self._share = client, group, topics, share
        self._partitions, self._timeout = partitions, timeout
        self._asks = threading.local()
        self._attempts = _Attempts(group)
        self._deadline = time.monotonic() + wait_seconds("timeout", timeout)

    def is_set(self) -> bool:
        """Return whether nothing is left."""
        if getattr(self._asks, "now", False):  # a client whose database is away asks whether to wait
            return time.monotonic() > self._deadline
        self._asks.now = True
        try:
            left = self._left()
        except DatabaseUnavailable:
            left = 1  # a fault that the test has planted: ask again
        finally:
            self._asks.now = False
        if left and time.monotonic() > self._deadline:
            told = f"group {self._group!r} has {left} records left after {self._timeout}"
            if (error := self._attempts.error) is None:
                raise AssertionError(told)
            raise AssertionError(f"{told}; the worker's last error: {reason_of(error)}") from error
        return not left

    @contextlib.contextmanager
    def watching(self) -> "Iterator[NothingLeft]":
        """Name the worker's last error with the records that are left. It has to begin in this block."""
        observers = self._client.runtime.observers
        observers.add(self._attempts)
        try:
            yield self
        finally:
            observers.remove(self._attempts)

    def _left(self) -> int:
        known = self._lag_of_share_group() if self._share else self._lag_of_group()
        return sum(
            (one.last_stable_offset - one.log_start_offset if known.get(partition) is None else known[partition]) or 0
            for topic in self._topics
            for partition, one in self._client.admin.partitions.describe_all(topic).items()
            if self._partitions is None or partition.partition in self._partitions
        )

    def _lag_of_group(self) -> dict[TopicPartition, int | None]:
        return {
            TopicPartition(one.topic, one.partition): one.lag
            for one in self._client.admin.groups.describe(self._group).partitions
        }

    def _lag_of_share_group(self) -> dict[TopicPartition, int | None]:
        try:
            known = self._client.admin.shares.describe(self._group).partitions
        except GroupNotFound:
            return {}
        later = self._not_due() if any(one.parked for one in known) else {}
        return {(at := TopicPartition(one.topic, one.partition)): one.lag - later.get(at, 0) for one in known}

    def _not_due(self) -> dict[TopicPartition, int]:
        """Return how many records wait for a time, or for the key of one that does."""
        with self._client.runtime.engine.connection() as connection:
            rows, _ = waiting_shares(connection, most=MOST_WAITING)
        return {
            TopicPartition(row.topic, row.partition_index): row.delayed + row.waiting
            for row in rows
            if row.group_name == self._group and row.due_at is not None and row.due_at > row.checked_at
        }


def run_worker(
    client: Client,
    handler: Callable[..., object],
    *topics: str,
    group: str,
    sessions: Callable[[], Any] | None = None,
    to: str | None = None,
    timeout: Duration = TIMEOUT,
    **settings: Any,
) -> ProcessReport:
    """Run a worker until nothing is left for its group (`NothingLeft`), without an idle second.

    With `to`, `handler(record)` is the function of `client.process`; `transactional_id` is the group's name unless given.
    Else `handler(session, record)` is that of `client.process_into`, with `sessions` or SQLAlchemy sessions on the test's
    database. Further `settings` are those of these two. A group that is new begins with the oldest record, a share group
    (`share_members`), too. Raise what the worker raises, and `AssertionError` after `timeout`, which names the worker's last
    error.
    """
    with contextlib.ExitStack() as block:
        stop = block.enter_context(_stop(client, group, topics, settings, timeout).watching())
        if to is not None:
            settings = {"transactional_id": group, **settings}
            return client.process(*topics, to=to, group=group, transform=handler, stop=stop, **settings)  # type: ignore[arg-type]
        if sessions is None:
            engine = client.engine()
            block.callback(engine.dispose)
            sessions = sessionmaker(engine)
        return client.process_into(sessions, handler, *topics, group=group, stop=stop, **settings)


async def run_worker_async(
    client: "aio.Client",
    handler: Callable[..., Any],
    *topics: str,
    group: str,
    sessions: Callable[[], Any] | None = None,
    timeout: Duration = TIMEOUT,
    **settings: Any,
) -> ProcessReport:
    """Run a worker of `msgtx.aio` as `run_worker` does; without `sessions` its handler gets SQLAlchemy's AsyncSession."""
    from sqlalchemy.ext.asyncio import async_sessionmaker

    async with contextlib.AsyncExitStack() as block:
        made = await client.run(_stop, client.sync, group, topics, settings, timeout)
        stop = block.enter_context(made.watching())
        if sessions is None:
            engine = client.async_engine()
            block.push_async_callback(engine.dispose)
            sessions = async_sessionmaker(engine)
        return await client.process_into(sessions, handler, *topics, group=group, stop=stop, **settings)


def _stop(client: Client, group: str, topics: tuple[str, ...], settings: dict[str, Any], timeout: Duration) -> NothingLeft:
    share = settings.get("share_members") is not None
    if share:
        settings.setdefault("auto_offset_reset", "earliest")
    return NothingLeft(client, group, *topics, share=share, partitions=settings.get("partitions"), timeout=timeout)
