"""The consumer: positions, polls, commits."""

import concurrent.futures
import contextlib
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from msgtx import errors
from msgtx.config import ConsumerConfig
from msgtx.database.engine import Engine, RawConnection
from msgtx.errors import IllegalState, MsgtxError
from msgtx.store.fetch import (
    EARLIEST,
    LATEST,
    FetchedBatch,
    FetchedPartition,
    ListedOffset,
    Position,
    fetch,
    list_offsets,
)
from msgtx.store.groups import commit_offsets, committed_offsets
from msgtx.store.records import count_records, records_of
from msgtx.store.topics import Topic
from msgtx.store.transactions import expire_transaction
from msgtx.types import GroupMetadata, Isolation, OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition
from msgtx.wakeup import Listener, Waiter

log = logging.getLogger("msgtx.consumer")
FETCH_BYTES: Final = 8 * 1024 * 1024  # of all partitions in one fetch, if fetch_max_bytes allows: enough to hide its cost
BLOCKED_SECONDS: Final = 0.05  # between two looks at an overdue transaction whose lock is held
Deserializer = Callable[[bytes | None], Any]
Topics = Callable[[str, bool], Topic | None]
Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Assigned:
    """One partition of this consumer: what is fetched next, and what was fetched and not yet handed out."""

    topic_partition: TopicPartition
    partition_id: int
    next: Position | None = None  # None: to be found from the group or by auto_offset_reset
    reset: int | None = None  # a time to look up instead: EARLIEST, LATEST, or milliseconds
    batches: deque[FetchedBatch] = field(default_factory=deque)
    records: list[Record] = field(default_factory=list)
    at: int = 0  # of `records`, the next one to hand out
    skip_to: int = 0  # the offset where reading began, for a batch that begins before it
    paused: bool = False

    @property
    def buffered(self) -> bool:
        return self.at < len(self.records) or bool(self.batches)

    @property
    def position(self) -> int | None:
        if self.at < len(self.records):
            return self.records[self.at].offset
        if self.batches:
            return max(self.batches[0].base_offset, self.skip_to)
        return None if self.next is None else self.next.offset

    def forget(self) -> None:
        self.batches.clear()
        self.records = []
        self.at = 0

    def take(self, most: int) -> list[Record]:
        """Hand out records that were fetched."""
        while self.at >= len(self.records):
            if not self.batches:
                return []
            self.records = records_of(self.batches.popleft(), self.topic_partition, self.skip_to)
            self.at = 0
        taken = self.records[self.at : self.at + most] if self.at or most < len(self.records) else self.records
        self.at += len(taken)
        if self.at >= len(self.records):
            self.records = []
            self.at = 0
        return taken

    def one_by_one(self, most: int) -> Iterator[Record]:
        """Hand out up to `most` records, moving the position with each; a seek in between ends it."""
        while most > 0 and self.buffered:
            if self.at >= len(self.records):
                self.records, self.at = records_of(self.batches.popleft(), self.topic_partition, self.skip_to), 0
            records = self.records
            while most > 0 and self.records is records and self.at < len(records):
                self.at += 1
                most -= 1
                yield records[self.at - 1]


