"""The consumer: polls and commits."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from msgtx import errors
from msgtx.config import ConsumerConfig
from msgtx.consumer.fetcher import Assigned
from msgtx.consumer.positions import Topics
from msgtx.consumer.subscription import Assignments
from msgtx.consumer.wakeup import Listener
from msgtx.database.connection import RawConnection, until
from msgtx.database.pool import Engine
from msgtx.errors import IllegalState, MsgtxError
from msgtx.session.enlistment import UserSession, enlist
from msgtx.store.groups import commit_offsets, offset_rows
from msgtx.types import GroupMetadata, Isolation, OffsetAndMetadata, Record, TopicPartition

log = logging.getLogger("msgtx.consumer")
Deserializer = Callable[[bytes | None], Any]


class Consumer(Assignments):
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
        super().__init__(engine, config, topics=topics, all_topics=all_topics, listener=listener)
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._stopped = False
        self._committed_since_poll = False
        self._next_auto_commit = time.monotonic() + config.auto_commit_interval_ms / 1000
        self._failing_since: float | None = None

    # ── reading ──

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        """Return up to `max_records` (default `max_poll_records`) records; [] when `timeout` seconds are over.

        Positions move past what is returned, and past aborted data. Raise `LogTruncated`, `OffsetOutOfRange`, `NoOffset`,
        `DeserializationError`; `DatabaseUnavailable` when the database is away for `request_timeout_ms`.
        """
        most = self._most(max_records)
        with self._use():
            if not self._await_records(timeout):
                self._stopped = False  # `stop` ended this poll, not those that follow
                return []
            return self._taken(most)

    def __iter__(self) -> Iterator[Record]:
        """Yield records for ever; `stop`, from another thread or a signal handler, ends it."""
        self._require_assignment()
        while not self._stopped and not self._closed:
            if self._await_records(1.0):
                yield from self._fetched()
        self._stopped = False

    # A poll in two halves: what waits, and what hands out without waiting. An event loop has the first done in a thread.

    def _most(self, max_records: int | None) -> int:
        most = self.config.max_poll_records if max_records is None else max_records
        if most <= 0:
            raise errors.InvalidRequest(f"max_records must be above 0, not {most}")
        return most

    def _await_records(self, timeout: float) -> bool:
        """Wait until records are there to be handed out. Returns False when time is over, or after `stop`."""
        with self._use():
            self._commit_automatically()
            found = self._wait_for_records(time.monotonic() + timeout)
            if found:
                self._committed_since_poll = False
            return found

    def _taken(self, most: int) -> list[Record]:
        return self._deserialized(self._fetcher.take(most))

    def _fetched(self) -> Iterator[Record]:
        for assigned in self._fetcher.in_turn():
            if not assigned.paused and not self._membership_is_due:
                yield from self._hand_out(assigned)

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
            began = time.monotonic()
            try:
                with until(silence=self.config.request_timeout_ms / 1000):
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
                if isinstance(error, errors.UnknownTopicOrPartition) and self._take_made_again():
                    continue
                if not error.retriable or self._given_up(began):
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
            longest = self.config.fetch_max_wait_ms if self._fetcher.waiting is None else self.config.retry_backoff_ms
            self._waiter.wait(min(left, longest / 1000))

    def _given_up(self, began: float) -> bool:
        self._failing_since = self._failing_since or began
        return time.monotonic() - self._failing_since > self.config.request_timeout_ms / 1000

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
        self._commits.settle()  # an older offset must not be written after the transaction's
        positions = self._positions()
        self._settle(positions)
        return positions

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {tp: OffsetAndMetadata(at) for tp, a in self._fetcher.assigned.items() if (at := a.position) is not None}

    def _settle(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that what was handed out of these is in somebody's commit."""
        for tp in partitions:
            if tp in self._fetcher.assigned:
                self._fetcher.assigned[tp].handed = False

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        wait: bool = True,
        *,
        session: UserSession | None = None,
    ) -> None:
        """Commit these offsets (default: all positions) for the group. `wait=False` reports a failure only to the log.

        `session`: SQLAlchemy's `Session`, `scoped_session` or `Connection` on the same database. The offsets are committed
        with its next commit, and gone with its rollback: rows that are made of records are there exactly once. The group is
        fenced just before that commit, which then raises (I11). `rewind` after a rollback. Raise `IllegalState` while
        `enable_auto_commit` is on.
        """
        with self._use():
            group = self._group_metadata() if session is None else self.group_metadata()
            if session is not None and self.config.enable_auto_commit:
                raise IllegalState("enable_auto_commit is on: set it to false to commit offsets with a session")
            if offsets is None:
                positions = self._positions()
            else:
                positions = {
                    TopicPartition(*tp): at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
                    for tp, at in offsets.items()
                }
            assigned = self._fetcher.assigned
            by_id = {
                assigned[tp].partition_id if tp in assigned else self._partition_id(tp): at for tp, at in positions.items()
            }
            if session is not None:
                self._commits.settle()
                connection, enlistment = enlist(session, self._engine)
                enlistment.add(connection, offset_rows(group, by_id))
                self._settle(positions)
                return
            self._committed_since_poll = True
            self._taken_away.clear()
            self._settle(positions)
            if wait:
                self._commits.commit(group, by_id)
            else:
                self._commits.hand_over(group, by_id)

    def _commit_automatically(self) -> None:
        if not self.config.enable_auto_commit or time.monotonic() < self._next_auto_commit:
            return
        self._next_auto_commit = time.monotonic() + self.config.auto_commit_interval_ms / 1000
        self._commit_positions()

    def _commit_positions(self) -> None:
        self._taken_away.clear()
        assigned = self._fetcher.assigned
        self._settle(assigned)
        by_id = {assigned[tp].partition_id: at for tp, at in self._positions().items()}
        if by_id:
            self._commits.hand_over(self._group_metadata(), by_id)

    def commit_starts(self) -> None:
        """Commit where a reset to `latest` leads, before anything is read from there: whoever is next goes on there."""
        self._group()
        self._fetcher.commit_starts = self._commit_starts

    def _commit_starts(self, connection: RawConnection, starts: Mapping[int, int]) -> bool:
        try:
            commit_offsets(
                connection, {self._group_metadata(): {each: OffsetAndMetadata(offset) for each, offset in starts.items()}}
            )
        except (errors.IllegalGeneration, errors.NotAssigned, errors.UnknownMember, errors.FencedInstance) as error:
            log.info("group %r: partitions changed hands before they were read: %s", self.config.group, error)
            if self._membership is None:
                raise
            self._membership.due = True
            return False
        return True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Commit positions (if that is automatic) and what `commit(wait=False)` was given, and end. May be called twice.

        It waits for that no longer than `request_timeout_ms`: what is not committed then goes to the log.
        """
        if self._closed:
            return
        if self._pid == os.getpid():
            try:
                if self.config.enable_auto_commit:
                    self._commit_positions()
                self._commits.settle()
            except errors.DatabaseUnavailable as error:
                log.warning("group %r: %s", self.config.group, error)
            finally:
                self._commits.give_up()
                if self._membership is not None:
                    self._membership.close()
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
