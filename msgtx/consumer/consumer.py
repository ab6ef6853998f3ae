"""The consumer: polls and commits."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, cast

from msgtx import arguments, errors, forks, units
from msgtx.config import ConsumerConfig
from msgtx.consumer.calls import ConsumerCalls
from msgtx.consumer.commits import Commits
from msgtx.consumer.committing import Committing
from msgtx.consumer.fetcher import Fetcher
from msgtx.consumer.partition import Assigned
from msgtx.consumer.positions import Positions, as_time
from msgtx.consumer.subscription import RebalanceCallback, SubscriptionState
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.errors import IllegalState, MsgtxError
from msgtx.observer import Observers
from msgtx.receiving.deserializers import Deserializers, failed
from msgtx.receiving.reader import Reader
from msgtx.receiving.wakeup import Listener
from msgtx.store.fetch.fetch import EARLIEST, LATEST
from msgtx.store.topics.topics import Topics, TopicsNow
from msgtx.types import GroupMetadata, K, OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition, V
from msgtx.units import Duration

if TYPE_CHECKING:
    from msgtx.session.enlistment import UserSession

log = logging.getLogger("msgtx.consumer")


class Consumer(Reader[ConsumerConfig, Record[K, V]], Generic[K, V]):
    """Reads records. For one thread (only `stop` and `close` may come from another one). Made by `client.consumer()`.

    `K`, `V`: the types of a record's key and value, bytes unless deserializers make something else of them.
    """

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        *,
        topics: Topics,
        topics_now: TopicsNow,
        all_topics: Callable[[], Iterable[str]],
        listener: Listener,
        deserializers: Deserializers,
        observers: Observers | None = None,
    ) -> None:
        super().__init__("consumer", config, listener, observers)
        self._fetcher = Fetcher(engine, config, self._integrity)
        calls = ConsumerCalls(engine, config, topics, topics_now, fetcher=self._fetcher)
        self._calls = calls
        self._commits = Commits(self._write_offsets, timeout=config.request_timeout_ms / 1000)
        self._positions = Positions(config, calls, self._fetcher, self._commits)
        self.subscription = SubscriptionState(
            engine,
            config,
            calls,
            fetcher=self._fetcher,
            commits=self._commits,
            integrity=self._integrity,
            waiter=self._waiter,
            listener=listener,
            all_topics=all_topics,
            commit_positions=lambda: self.committing.commit_positions(),  # noqa: PLW0108 - it is made below
        )
        self.committing = Committing(
            engine,
            config,
            calls,
            fetcher=self._fetcher,
            commits=self._commits,
            positions=self._positions,
            subscription=self.subscription,
        )
        self._deserializers = deserializers
        self._failing_since: float | None = None
        self.failing: MsgtxError | None = None  # the error of the last look at the database; None: it was answered
        self._looked = -math.inf  # when all partitions were fetched
        forks.follow(self, Consumer._forked)

    def _forked(self) -> None:
        """Handle a fork, in the child: fetched records are for the parent to return."""
        self._fetcher.assigned = {}

    def _reads(self) -> str:
        return f", {units.counted(len(self._fetcher.assigned), 'partition')}"

    # ── partitions and positions ──

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads."""
        return set(self._fetcher.assigned)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, from the group's committed offsets, else by `auto_offset_reset`.

        Raise `IllegalState` after `subscribe` with a group: then its members divide the partitions.
        """
        with self._use():
            self.subscription.assign(partitions)

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
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
            self.subscription.subscribe(topics, pattern=pattern, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def rewind(self) -> None:
        """Go back to the committed offsets, as after an aborted transaction; without one to where reading began.

        Call it after an exception, including one of a signal handler (Ctrl-C). Until then, polls and commits of a consumer
        that was interrupted in the middle of a step raise `IllegalState`.
        """
        with self._use():
            with self._integrity.steps():
                self.subscription.rewind()
            self._integrity.torn = False

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`. Raise `InvalidRequest` if it is none, `IllegalState` if the partition is not assigned."""
        with self._use(), self._integrity.steps():
            self._positions.seek(partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the log start with the next poll."""
        with self._use(), self._integrity.steps():
            self._positions.seek_to_time(EARLIEST, partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the end that this isolation may read, with the next poll."""
        with self._use(), self._integrity.steps():
            self._positions.seek_to_time(LATEST, partitions)

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the first record at or after a time; to the end if there is none."""
        with self._use(), self._integrity.steps():
            self._positions.seek_to_time(as_time(timestamp_ms), partitions)

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
        timeout: Duration | None = None,
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

    def _known_lag(self) -> dict[TopicPartition, int]:
        """Return how far each position is behind the end that was seen last. No call, and from any thread: for metrics."""
        lags = {assigned.topic_partition: assigned.lag for assigned in list(self._fetcher.assigned.values())}
        behind = self._standby_lag()
        return {partition: lag + behind.get(partition, 0) for partition, lag in lags.items() if lag is not None}

    def _standby_lag(self) -> dict[TopicPartition, int]:
        """Return how far the standby of `read_url` is behind the primary, as far as that is known; {} without one."""
        return self._fetcher.behind()

    # ── reading ──

    def poll(self, timeout: Duration = 1.0, max_records: int | None = None) -> list[Record[K, V]]:
        """Return up to `max_records` (default `max_poll_records`) records; [] when `timeout` seconds are over.

        Positions move past returned records, and past aborted data. Raise `LogTruncated`, `CommitsLost`, `OffsetOutOfRange`,
        `NoOffset`, `DeserializationError`; `DatabaseUnavailable` when the database is away for `request_timeout_ms`;
        `IllegalState` if the session that was to commit earlier records was rolled back (see `commit`), or the consumer
        was interrupted while it returned records (see `rewind`).
        """
        return self._guarded(self._polled, timeout, max_records)

    @contextlib.contextmanager
    def batch(
        self, session: "UserSession", timeout: Duration = 1.0, max_records: int | None = None
    ) -> Iterator[list[Record[K, V]]]:
        """Poll, and have the session's next commit write these records' offsets, with the rows that the block makes of them.

        The commit comes after the block, and is refused within it. If the block raises, or the session is rolled back,
        now or later, also a savepoint around the block, the next poll returns the same records again. [] when `timeout`
        seconds are over: nothing rides then. `session`: as for `commit`. Raise the errors of `poll` and `commit`.
        """
        from msgtx.session.enlistment import require_session

        require_session(session)
        with self._use():
            self.committing.require_by_session()
        with contextlib.ExitStack() as block:
            try:
                records = self._polled(timeout, max_records)
                if records:
                    block.enter_context(self.committing.riding(session))
            except BaseException as error:
                self._kept_from_the_caller(error)
                raise
            yield records

    def __iter__(self) -> Iterator[Record[K, V]]:
        """Yield records forever, one by one; `stop`, from another thread or a signal handler, ends it."""
        self.subscription.require_assignment()
        yield from super().__iter__()

    def settle(self) -> None:
        """Wait until earlier commits are written or refused."""
        self._commits.settle()
        self.committing.rides.ask()

    def _look(self, deadline: float, most: int) -> bool:
        self.committing.commit_automatically()
        self.committing.look_back()
        found = self._wait_for_records(deadline)
        while found and self.committing.look_back():  # rolled back in another thread
            found = self._wait_for_records(deadline)
        if found:
            self.committing.handed_out()
        return found

    def _take(self, most: int) -> list[Record[K, V]]:
        taken = self._fetcher.take(most)
        self._tell_polled(taken)
        return self._deserialized(taken)

    def _each(self) -> Iterator[Record[K, V]]:
        self._tell_polled([])
        current = self._fetcher.assigned
        for assigned in self._fetcher.in_turn():
            if self._goes_on(assigned, current):
                yield from self._hand_out(assigned, current)

    def _goes_on(self, assigned: Assigned, current: Mapping[TopicPartition, Assigned]) -> bool:
        """Whether the next record may be this partition's. `current`: the assignment when the iteration came to them."""
        ends = self.stopping.asked or self.closed or assigned.paused or self.committing.rides.some_lost
        return not ends and self._fetcher.assigned is current and not self.subscription.has_become_due

    def _hand_out(self, assigned: Assigned, current: Mapping[TopicPartition, Assigned]) -> Iterator[Record[K, V]]:
        # The position moves record by record, so that it is exact whenever the caller leaves the loop.
        membership = self.subscription.membership
        deserializes = self._deserializers.needed
        for _ in range(self.config.max_poll_records):
            try:
                record = assigned.take_one()
                if record is None:
                    return
                if self._observers.each:
                    self._tell_one(record)
                if deserializes:
                    self._deserialized([record])
                self.committing.handed_out()
            except BaseException as error:
                self._integrity.raised(error)
                raise
            yield cast(Record[K, V], record) if deserializes else record  # type: ignore[misc]  # K and V are bytes then
            if membership is not None:
                membership.polled()
            if not self._goes_on(assigned, current):
                return

    def _wait_for_records(self, deadline: float) -> bool:
        """Fetch until something is buffered. Returns False when time is over, or after `stop`."""
        self.subscription.require_assignment()
        entered = time.monotonic()
        at_once = entered >= deadline
        while True:
            if self.closed:
                return False
            if self.subscription.membership is not None:
                self.subscription.membership.polled()  # also a poll that waits for longer than `max_poll_interval_ms`
            has_moved = self._calls.losses.are_due
            if self._fetcher.ready and not (self.subscription.is_due or has_moved):
                return True
            if self.stopping.asked:
                return False
            looked, self._looked = self._looked, -math.inf  # until it is done: what is named is named once
            named = self._waiter.clear()
            self._fetcher.woken(named)  # also if it falls into a look at everything, or into one that fails
            began = time.monotonic()
            # Without a notification there is nothing new. Commits of a client that died before it notified are found
            # later.
            late = began >= looked + self.config.fetch_max_wait_ms / 1000
            if late or at_once or has_moved or not self._waiter.notified:
                named = None
            try:
                with until(silence=self.config.request_timeout_ms / 1000):
                    self.subscription.follow_group()
                    if self._fetcher.ready and not has_moved:
                        return True
                    progress = self._fetcher.fetch(named)
                    if has_moved:  # behind a fetch, which tells of records that are lost
                        self.committing.look_for_losses()
                self._failing_since, self._looked = None, began if named is None else looked
                self.failing = None
            except MsgtxError as error:
                if isinstance(error, errors.UnknownTopicOrPartition) and self.subscription.membership is not None:
                    self.subscription.membership.topics_changed()  # deleted; the group learns of it now
                    if self.subscription.keeps or time.monotonic() >= deadline:
                        return False  # the next poll looks at the records there instead
                    time.sleep(self.config.retry_backoff_ms / 1000)
                    continue
                if isinstance(error, errors.UnknownTopicOrPartition) and self.subscription.take_made_again():
                    continue
                self.failing = error
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
            pause = None if self._fetcher.awaited is None else self._fetcher.awaited.pause()
            self._waiter.wait(min(left, longest / 1000, math.inf if pause is None else pause))

    def _given_up(self, began: float, entered: float) -> bool:
        """Return whether the database is away for too long, as far as anybody has looked since `entered`."""
        self._failing_since = self._failing_since or began
        return time.monotonic() - max(self._failing_since, entered) > self.config.request_timeout_ms / 1000

    def _deserialized(self, records: list[Record]) -> list[Record[K, V]]:
        if self._deserializers.needed:
            for good, record in enumerate(records):
                try:
                    self._deserializers.apply(record)
                except Exception as error:
                    self._put_back(records[good:])
                    if not good:
                        at, behind = TopicPartition(record.topic, record.partition), record.offset + 1
                        raise failed(record, error, f"; to skip the record, call seek({at!r}, {behind})") from error
                    del records[good:]
                    break
        return cast(list[Record[K, V]], records)

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
        self._sole_use.require_open()
        self._integrity.require()
        return self.committing.group_metadata()

    def _transaction_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of all assigned partitions, for a transaction. Raise `IllegalState` if they may not be."""
        self._sole_use.require_open()
        self._integrity.require()
        return self.committing.of_transaction()

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        wait: bool = True,
        *,
        session: "UserSession | None" = None,
    ) -> None:
        """Commit these offsets (default: all positions) for the group. `wait=False` reports a failure only to the log.

        A subscribed consumer commits as a member: after the group gave it up, `UnknownMember` is raised until a poll
        has joined again. A consumer with assigned partitions commits to a group without members. `CommitsLost`: a failover
        has lost earlier offsets, and these are not written.

        `session`: SQLAlchemy's `Session`, `scoped_session` or `Connection`, psycopg's `Connection` or Django's, on the same
        database. The offsets are committed with its next commit, and gone with its rollback: rows that are made of records
        are there exactly once. The group is fenced just before that commit, which then raises (I11). After a rollback polls
        raise `IllegalState` until `rewind` or `seek`; an error before this call needs `rewind`, too: `batch` does it all.
        Raise `IllegalState` while `enable_auto_commit` is on, older offsets wait for another session's commit, or they were
        rolled back after a poll that returned more.
        """
        wait = arguments.flag("wait", wait)
        with self._use():
            self._integrity.require()
            if session is not None:
                self.committing.commit_in(session, offsets)
            else:
                self.committing.commit(offsets, wait=wait)

    def _write_offsets(self, group: GroupMetadata, offsets: Mapping[int, OffsetAndMetadata]) -> None:
        try:
            self._calls.commit_offsets(group, offsets)
        except (errors.UnknownMember, errors.FencedInstance, errors.IllegalGeneration, errors.NotAssigned):
            # In the background nobody else hears it. As with Kafka's, the member then joins again with its next poll.
            if self.subscription.membership is not None:
                self.subscription.membership.refused()
            raise

    def close(self) -> None:
        """Commit positions (if that is automatic) and those of `commit(wait=False)`, and end. May be called twice.

        It takes no longer than `request_timeout_ms` in all: positions that are not committed then are logged. A waiting poll
        in another thread ends; any other call there is waited for. The records of the last poll count as processed: if
        another thread may still work on them, call `stop`, and close when its loop has ended.
        """
        self._close()

    def _finish(self, deadline: float) -> None:
        try:
            if self.config.enable_auto_commit:
                self._integrity.require()
                self.committing.commit_positions()
            self._commits.settle()
        except (errors.DatabaseUnavailable, IllegalState) as error:
            log.warning("group %r: positions were not committed: %s", self.config.group, error)

    def _leave(self, deadline: float) -> None:
        self._commits.give_up()
        if self.subscription.membership is not None:
            self.subscription.membership.close(deadline)