class Consumer:
    """Reads records. Not to be shared by threads (only `stop` may come from another one). Made by `client.consumer()`."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        *,
        topics: Topics,
        all_topics: Callable[[], Iterable[str]],
        listener: Listener,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> None:
        self._engine = engine
        self.config = config
        self._topics = topics
        self._all_topics = all_topics
        self._waiter = Waiter(listener)
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._turn: deque[TopicPartition] = deque()
        self._stopped = False
        self._closed = False
        self._user: int | None = None
        self._pid = os.getpid()
        self._committed_since_poll = False
        self._next_auto_commit = time.monotonic() + config.auto_commit_interval_ms / 1000
        self._failing_since: float | None = None
        self._background: concurrent.futures.ThreadPoolExecutor | None = None

    # ── what to read ──

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, from the group's committed offsets, else by `auto_offset_reset`."""
        with self._use():
            wanted = [TopicPartition(*partition) for partition in partitions]
            kept = {tp: self._assigned.get(tp) or _Assigned(tp, self._partition_id(tp)) for tp in wanted}
            self._assigned = kept
            self._turn = deque(kept)
            self._waiter.watch(assigned.partition_id for assigned in kept.values())

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        on_assign: Callable[[list[TopicPartition]], object] | None = None,
        on_revoke: Callable[[list[TopicPartition]], object] | None = None,
        on_lost: Callable[[list[TopicPartition]], object] | None = None,
    ) -> None:
        """Read all partitions of these topics, or of those whose whole name matches `pattern`.

        Members of one group do not divide partitions among themselves in this version: give each its own with `assign`.
        """
        del on_revoke, on_lost  # nothing takes a partition away from a consumer without membership
        if isinstance(topics, str):
            raise TypeError("topics is a list of names; for one topic write [name]")
        if bool(topics) == (pattern is not None):
            raise errors.ConfigError("subscribe takes topics, or pattern=")
        if self.config.group is not None:
            log.warning(
                "group %r: this consumer reads all partitions; members do not divide them in this version, use assign()",
                self.config.group,
            )
        names = topics
        if pattern is not None:
            try:
                expression = re.compile(pattern)
            except re.error as error:
                raise errors.ConfigError(f"pattern {pattern!r}: {error}") from error
            names = [name for name in self._all_topics() if expression.fullmatch(name)]
        partitions: list[TopicPartition] = []
        for name in names:
            topic = self._topic(name)
            partitions.extend(TopicPartition(name, index) for index in range(len(topic.partition_ids)))
        self.assign(partitions)
        if on_assign is not None:
            on_assign(partitions)

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads."""
        return set(self._assigned)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`. Raise `InvalidRequest` if it is negative, `IllegalState` if the partition is not assigned."""
        with self._use():
            assigned = self._assigned_partition(partition)
            if offset < 0:
                raise errors.InvalidRequest(f"{partition}: an offset is not negative; this one is {offset}")
            assigned.forget()
            assigned.next, assigned.reset, assigned.skip_to = Position(offset), None, offset

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
                assigned = self._assigned_partition(partition)
                assigned.forget()
                assigned.next, assigned.reset = None, timestamp

    def rewind(self) -> None:
        """Go back to the committed offsets, as after an aborted transaction."""
        with self._use():
            for assigned in self._assigned.values():
                assigned.forget()
                assigned.next, assigned.reset = None, None

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`."""
        for partition in partitions:
            self._assigned_partition(partition).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out these partitions again."""
        for partition in partitions:
            self._assigned_partition(partition).paused = False

    # ── reading ──

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        """Return up to `max_records` (default `max_poll_records`) records; [] when `timeout` seconds are over.

        Positions move past what is returned, and past aborted data. Raise `LogTruncated`, `OffsetOutOfRange`, `NoOffset`,
        `DeserializationError`; `DatabaseUnavailable` when the database is away for `request_timeout_ms`.
        """
        most = self.config.max_poll_records if max_records is None else max_records
        if most <= 0:
            raise errors.InvalidRequest(f"max_records must be above 0, not {most}")
        with self._use():
            self._commit_automatically()
            if not self._wait_for_records(time.monotonic() + timeout):
                self._stopped = False  # `stop` ended this poll, not those that follow
                return []
            self._committed_since_poll = False
            return self._take(most)

    def __iter__(self) -> Iterator[Record]:
        """Yield records for ever; `stop`, from another thread or a signal handler, ends it."""
        if not self._assigned:
            raise IllegalState("nothing is assigned: subscribe or assign first")
        while not self._stopped and not self._closed:
            with self._use():
                self._commit_automatically()
                found = self._wait_for_records(time.monotonic() + 1.0)
            if found:
                self._committed_since_poll = False
                self._turn.rotate(-1)
                for assigned in [self._assigned[tp] for tp in self._turn]:
                    if not assigned.paused:
                        yield from self._hand_out(assigned)
        self._stopped = False

    def _hand_out(self, assigned: _Assigned) -> Iterator[Record]:
        # The position moves record by record, so that it is exact whenever the caller leaves the loop.
        for record in assigned.one_by_one(self.config.max_poll_records):
            yield self._deserialized([record])[0]
            if self._stopped or self._closed:
                return

    def stop(self) -> None:
        """End an iteration (or the poll that waits now) soon. The only call for another thread or a signal handler."""
        self._stopped = True
        self._waiter.wake()

    def _wait_for_records(self, deadline: float) -> bool:
        """Fetch until something is buffered. Returns False when time is over, or after `stop`."""
        while True:
            if any(assigned.buffered and not assigned.paused for assigned in self._assigned.values()):
                return True
            if self._stopped:
                return False
            if not self._assigned:
                raise IllegalState("nothing is assigned: subscribe or assign first")
            self._waiter.clear()
            try:
                progress = self._fetch()
                self._failing_since = None
            except MsgtxError as error:
                if not error.retriable or self._given_up():
                    raise
                progress = False
                self._waiter.clear()
                if time.monotonic() < deadline:
                    time.sleep(min(self.config.retry_backoff_ms / 1000, max(0.0, deadline - time.monotonic())))
            if progress:
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._waiter.wait(min(left, self.config.fetch_max_wait_ms / 1000))

    def _given_up(self) -> bool:
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        return now - self._failing_since > self.config.request_timeout_ms / 1000

    def _take(self, most: int) -> list[Record]:
        taken: list[Record] = []
        for _ in range(len(self._turn)):
            assigned = self._assigned[self._turn[0]]
            if not assigned.paused:
                while len(taken) < most and (records := assigned.take(most - len(taken))):
                    taken = taken + records if taken else records
            if len(taken) >= most:
                break
            self._turn.rotate(-1)
        return self._deserialized(taken)

    def _deserialized(self, records: list[Record]) -> list[Record]:
        if self._key_deserializer is None and self._value_deserializer is None:
            return records
        good: list[Record] = []
        for at, record in enumerate(records):
            try:
                key = record.key if self._key_deserializer is None else self._key_deserializer(record.key)
                value = record.value if self._value_deserializer is None else self._value_deserializer(record.value)
            except Exception as error:
                # Nothing is lost: this record and those behind it are handed out again, unless the caller seeks past it.
                for again in reversed(records[at:]):
                    self.seek(TopicPartition(again.topic, again.partition), again.offset)
                if good:
                    return good
                place = f"{record.topic}-{record.partition} offset {record.offset}"
                raise errors.DeserializationError(f"{place}: the deserializer raised {error!r}") from error
            good.append(Record(record.topic, record.partition, record.offset, record.timestamp, key, value, record.headers))
        return good

    def _fetch(self) -> bool:
        """Fetch what is not paused and has nothing buffered. Returns whether any position moved."""
        with self._engine.connection() as connection:
            self._find_positions(connection)
            wanted = {a.partition_id: a for a in self._assigned.values() if not a.paused and not a.buffered}
            if not wanted:
                return False
            positions = {partition_id: a.next for partition_id, a in wanted.items() if a.next is not None}
            total = min(self.config.fetch_max_bytes, FETCH_BYTES)
            answers = fetch(
                connection,
                positions,
                isolation=self.config.isolation,
                max_bytes=max(1, total // len(positions)),
            )
            progress = False
            for partition_id, assigned in wanted.items():
                answer = answers.get(partition_id)
                if answer is None:
                    raise errors.UnknownTopicOrPartition(f"{assigned.topic_partition} does not exist (any more)")
                progress = self._fetched(assigned, answer) or progress
            if not progress:
                for answer in answers.values():
                    if answer.blocked_by is not None and answer.blocked_overdue:
                        progress = expire_transaction(connection, answer.blocked_by) or progress
            return progress

    def _fetched(self, assigned: _Assigned, answer: FetchedPartition) -> bool:
        assert assigned.next is not None
        before = assigned.next
        if answer.truncated:
            if before.token is None:
                return self._out_of_range(assigned, answer)
            raise errors.LogTruncated(
                f"{assigned.topic_partition}: what was read before offset {before.offset} is no longer in the log, which"
                f" ends at {answer.log_end_offset}: a crash of the server took it back; seek to where you want to go on"
            )
        if before.offset < answer.log_start_offset:
            return self._out_of_range(assigned, answer)
        assigned.batches.extend(answer.batches)
        assigned.skip_to = before.offset
        assigned.next = Position(answer.position, answer.token)
        return answer.position > before.offset

    def _out_of_range(self, assigned: _Assigned, answer: FetchedPartition) -> bool:
        assert assigned.next is not None
        if self.config.auto_offset_reset == "none":
            raise errors.OffsetOutOfRange(
                f"{assigned.topic_partition}: offset {assigned.next.offset} is not in the log, which goes from"
                f" {answer.log_start_offset} to {answer.log_end_offset}"
            )
        log.warning(
            "%s: offset %s is out of range, going to %s",
            assigned.topic_partition,
            assigned.next.offset,
            self.config.auto_offset_reset,
        )
        assigned.next = None
        assigned.reset = EARLIEST if self.config.auto_offset_reset == "earliest" else LATEST
        return True

    def _find_positions(self, connection: RawConnection) -> None:
        unknown = [a for a in self._assigned.values() if a.next is None]
        if not unknown:
            return
        if self.config.group is not None:
            asked = [a.partition_id for a in unknown if a.reset is None]
            found = committed_offsets(connection, self.config.group, asked) if asked else {}
            for assigned in unknown:
                at = found.get(assigned.partition_id)
                if assigned.reset is None and at is not None and at.at is not None:
                    assigned.next = Position(at.at.offset)
        times: dict[int, int] = {}
        for assigned in unknown:
            if assigned.next is None:
                times[assigned.partition_id] = self._reset_time(assigned)
        if not times:
            return
        ends = list_offsets(connection, times, self.config.isolation)
        for assigned in unknown:
            if assigned.next is None:
                end = ends.get(assigned.partition_id)
                if end is None:
                    raise errors.UnknownTopicOrPartition(f"{assigned.topic_partition} does not exist (any more)")
                assigned.next, assigned.reset = Position(_readable(end, self.config.isolation)), None

    def _reset_time(self, assigned: _Assigned) -> int:
        if assigned.reset is not None:
            return assigned.reset
        if self.config.auto_offset_reset == "none":
            raise errors.NoOffset(
                f"{assigned.topic_partition}: group {self.config.group!r} has no committed offset, and auto_offset_reset is"
                " none: seek, or set it to earliest or latest"
            )
        return EARLIEST if self.config.auto_offset_reset == "earliest" else LATEST

    # ── where it stands ──

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to be handed out."""
        with self._use():
            assigned = self._assigned_partition(partition)
            if assigned.position is None:
                self._asked(self._find_positions)
            position = assigned.position
            assert position is not None
            return position

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
        while True:
            found = self._asked(lambda connection: committed_offsets(connection, group, list(wanted)))
            pending = [tp for partition_id, tp in wanted.items() if partition_id in found and found[partition_id].pending]
            if not pending or require_stable is False:
                return {tp: found[pid].at if pid in found else None for pid, tp in wanted.items()}
            if time.monotonic() > deadline:
                raise errors.UnstableOffset(f"group {group!r}: offsets of {pending[0]} wait for an undecided transaction")
            time.sleep(self.config.retry_backoff_ms / 1000)

    def beginning_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the log starts."""
        return {tp: listed.log_start_offset for tp, listed in self._listed(self._all_or(partitions), EARLIEST).items()}

    def end_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the ends that this isolation may read: the last stable offset, or the log end."""
        listed = self._listed(self._all_or(partitions), LATEST)
        return {tp: _readable(at, self.config.isolation) for tp, at in listed.items()}

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
            self._asked(self._find_positions)
            positions = {a.partition_id: a.position or 0 for a in self._assigned.values()}
            counted = self._asked(lambda connection: count_records(connection, positions, self.config.isolation))
            return {tp: counted.get(a.partition_id, 0) for tp, a in self._assigned.items()}

    def offset_lag(self) -> dict[TopicPartition, int]:
        """Return the readable end minus the position of each partition; aborted records count."""
        ends = self.end_offsets()
        return {tp: end - self.position(tp) for tp, end in ends.items()}

    def _listed(self, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, ListedOffset]:
        wanted = {self._partition_id(tp): TopicPartition(*tp) for tp in partitions}
        times = dict.fromkeys(wanted, timestamp)
        found = self._asked(lambda connection: list_offsets(connection, times, self.config.isolation))
        for partition_id, tp in wanted.items():
            if partition_id not in found:
                raise errors.UnknownTopicOrPartition(f"{tp} does not exist (any more)")
        return {tp: found[partition_id] for partition_id, tp in wanted.items()}

    # ── committing ──

    def group_metadata(self) -> GroupMetadata:
        """Return the group, to hand to a producer's transaction."""
        return GroupMetadata(self._group())

    def transaction_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of all assigned partitions, for a transaction. Raise `IllegalState` if they may not be."""
        self._group()
        if self.config.enable_auto_commit:
            raise IllegalState("enable_auto_commit is on: set it to false to commit offsets with a transaction")
        if self.config.isolation is not Isolation.READ_COMMITTED:
            raise IllegalState("isolation is read_uncommitted: a transaction must not depend on what may be taken back")
        if self._committed_since_poll:
            raise IllegalState(
                "offsets were committed by hand since the last poll: use one way, commit() or the transaction"
            )
        return {tp: OffsetAndMetadata(at) for tp, a in self._assigned.items() if (at := a.position) is not None}

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        wait: bool = True,
    ) -> None:
        """Commit these offsets (default: all positions) for the group. `wait=False` reports a failure only to the log."""
        with self._use():
            self._group()
            if offsets is None:
                positions = {tp: OffsetAndMetadata(at) for tp, a in self._assigned.items() if (at := a.position) is not None}
            else:
                positions = {
                    TopicPartition(*tp): at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
                    for tp, at in offsets.items()
                }
            by_id = {self._partition_id(tp): at for tp, at in positions.items()}
            self._committed_since_poll = True
            if wait:
                self._commit(by_id)
                return
            if self._background is None:
                self._background = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="msgtx-commit")
            self._background.submit(self._commit_quietly, by_id)

    def _commit(self, by_id: Mapping[int, OffsetAndMetadata]) -> None:
        group = GroupMetadata(self._group())
        self._asked(lambda connection: commit_offsets(connection, {group: by_id}))

    def _commit_quietly(self, by_id: Mapping[int, OffsetAndMetadata]) -> None:
        try:
            self._commit(by_id)
        except MsgtxError as error:
            log.warning("group %r: offsets were not committed: %s", self.config.group, error)

    def _commit_automatically(self) -> None:
        if not self.config.enable_auto_commit or time.monotonic() < self._next_auto_commit:
            return
        self._next_auto_commit = time.monotonic() + self.config.auto_commit_interval_ms / 1000
        self._commit_positions()

    def _commit_positions(self) -> None:
        by_id = {a.partition_id: OffsetAndMetadata(at) for a in self._assigned.values() if (at := a.position) is not None}
        if by_id:
            self._commit_quietly(by_id)

    # ── plumbing ──

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
                return attempt()
            except MsgtxError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
            time.sleep(self.config.retry_backoff_ms / 1000)

    def _group(self) -> str:
        if self.config.group is None:
            raise IllegalState("this consumer has no group: give it one (group=…) to commit offsets")
        return self.config.group

    def _topic(self, name: str) -> Topic:
        topic = self._retried(lambda: self._topics(name, False))
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

    def _assigned_partition(self, partition: TopicPartition) -> _Assigned:
        try:
            return self._assigned[partition]
        except KeyError:
            raise IllegalState(f"{TopicPartition(*partition)} is not assigned to this consumer") from None

    def _all_or(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        return list(self._assigned) if partitions is None else [TopicPartition(*partition) for partition in partitions]

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

    def close(self) -> None:
        """Commit positions (if that is automatic) and end. May be called twice."""
        if self._closed:
            return
        if self.config.enable_auto_commit and self._pid == os.getpid():
            self._commit_positions()
        if self._background is not None:
            self._background.shutdown()
        self._waiter.watch(())
        self._closed = True

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def _readable(listed: ListedOffset, isolation: Isolation) -> int:
    if listed.offset is not None:
        return listed.offset
    return listed.last_stable_offset if isolation is Isolation.READ_COMMITTED else listed.log_end_offset
