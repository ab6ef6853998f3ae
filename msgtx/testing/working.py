"""Running a worker in a test until nothing is left for it."""

import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.orm import sessionmaker

from msgtx.client import Client
from msgtx.errors import DatabaseUnavailable
from msgtx.types import ProcessReport, TopicPartition
from msgtx.units import Duration, wait_seconds

TIMEOUT: Final = "30s"


class NothingLeft:
    """What ends a worker: nothing is left for its group on these topics. Pass it as `stop`.

    Raise `AssertionError` in the worker if that takes longer than `timeout`.
    """

    def __init__(self, client: Client, group: str, *topics: str, share: bool = False, timeout: Duration = TIMEOUT) -> None:
        self._client, self._group, self._topics, self._share = client, group, topics, share
        self._timeout = timeout
        self._deadline = time.monotonic() + wait_seconds("timeout", timeout)

    def is_set(self) -> bool:
        """Return whether nothing is left."""
        try:
            left = self._left()
        except DatabaseUnavailable:
            left = 1  # a fault that the test has planted: ask again
        if left and time.monotonic() > self._deadline:
            raise AssertionError(f"group {self._group!r} has {left} records left after {self._timeout}")
        return not left

    def _left(self) -> int:
        if self._share:
            is_known = any(one.group == self._group for one in self._client.admin.shares.list())
            return self._client.admin.shares.describe(self._group).lag if is_known else 1
        known = {
            TopicPartition(one.topic, one.partition): one.lag
            for one in self._client.admin.groups.describe(self._group).partitions
        }
        return sum(
            (one.last_stable_offset - one.log_start_offset if known.get(partition) is None else known[partition]) or 0
            for topic in self._topics
            for partition, one in self._client.admin.partitions.describe_all(topic).items()
        )


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
    """Run a worker until nothing is left for its group, without an idle second.

    With `to`, `handler(record)` is the function of `client.process`; `transactional_id` is the group's name unless given.
    Else `handler(session, record)` is that of `client.process_into`, with `sessions` or SQLAlchemy sessions on the test's
    database. Further `settings` are those of these two. Raise what the worker raises, and `AssertionError` after `timeout`.
    """
    stop = NothingLeft(client, group, *topics, share=settings.get("share_members") is not None, timeout=timeout)
    if to is not None:
        settings = {"transactional_id": group, **settings}
        return client.process(*topics, to=to, group=group, transform=handler, stop=stop, **settings)  # type: ignore[arg-type]
    if sessions is not None:
        return client.process_into(sessions, handler, *topics, group=group, stop=stop, **settings)
    engine = client.engine()
    try:
        return client.process_into(sessionmaker(engine), handler, *topics, group=group, stop=stop, **settings)
    finally:
        engine.dispose()
