"""The consumer: positions, polls, commits."""

import concurrent.futures
import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, TypeVar

from msgtx import errors
from msgtx.config import ConsumerConfig
from msgtx.database.engine import Engine, RawConnection
from msgtx.errors import IllegalState, MsgtxError
from msgtx.fetcher import Assigned, Fetcher, readable
from msgtx.membership import Membership, Subscription
from msgtx.rules.assignment import subscribed
from msgtx.store.fetch import (
    EARLIEST,
    LATEST,
    ListedOffset,
    Position,
    list_offsets,
)
from msgtx.store.groups import commit_offsets, committed_offsets
from msgtx.store.records import count_records
from msgtx.store.topics import Topic
from msgtx.types import GroupMetadata, Isolation, OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition
from msgtx.wakeup import Listener, Waiter

log = logging.getLogger("msgtx.consumer")
FETCH_BYTES: Final = 8 * 1024 * 1024  # of all partitions in one fetch, if fetch_max_bytes allows: enough to hide its cost
LOOK_SECONDS: Final = 5.0  # between two looks for new partitions of what was subscribed to without a group
Deserializer = Callable[[bytes | None], Any]
Topics = Callable[[str, bool], Topic | None]
Callback = Callable[[list[TopicPartition]], object]
Answer = TypeVar("Answer")


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
        self._listener = listener
        self._waiter = Waiter(listener)
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._fetcher = Fetcher(engine, config)
        self._stopped = False
        self._closed = False
        self._user: int | None = None
        self._pid = os.getpid()
        self._committed_since_poll = False
        self._next_auto_commit = time.monotonic() + config.auto_commit_interval_ms / 1000
        self._failing_since: float | None = None
        self._background: concurrent.futures.ThreadPoolExecutor | None = None
        self._membership: Membership | None = None
        self._subscribed: Subscription | None = None  # without a group
        self._next_look = time.monotonic() + LOOK_SECONDS
        self._told: dict[str, Callback | None] = {}
        self._keeps = False  # a transaction is being filled: partitions are not given away now
        self._taken_away: list[TopicPartition] = []  # with records that were handed out and are committed nowhere

    # ── what to read ──

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, from the group's committed offsets, else by `auto_offset_reset`.

        Raise `IllegalState` after `subscribe` with a group: then its members divide the partitions.
        """
        with self._use():
            if self._membership is not None:
                raise IllegalState("this consumer subscribed: its group gives it partitions; assign is for another one")
            self._subscribed = None
            self._take([TopicPartition(*partition) for partition in partitions])

    def _take(
        self,
        wanted: Iterable[TopicPartition],
        ids: Mapping[TopicPartition, int] = MappingProxyType({}),
        new: Container[TopicPartition] = (),
    ) -> None:
        known = self._fetcher.assigned
        self._fetcher.assign(
            [known.get(tp) or Assigned(tp, ids.get(tp) or self._partition_id(tp), new=tp in new) for tp in wanted]
        )
        self._waiter.watch(assigned.partition_id for assigned in self._fetcher.assigned.values())

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Read these topics, or those whose whole name matches `pattern`. Called again, it replaces the former.

        With a group, its members divide the partitions: what is free is this one's when this returns, later ones change
        hands within `poll`, which calls `on_assign` (partitions that it got), `on_revoke` (that it is about to give away:
        commit there) and `on_lost` (that it no longer had: its session was over, or `max_poll_interval_ms`). Without a group
        it reads all partitions. Raise `ConfigError` for a bad pattern, or another `assignment` than the group's.
        """
        if isinstance(topics, str):
            raise TypeError("topics is a list of names; for one topic write [name]")
        if bool(topics) == (pattern is not None):
            raise errors.ConfigError("subscribe takes topics, or pattern=")
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise errors.ConfigError(f"pattern {pattern!r}: {error}") from error
        with self._use():
            for name in topics:
                self._topic(name)
            self._told = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
            subscription = Subscription(None if pattern is not None else list(topics), pattern)
            if self.config.group is None:
                self._subscribed = subscription
                self._take(self._all_of(subscription))
                self._tell("assign", list(self._fetcher.assigned))
                return
            if self._membership is None:
                waiter = Waiter(self._listener)
                self._membership = Membership(
                    self._engine, self.config, self.config.group, waiter=waiter, wakes=self._waiter
                )
            self._membership.subscribe(subscription)
            self._retried(self._look_after_membership)

    def _all_of(self, subscription: Subscription) -> list[TopicPartition]:
        names = subscription.topics
        if names is None:
            names = sorted(subscribed(None, subscription.pattern, list(self._all_topics())))
        counts = {name: len(self._topic(name, fresh=True).partition_ids) for name in names}
        return [TopicPartition(name, at) for name, count in counts.items() for at in range(count)]

    def _look_for_partitions(self) -> None:
        """Without a group, what is new in the topics that were subscribed to is looked for now and then."""
        if self._subscribed is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        gained = [tp for tp in self._all_of(self._subscribed) if tp not in self._fetcher.assigned]
        if gained:
            self._take([*self._fetcher.assigned, *gained], new=gained)
            self._tell("assign", gained)

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads."""
        return set(self._fetcher.assigned)

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
            for assigned in self._fetcher.assigned.values():
                assigned.forget()
                assigned.next, assigned.reset, assigned.handed = None, None, False
            self._taken_away.clear()
            if self._membership is not None:
                self._membership.due = True  # what was refused may have been refused because partitions were taken away

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
            return self._deserialized(self._fetcher.take(most))

    def __iter__(self) -> Iterator[Record]:
        """Yield records for ever; `stop`, from another thread or a signal handler, ends it."""
        self._require_assignment()
        while not self._stopped and not self._closed:
            with self._use():
                self._commit_automatically()
                found = self._wait_for_records(time.monotonic() + 1.0)
            if found:
                self._committed_since_poll = False
                for assigned in self._fetcher.in_turn():
                    if not assigned.paused and not self._membership_is_due:
                        yield from self._hand_out(assigned)
        self._stopped = False

    def _hand_out(self, assigned: Assigned) -> Iterator[Record]:
        # The position moves record by record, so that it is exact whenever the caller leaves the loop.
        membership = self._membership
        for record in assigned.one_by_one(self.config.max_poll_records):
            yield self._deserialized([record])[0]
            if self._stopped or self._closed:
                return
            if membership is not None:
                membership.polled()
                if membership.due:
                    return

    def stop(self) -> None:
        """End an iteration (or the poll that waits now) soon. The only call for another thread or a signal handler."""
        self._stopped = True
        self._waiter.wake()

    def _wait_for_records(self, deadline: float) -> bool:
        """Fetch until something is buffered. Returns False when time is over, or after `stop`."""
        self._require_assignment()
        if self._membership is not None:
            self._membership.polled()
        while True:
            if self._fetcher.ready and not self._membership_is_due:
                return True
            if self._stopped:
                return False
            self._waiter.clear()
            try:
                self._look_after_membership()
                if self._fetcher.ready:
                    return True
                progress = self._fetcher.fetch()
                self._failing_since = None
            except MsgtxError as error:
                if isinstance(error, errors.UnknownTopicOrPartition) and self._membership is not None:
                    self._membership.topics_changed()  # deleted; the group hears of it now
                    if self._keeps or time.monotonic() >= deadline:
                        return False  # the next poll looks at what is there instead
                    time.sleep(self.config.retry_backoff_ms / 1000)
                    continue
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

    # ── the group ──

    @contextlib.contextmanager
    def keep_partitions(self) -> Iterator[None]:
        """Give no partition away within the block, though the group asks for it: a transaction is being filled from them."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False

    @property
    def _membership_is_due(self) -> bool:
        return self._membership is not None and self._membership.due and not self._keeps

    def _look_after_membership(self) -> None:
        """Take over what became this member's, and give away what is no longer."""
        if self._membership is None:
            self._look_for_partitions()
            return
        while self._membership_is_due:
            try:
                self._follow(self._membership)
            except BaseException:
                self._membership.due = True  # what was not done to its end is to be done again
                raise

    def _follow(self, membership: Membership) -> None:
        try:
            with self._engine.connection() as connection:
                found = membership.look(connection)
                places = {each: membership.place(connection, each) for each in found.owned}
        except (errors.UnknownMember, errors.FencedInstance) as error:
            self._give_up(self._fetcher.assigned)
            if isinstance(error, errors.FencedInstance):
                raise
            return
        owned = {tp: each for each, tp in places.items() if tp is not None}
        # By id: a topic that was deleted and made again has the same name, and other partitions.
        self._give_up([tp for tp, each in self._fetcher.assigned.items() if owned.get(tp) != each.partition_id])
        if leaving := found.owned.keys() - found.target:
            self._give_away([tp for tp in self._fetcher.assigned if owned[tp] in leaving], leaving)
            return
        gained = [tp for tp, each in owned.items() if each in found.target and tp not in self._fetcher.assigned]
        if gained:
            new = [tp for tp in gained if membership.is_new(owned[tp])]
            self._take([*self._fetcher.assigned, *gained], owned, new)
            self._tell("assign", gained)

    def _give_away(self, partitions: list[TopicPartition], ids: Collection[int]) -> None:
        assert self._membership is not None
        self._membership.due = True  # until it is done
        if partitions:
            if self.config.enable_auto_commit:
                self._commit_positions()
            self._tell("revoke", partitions)
            self._drop(partitions)
        with self._engine.connection() as connection:
            self._membership.release(connection, ids)

    def _give_up(self, partitions: Iterable[TopicPartition]) -> None:
        if lost := list(partitions):
            log.warning("group %r: %s were lost", self.config.group, ", ".join(map(str, lost)))
            self._drop(lost)
            self._tell("lost", lost)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        assigned = self._fetcher.assigned
        self._taken_away += [tp for tp in gone if assigned[tp].handed]
        self._take([tp for tp in assigned if tp not in gone])

    def _tell(self, event: str, partitions: list[TopicPartition]) -> None:
        if (callback := self._told.get(event)) is not None:
            callback(partitions)

    def _require_assignment(self) -> None:
        if not self._fetcher.assigned and self._membership is None:
            raise IllegalState("nothing is assigned: subscribe or assign first")

    # ── where it stands ──

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to be handed out."""
        with self._use():
            assigned = self._assigned_partition(partition)
            if assigned.position is None:
                self._asked(self._fetcher.find_positions)
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
            self._asked(self._fetcher.find_positions)
            positions = {a.partition_id: a.position or 0 for a in self._fetcher.assigned.values()}
            counted = self._asked(lambda connection: count_records(connection, positions, self.config.isolation))
            return {tp: counted.get(a.partition_id, 0) for tp, a in self._fetcher.assigned.items()}

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
        """Return the member, to hand to a producer's transaction with the offsets of what was read until now.

        Raise `NotAssigned` if the transaction may hold what came of partitions that were taken away: abort, and `rewind`.
        """
        if self._taken_away:
            raise errors.NotAssigned(
                f"group {self.config.group!r}: {self._taken_away[0]} was taken away after records of it were handed out:"
                " another member has them now; abort what was made of them, and rewind"
            )
        return self._group_metadata()

    def _group_metadata(self) -> GroupMetadata:
        identities = {a.partition_id: a.read_identity for a in self._fetcher.assigned.values()}
        member = self._membership
        if member is None or member.member_id is None:
            return GroupMetadata(self._group(), read_identities=identities)
        return GroupMetadata(
            self._group(), member.member_id, member.generation, self.config.group_instance_id, read_identities=identities
        )

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
        positions = {tp: OffsetAndMetadata(at) for tp, a in self._fetcher.assigned.items() if (at := a.position) is not None}
        for tp in positions:
            self._fetcher.assigned[tp].handed = False
        return positions

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        wait: bool = True,
    ) -> None:
        """Commit these offsets (default: all positions) for the group. `wait=False` reports a failure only to the log."""
        with self._use():
            group = self._group_metadata()
            if offsets is None:
                positions = {
                    tp: OffsetAndMetadata(at) for tp, a in self._fetcher.assigned.items() if (at := a.position) is not None
                }
            else:
                positions = {
                    TopicPartition(*tp): at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
                    for tp, at in offsets.items()
                }
            assigned = self._fetcher.assigned
            by_id = {
                assigned[tp].partition_id if tp in assigned else self._partition_id(tp): at for tp, at in positions.items()
            }
            self._committed_since_poll = True
            self._taken_away.clear()
            for tp in positions.keys() & self._fetcher.assigned.keys():
                self._fetcher.assigned[tp].handed = False
            if wait:
                self._commit(group, by_id)
                return
            if self._background is None:
                self._background = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="msgtx-commit")
            self._background.submit(self._commit_quietly, group, by_id)

    def _commit(self, group: GroupMetadata, by_id: Mapping[int, OffsetAndMetadata]) -> None:
        self._asked(lambda connection: commit_offsets(connection, {group: by_id}))

    def _commit_quietly(self, group: GroupMetadata, by_id: Mapping[int, OffsetAndMetadata]) -> None:
        try:
            self._commit(group, by_id)
        except MsgtxError as error:
            log.warning("group %r: offsets were not committed: %s", self.config.group, error)

    def _commit_automatically(self) -> None:
        if not self.config.enable_auto_commit or time.monotonic() < self._next_auto_commit:
            return
        self._next_auto_commit = time.monotonic() + self.config.auto_commit_interval_ms / 1000
        self._commit_positions()

    def _commit_positions(self) -> None:
        self._taken_away.clear()
        for assigned in self._fetcher.assigned.values():
            assigned.handed = False
        by_id = {
            a.partition_id: OffsetAndMetadata(at) for a in self._fetcher.assigned.values() if (at := a.position) is not None
        }
        if by_id:
            self._commit_quietly(self._group_metadata(), by_id)

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

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Commit positions (if that is automatic) and end. May be called twice."""
        if self._closed:
            return
        if self._pid == os.getpid():
            if self.config.enable_auto_commit:
                self._commit_positions()
            if self._membership is not None:
                self._membership.close()
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
