"""The consumer: polls and commits."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from msgtx import arguments, errors, forks
from msgtx.config import ConsumerConfig
from msgtx.consumer.calls import ConsumerCalls
from msgtx.consumer.commits import Commits
from msgtx.consumer.fetcher import Fetcher
from msgtx.consumer.offsets import Offsets
from msgtx.consumer.partition import Assigned
from msgtx.consumer.positions import Positions
from msgtx.consumer.rides import Ride
from msgtx.consumer.subscription import Callback, SubscriptionState
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.errors import IllegalState, MsgtxError
from msgtx.observer import Observers
from msgtx.receiving.integrity import Integrity
from msgtx.receiving.poll import Poll, Stopping
from msgtx.receiving.sole_use import SoleUse
from msgtx.receiving.wakeup import Listener, Waiter
from msgtx.session.enlistment import UserSession, require_session
from msgtx.store.topics.topics import Topics, TopicsNow
from msgtx.types import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition

log = logging.getLogger("msgtx.consumer")
OPEN: Final = "a block of consumer.batch(session) is open: leave it before the commit"
Deserializer = Callable[[bytes | None], Any]


class Consumer:
    """Reads records. For one thread (only `stop` and `close` may come from another one). Made by `client.consumer()`."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        *,
        topics: Topics,
        topics_now: TopicsNow,
        all_topics: Callable[[], Iterable[str]],
        listener: Listener,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        observers: Observers | None = None,
    ) -> None:
        self.config = config
        self._engine = engine
        calls = ConsumerCalls(engine, config, topics, topics_now)
        self._integrity = Integrity("the consumer")
        self._fetcher = Fetcher(engine, config, self._integrity)
        self._calls = calls
        self._commits = Commits(self._write_offsets, timeout=config.request_timeout_ms / 1000)
        self._positions = Positions(config, calls, self._fetcher, self._commits)
        self._waiter = Waiter(listener)
        self._subscription = SubscriptionState(
            engine,
            config,
            calls,
            fetcher=self._fetcher,
            commits=self._commits,
            integrity=self._integrity,
            waiter=self._waiter,
            listener=listener,
            all_topics=all_topics,
            commit_positions=self._commit_positions,
        )
        self._offsets = Offsets(
            engine,
            config,
            calls,
            fetcher=self._fetcher,
            commits=self._commits,
            positions=self._positions,
            subscription=self._subscription,
        )
        self._closed = False
        self._sole_use = SoleUse("a consumer")
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._observers = observers or Observers()
        self._asked = 0.0  # when the poll that is under way began
        self._takes = False  # it hands out: an exception keeps its records from the caller
        self.stopping = Stopping()
        self._failing_since: float | None = None
        self._looked = -math.inf  # when all partitions were fetched
        forks.follow(self, Consumer._forked)

    def _forked(self) -> None:
        """Handle a fork, in the child: fetched records are for the parent to return."""
        self._fetcher.assigned = {}

    # ── partitions and positions ──

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads."""
        return set(self._fetcher.assigned)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, from the group's committed offsets, else by `auto_offset_reset`.

        Raise `IllegalState` after `subscribe` with a group: then its members divide the partitions.
        """
        with self._use():
            self._subscription.assign(partitions)

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

        With a group, its members divide the partitions. When this returns, free ones are assigned to this member; later ones
        change hands within `poll`. It calls `on_assign` with new partitions, `on_revoke` before it gives partitions away
        (commit there), and `on_lost` with partitions that are lost already (the session or `max_poll_interval_ms` was over).
        Partitions for which `on_assign` raises are not read: it is called again. Without a group it reads all partitions.
        Raise `ConfigError` for a bad pattern, or another `assignment` than the group's.
        """
        with self._use():
            self._integrity.require()
            self._subscription.subscribe(topics, pattern=pattern, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def rewind(self) -> None:
        """Go back to the committed offsets, as after an aborted transaction; without one to where reading began.

        Call it after an exception, including one of a signal handler (Ctrl-C). Until then, polls and commits of a consumer
        that was interrupted in the middle of a step raise `IllegalState`.
        """
        with self._use():
            with self._integrity.steps():
                self._subscription.rewind()
            self._integrity.torn = False

    def keep_partitions(self) -> contextlib.AbstractContextManager[None]:
        """Give no partition away within the block, though the group asks for it: a transaction is being filled from them."""
        return self._subscription.keep_partitions()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`. Raise `InvalidRequest` if it is none, `IllegalState` if the partition is not assigned."""
        with self._use(), self._integrity.steps():
            self._positions.seek(partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the log start with the next poll."""
        with self._use(), self._integrity.steps():
            self._positions.seek_to_beginning(partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the end that this isolation may read, with the next poll."""
        with self._use(), self._integrity.steps():
            self._positions.seek_to_end(partitions)

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the first record at or after a time; to the end if there is none."""
        with self._use(), self._integrity.steps():
            self._positions.seek_to_time(timestamp_ms, partitions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""
        self._positions.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        self._positions.resume(partitions)

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to be returned.

        Raise `UnstableOffset` if the group's offset is part of an undecided transaction for `request_timeout_ms`.
        """
        with self._use():
            return self._positions.position(partition)

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        require_stable: bool | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets. Those of a sealed transaction are waited for, unless `require_stable=False`.

        Raise `UnstableOffset` when time is over.
        """
        return self._positions.committed(partitions, require_stable, timeout)

    def beginning_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the log starts."""
        return self._positions.beginning_offsets(partitions)

    def end_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the ends that this isolation may read: the last stable offset, or the log end."""
        return self._positions.end_offsets(partitions)

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return, for each partition, its first record at or after a time in milliseconds; None if there is none."""
        return self._positions.offsets_for_times(times)

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of records that each partition would still return; 0 when caught up."""
        with self._use():
            return self._positions.lag()

    def offset_lag(self) -> dict[TopicPartition, int]:
        """Return the readable end minus the position of each partition; aborted records count."""
        return self._positions.offset_lag()

    def known_lag(self) -> dict[TopicPartition, int]:
        """Return how far each position is behind the end that was seen last. No call, and from any thread: for metrics."""
        lags = {assigned.topic_partition: assigned.lag for assigned in list(self._fetcher.assigned.values())}
        return {partition: lag for partition, lag in lags.items() if lag is not None}

    # ── reading ──

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        """Return up to `max_records` (default `max_poll_records`) records; [] when `timeout` seconds are over.

        Positions move past returned records, and past aborted data. Raise `LogTruncated`, `OffsetOutOfRange`,
        `NoOffset`, `DeserializationError`; `DatabaseUnavailable` when the database is away for `request_timeout_ms`;
        `IllegalState` if the session that was to commit earlier records was rolled back (see `commit`), or the consumer
        was interrupted while it returned records (see `rewind`).
        """
        try:
            return self._polled(timeout, max_records)
        except BaseException as error:
            self._kept_from_the_caller(error)
            raise

    def _polled(self, timeout: float, max_records: int | None) -> list[Record]:
        seconds, most = arguments.seconds("timeout", timeout), self._most(max_records)
        with self._use():
            if not self._await_records(seconds):
                self.stopping.heard()  # `stop` ended this poll, not later ones
                return []
            return self._taken(most)

    @contextlib.contextmanager
    def batch(self, session: UserSession, timeout: float = 1.0, max_records: int | None = None) -> Iterator[list[Record]]:
        """Poll, and have the session's next commit write these records' offsets, with the rows that the block makes of them.

        The commit comes after the block, and is refused within it. If the block raises, or the session is rolled back,
        now or later, also a savepoint around the block, the next poll returns the same records again. [] when `timeout`
        seconds are over: nothing rides then. `session`: as for `commit`. Raise the errors of `poll` and `commit`.
        """
        require_session(session)
        with self._use():
            self.require_by_session()
        with contextlib.ExitStack() as block:
            try:
                records = self._polled(timeout, max_records)
                if records:
                    block.enter_context(self.riding(session))
            except BaseException as error:
                self._kept_from_the_caller(error)
                raise
            yield records

    def require_by_session(self) -> None:
        """Raise `IllegalState` if a session's commit may not bring positions."""
        self._offsets.require_by_session()

    def take_back(self) -> None:
        """Go back before the records of the last poll, which the caller does not get."""
        self._offsets.take_back()

    def riding(self, session: UserSession, refusal: str = OPEN) -> contextlib.AbstractContextManager[Ride]:
        """Add the positions of the last poll to a session, as `batch` does; `refusal`: of a commit within the block."""
        return self._offsets.riding(session, refusal)

    def __iter__(self) -> Iterator[Record]:
        """Yield records forever; `stop`, from another thread or a signal handler, ends it."""
        self._subscription.require_assignment()
        while not self.stopping.asked and not self._closed:
            if self._await_records(1.0):
                yield from self._fetched()
        self.stopping.heard()

    def begin(self, timeout: float = 1.0, max_records: int | None = None) -> Poll[Record]:
        """Return a poll in two halves: one waits, in another thread, and one returns records without waiting."""
        seconds, most = arguments.seconds("timeout", timeout), self._most(max_records)
        return Poll(partial(self._await_records, seconds), partial(self._taken_at_once, most), self._fetched)

    def settle(self) -> None:
        """Wait until earlier commits are written or refused."""
        self._commits.settle()

    def _most(self, max_records: int | None) -> int:
        return self.config.max_poll_records if max_records is None else arguments.whole("max_records", max_records, least=1)

    def _await_records(self, timeout: float) -> bool:
        """Wait until there are records to return. Returns False when time is over, or after `stop`."""
        with self._use():
            self._asked, self._takes = time.monotonic(), False
            now = self._asked
            self._integrity.require()
            try:
                self._offsets.commit_automatically()
                self._offsets.look_back()
                found = self._wait_for_records(now + timeout)
                while found and self._offsets.look_back():  # rolled back in another thread
                    found = self._wait_for_records(now + timeout)
            except MsgtxError as error:
                failure = error
                self._observers.tell(lambda observer: observer.poll_failed(self.config.group, failure))
                raise
            if found:
                self._offsets.handed_out()
            elif self._observers.each:
                self._tell_polled({}, [])
            return found

    def _taken_at_once(self, most: int) -> list[Record]:
        try:
            return self._taken(most)
        except BaseException as error:
            self._kept_from_the_caller(error)
            raise

    def _taken(self, most: int) -> list[Record]:
        self._takes = True
        counts: dict[str, int] | None = {} if self._observers.each else None
        taken = self._fetcher.take(most, counts)
        if counts is not None:
            self._tell_polled(counts, taken)
        return self._deserialized(taken)

    def _kept_from_the_caller(self, error: BaseException) -> None:
        if self._takes:
            self._integrity.raised(error)

    def _fetched(self) -> Iterator[Record]:
        if self._observers.each:
            self._tell_polled({}, [])
        current = self._fetcher.assigned
        for assigned in self._fetcher.in_turn():
            if self._goes_on(assigned, current):
                yield from self._hand_out(assigned, current)

    def _goes_on(self, assigned: Assigned, current: Mapping[TopicPartition, Assigned]) -> bool:
        """Whether the next record may be this partition's. `current`: the assignment when the iteration came to them."""
        ends = self.stopping.asked or self._closed or assigned.paused or self._offsets.rides.some_lost
        return not ends and self._fetcher.assigned is current and not self._subscription.has_become_due

    def _hand_out(self, assigned: Assigned, current: Mapping[TopicPartition, Assigned]) -> Iterator[Record]:
        # The position moves record by record, so that it is exact whenever the caller leaves the loop.
        membership = self._subscription.membership
        deserializes = self._key_deserializer is not None or self._value_deserializer is not None
        for _ in range(self.config.max_poll_records):
            try:
                record = assigned.take_one()
                if record is None:
                    return
                if self._observers.each:
                    self._tell_one(record)
                if deserializes:
                    record = self._deserialized([record])[0]
                self._offsets.handed_out()
            except BaseException as error:
                self._integrity.raised(error)
                raise
            yield record
            if membership is not None:
                membership.polled()
            if not self._goes_on(assigned, current):
                return

    def _tell_polled(self, counts: Mapping[str, int], taken: list[Record]) -> None:
        group, since = self.config.group, self._asked
        self._observers.tell(lambda observer: observer.polled(group))
        if taken:
            self._observers.tell(lambda observer: observer.received(group, counts, taken, since))

    def _tell_one(self, record: Record) -> None:
        group = self.config.group
        self._observers.tell(lambda observer: observer.received(group, {record.topic: 1}, (record,), None))

    def stop(self) -> None:
        """End an iteration (or the poll that waits now) soon. For another thread or a signal handler, too."""
        self.stopping.asked = True
        self._waiter.wake()

    def _wait_for_records(self, deadline: float) -> bool:
        """Fetch until something is buffered. Returns False when time is over, or after `stop`."""
        self._subscription.require_assignment()
        entered = time.monotonic()
        at_once = entered >= deadline
        while True:
            if self._closed:
                return False
            if self._subscription.membership is not None:
                self._subscription.membership.polled()  # also a poll that waits for longer than `max_poll_interval_ms`
            if self._fetcher.ready and not self._subscription.is_due:
                return True
            if self.stopping.asked:
                return False
            looked, self._looked = self._looked, -math.inf  # until it is done: what is named is named once
            named = self._waiter.clear()
            began = time.monotonic()
            # Without a notification there is nothing new. Commits of a client that died before it notified are found
            # later.
            late = began >= looked + self.config.fetch_max_wait_ms / 1000
            if late or at_once or not self._waiter.notified:
                named = None
            try:
                with until(silence=self.config.request_timeout_ms / 1000):
                    self._subscription.follow_group()
                    if self._fetcher.ready:
                        return True
                    progress = self._fetcher.fetch(named)
                self._failing_since, self._looked = None, began if named is None else looked
            except MsgtxError as error:
                if isinstance(error, errors.UnknownTopicOrPartition) and self._subscription.membership is not None:
                    self._subscription.membership.topics_changed()  # deleted; the group learns of it now
                    if self._subscription.keeps or time.monotonic() >= deadline:
                        return False  # the next poll looks at the records there instead
                    time.sleep(self.config.retry_backoff_ms / 1000)
                    continue
                if isinstance(error, errors.UnknownTopicOrPartition) and self._subscription.take_made_again():
                    continue
                left = deadline - time.monotonic()
                if not error.retriable or self._given_up(began, entered if left > 0 else -math.inf):
                    raise
                if left <= 0:
                    return False
                time.sleep(min(self.config.retry_backoff_ms / 1000, left))
                continue
            if progress:
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            longest = self.config.fetch_max_wait_ms if self._fetcher.waiting is None else self.config.retry_backoff_ms
            self._waiter.wait(min(left, longest / 1000))

    def _given_up(self, began: float, entered: float) -> bool:
        """Return whether the database is away for too long, as far as anybody has looked since `entered`."""
        self._failing_since = self._failing_since or began
        return time.monotonic() - max(self._failing_since, entered) > self.config.request_timeout_ms / 1000

    def _deserialized(self, records: list[Record]) -> list[Record]:
        if self._key_deserializer is None and self._value_deserializer is None:
            return records
        good: list[Record] = []
        try:
            good.extend(map(self._deserialized_one, records))
        except errors.DeserializationError:
            self._put_back(records[len(good) :])
            if not good:
                raise
        return good

    def _deserialized_one(self, record: Record) -> Record:
        try:
            key = record.key if self._key_deserializer is None else self._key_deserializer(record.key)
            value = record.value if self._value_deserializer is None else self._value_deserializer(record.value)
        except Exception as error:
            place = f"{record.topic}-{record.partition} offset {record.offset}"
            raise errors.DeserializationError(
                f"{place}: the deserializer raised {error!r}", at=(record.topic, record.partition), offset=record.offset
            ) from error
        return Record(record.topic, record.partition, record.offset, record.timestamp, key, value, record.headers)

    def _put_back(self, records: list[Record]) -> None:
        """Hand these out again, unless the caller seeks past the first one: nothing is lost."""
        for record in reversed(records):
            self._fetcher.assigned[TopicPartition(record.topic, record.partition)].put_back(record.offset)

    # ── committing ──

    def group_metadata(self) -> GroupMetadata:
        """Return the member, for a producer's transaction with the offsets of the records read until now.

        Raise `NotAssigned` if the transaction may hold outputs of partitions that were revoked: abort, and `rewind`.
        Raise `UnknownMember` after the group gave this consumer up, until a poll has joined again.
        """
        self._require_open()
        self._integrity.require()
        return self._offsets.group_metadata()

    def transaction_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of all assigned partitions, for a transaction. Raise `IllegalState` if they may not be."""
        self._require_open()
        self._integrity.require()
        return self._offsets.of_transaction()

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        wait: bool = True,
        *,
        session: UserSession | None = None,
    ) -> None:
        """Commit these offsets (default: all positions) for the group. `wait=False` reports a failure only to the log.

        A subscribed consumer commits as a member: after the group gave it up, `UnknownMember` is raised until a poll
        has joined again. A consumer with assigned partitions commits to a group without members.

        `session`: SQLAlchemy's `Session`, `scoped_session` or `Connection` on the same database. The offsets are committed
        with its next commit, and gone with its rollback: rows that are made of records are there exactly once. The group is
        fenced just before that commit, which then raises (I11). After a rollback polls raise `IllegalState` until `rewind`
        or `seek`; an error before this call needs `rewind`, too: `batch` does it all. Raise `IllegalState` while
        `enable_auto_commit` is on, older offsets wait for another session's commit, or they were rolled back after a
        poll that returned more.
        """
        wait = arguments.flag("wait", wait)
        with self._use():
            self._integrity.require()
            if session is not None:
                self._offsets.commit_in(session, offsets)
            else:
                self._offsets.commit(offsets, wait=wait)

    def commit_starts(self) -> None:
        """Commit the position of a reset before anything is read from it: the next reader continues there, lag shows."""
        self._offsets.commit_starts()

    def _write_offsets(self, group: GroupMetadata, offsets: Mapping[int, OffsetAndMetadata]) -> None:
        try:
            self._calls.commit_offsets(group, offsets)
        except (errors.UnknownMember, errors.FencedInstance, errors.IllegalGeneration, errors.NotAssigned):
            # In the background nobody else hears it. As with Kafka's, the member then joins again with its next poll.
            if self._subscription.membership is not None:
                self._subscription.membership.refused()
            raise

    def _commit_positions(self) -> None:
        self._offsets.commit_positions()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Commit positions (if that is automatic) and those of `commit(wait=False)`, and end. May be called twice.

        It takes no longer than `request_timeout_ms` in all: positions that are not committed then are logged. A waiting poll
        in another thread ends; any other call there is waited for. The records of the last poll count as processed: if
        another thread may still work on them, call `stop`, and close when its loop has ended.
        """
        if self._closed or self._engine.origin.is_parent:
            return
        self._closed = True  # no call begins any more
        self._waiter.wake()
        seconds = self.config.request_timeout_ms / 1000
        deadline = time.monotonic() + seconds
        with contextlib.ExitStack() as block:
            try:
                block.enter_context(self._sole_use.close(seconds))
                with until(deadline):
                    if self.config.enable_auto_commit:
                        self._integrity.require()
                        self._offsets.commit_positions()
                    self._commits.settle()
            except (errors.DatabaseUnavailable, IllegalState) as error:
                log.warning("group %r: positions were not committed: %s", self.config.group, error)
            finally:
                self._commits.give_up()
                if self._subscription.membership is not None:
                    self._subscription.membership.close(deadline)
        self._waiter.watch(())

    def _use(self) -> contextlib.AbstractContextManager[None]:
        return self._sole_use.call(self._require_open)

    def _require_open(self) -> None:
        self._engine.origin.require("a consumer")
        if self._closed:
            raise IllegalState("the consumer is closed", reason="closed")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
