"""Where a consumer stands, where it may go, and what it asks the database about that: the base of `Consumer`."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from msgtx import errors
from msgtx.config import ConsumerConfig
from msgtx.consumer.commits import Commits
from msgtx.consumer.fetcher import Assigned, Fetcher, readable
from msgtx.database.connection import RawConnection, until
from msgtx.database.pool import Engine
from msgtx.errors import IllegalState, MsgtxError
from msgtx.store.fetch import EARLIEST, LATEST, ListedOffset
from msgtx.store.groups import commit_offsets
from msgtx.store.holders import stable_ends, stable_offsets
from msgtx.store.records import count_records
from msgtx.store.topics import Topic
from msgtx.types import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

Topics = Callable[[str, bool], Topic | None]
Answer = TypeVar("Answer")


class Places:
    """The partitions of a consumer and their positions."""

    def __init__(self, engine: Engine, config: ConsumerConfig, topics: Topics) -> None:
        self._engine = engine
        self.config = config
        self._topics = topics
        self._fetcher = Fetcher(engine, config)
        self._commits = Commits(self._commit, timeout=config.request_timeout_ms / 1000)
        self._closed = False
        self._user: int | None = None
        self._pid = os.getpid()

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads."""
        return set(self._fetcher.assigned)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`. Raise `InvalidRequest` if it is negative, `IllegalState` if the partition is not assigned."""
        with self._use():
            assigned = self._assigned_partition(partition)
            if offset < 0:
                raise errors.InvalidRequest(f"{partition}: an offset is not negative; this one is {offset}")
            self._fetcher.seek(assigned, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the log start with the next poll."""
        self._seek_to_time(partitions, EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the end that this isolation may read, with the next poll."""
        self._seek_to_time(partitions, LATEST)

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the first record at or after a time; to the end if there is none."""
        if timestamp_ms < 0:
            raise errors.InvalidRequest(f"a time is in milliseconds since 1970 UTC, not {timestamp_ms}")
        self._seek_to_time(partitions, timestamp_ms)

    def _seek_to_time(self, partitions: Iterable[TopicPartition] | None, timestamp: int) -> None:
        with self._use():
            for partition in self._all_or(partitions):
                self._fetcher.seek_to_time(self._assigned_partition(partition), timestamp)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`."""
        for partition in partitions:
            self._assigned_partition(partition).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out these partitions again."""
        for partition in partitions:
            self._assigned_partition(partition).paused = False

    # ── where it stands ──

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to be handed out.

        Raise `UnstableOffset` if the group's offset is part of an undecided transaction for `request_timeout_ms`.
        """
        with self._use():
            assigned = self._assigned_partition(partition)
            self._find_positions([assigned])
            position = assigned.position
            assert position is not None
            return position

    def _find_positions(self, wanted: Iterable[Assigned]) -> None:
        """Find where these stand, and wait for what is not stable. Raise `UnstableOffset` when time is over."""
        deadline = time.monotonic() + self.config.request_timeout_ms / 1000
        lacking = [assigned for assigned in wanted if assigned.position is None]
        while lacking:
            self._asked(self._fetcher.find_positions)
            lacking = [assigned for assigned in lacking if assigned.position is None]
            if lacking:
                self._await_stable(lacking[0].topic_partition, deadline)

    def _await_stable(self, partition: TopicPartition, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise errors.UnstableOffset(
                f"group {self.config.group!r}: the offset of {partition} is part of an undecided transaction; if that is"
                " prepared (`msgtx transactions prepared`), its outside party has to decide it"
            )
        time.sleep(min(left, self.config.retry_backoff_ms / 1000))

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        require_stable: bool | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets. Those of a sealed transaction are waited for, unless `require_stable=False`.

        Raise `UnstableOffset` when time is over.
        """
        group = self._group()
        wanted = {self._partition_id(tp): tp for tp in self._all_or(partitions)}
        deadline = time.monotonic() + (self.config.request_timeout_ms / 1000 if timeout is None else timeout)
        self._commits.settle()
        while True:
            found, _ = self._asked(lambda connection: stable_offsets(connection, group, list(wanted)))
            pending = [tp for partition_id, tp in wanted.items() if partition_id in found and found[partition_id].pending]
            if not pending or require_stable is False:
                return {tp: found[pid].at if pid in found else None for pid, tp in wanted.items()}
            self._await_stable(pending[0], deadline)

    def beginning_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the log starts."""
        return {tp: listed.log_start_offset for tp, listed in self._listed(self._all_or(partitions), EARLIEST).items()}

    def end_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the ends that this isolation may read: the last stable offset, or the log end."""
        listed = self._listed(self._all_or(partitions), LATEST)
        return {tp: readable(at, self.config.isolation) for tp, at in listed.items()}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return, for each partition, its first record at or after a time in milliseconds; None if there is none."""
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for partition, timestamp in times.items():
            if timestamp < 0:
                raise errors.InvalidRequest(f"a time is in milliseconds since 1970 UTC, not {timestamp}")
            at = self._listed([partition], timestamp)[partition]
            known = at.offset is not None and at.timestamp is not None
            found[partition] = OffsetAndTimestamp(at.offset, at.timestamp) if known else None  # type: ignore[arg-type]
        return found

    def lag(self) -> dict[TopicPartition, int]:
        """Return how many records each partition would still hand out; 0 when caught up."""
        with self._use():
            self._find_positions(self._fetcher.assigned.values())
            positions = {a.partition_id: a.position or 0 for a in self._fetcher.assigned.values()}
            counted = self._asked(lambda connection: count_records(connection, positions, self.config.isolation))
            return {tp: counted.get(a.partition_id, 0) for tp, a in self._fetcher.assigned.items()}

    def offset_lag(self) -> dict[TopicPartition, int]:
        """Return the readable end minus the position of each partition; aborted records count."""
        ends = self.end_offsets()
        return {tp: end - self.position(tp) for tp, end in ends.items()}

    def _listed(self, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, ListedOffset]:
        named = [TopicPartition(*tp) for tp in partitions]
        for attempt in ("as it is known", "as it is now"):
            wanted = {self._partition_id(tp): tp for tp in named}
            times = dict.fromkeys(wanted, timestamp)
            found = self._asked(lambda connection: stable_ends(connection, times, self.config.isolation))  # noqa: B023 - at once
            missing = [tp for partition_id, tp in wanted.items() if partition_id not in found]
            if not missing:
                return {tp: found[partition_id] for partition_id, tp in wanted.items()}
            if attempt == "as it is known":
                for name in {tp.topic for tp in missing}:
                    self._topic(name, fresh=True)
        raise errors.UnknownTopicOrPartition(f"{missing[0]} does not exist (any more)")

    # ── plumbing ──

    def _commit(self, group: GroupMetadata, offsets: Mapping[int, OffsetAndMetadata]) -> None:
        self._asked(lambda connection: commit_offsets(connection, {group: offsets}))

    def _asked(self, question: Callable[[RawConnection], Answer]) -> Answer:
        def attempt() -> Answer:
            with self._engine.connection() as connection:
                return question(connection)

        return self._retried(attempt)

    def _retried(self, attempt: Callable[[], Answer]) -> Answer:
        """Repeat a call that may be repeated, until it is answered or `request_timeout_ms` are over."""
        deadline = time.monotonic() + self.config.request_timeout_ms / 1000
        while True:
            try:
                with until(deadline, silence=self.config.request_timeout_ms / 1000):
                    return attempt()
            except MsgtxError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
            time.sleep(self.config.retry_backoff_ms / 1000)

    def _group(self) -> str:
        if self.config.group is None:
            raise IllegalState("this consumer has no group: give it one (group=…) to commit offsets")
        return self.config.group

    def _topic(self, name: str, *, fresh: bool = False) -> Topic:
        topic = self._retried(lambda: self._topics(name, fresh))
        if topic is None:
            raise errors.UnknownTopicOrPartition(f"there is no topic {name!r}; create it first")
        return topic

    def _partition_id(self, partition: TopicPartition) -> int:
        topic = self._topic(partition[0])
        if not 0 <= partition[1] < len(topic.partition_ids):
            raise errors.UnknownTopicOrPartition(
                f"{partition[0]} has partitions 0 to {len(topic.partition_ids) - 1}, and not {partition[1]}"
            )
        return topic.partition_ids[partition[1]]

    def _assigned_partition(self, partition: TopicPartition) -> Assigned:
        try:
            return self._fetcher.assigned[partition]
        except KeyError:
            raise IllegalState(f"{TopicPartition(*partition)} is not assigned to this consumer") from None

    def _all_or(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        return (
            list(self._fetcher.assigned) if partitions is None else [TopicPartition(*partition) for partition in partitions]
        )

    @contextlib.contextmanager
    def _use(self) -> Iterator[None]:
        if self._closed or self._pid != os.getpid():
            raise IllegalState("the consumer is closed" if self._closed else "the consumer was made before a fork")
        me = threading.get_ident()
        if self._user not in {None, me}:
            raise IllegalState("a consumer is for one thread at a time; only stop() may come from another")
        nested = self._user == me
        self._user = me
        try:
            yield
        finally:
            if not nested:
                self._user = None
