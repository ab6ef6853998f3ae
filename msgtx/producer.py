"""The producer: batches, sequences and transactions as users see them."""

import contextlib
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Protocol, Self, runtime_checkable

from msgtx import errors
from msgtx.accumulator import RECORD_OVERHEAD_BYTES, Accumulator, PendingBatch, RecordFuture, wait_for
from msgtx.config import ProducerConfig
from msgtx.database.engine import Engine
from msgtx.errors import DatabaseUnavailable, IllegalState, MsgtxError, OutcomeUnknown
from msgtx.rules.partitioner import PARTITIONERS
from msgtx.rules.transaction import Call, ClientState, client_move
from msgtx.sender import Sender, Wake
from msgtx.store.append import Appended, append_and_decide
from msgtx.store.decide import Decided, decide
from msgtx.store.groups import NO_OFFSETS, OffsetColumns, offset_columns
from msgtx.store.producers import init_producer_id
from msgtx.store.topics import Topic
from msgtx.types import (
    BatchMetadata,
    GroupMetadata,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
    TransactionId,
)

log = logging.getLogger("msgtx.producer")
FUSED_BYTES: Final = 1024 * 1024  # a transaction up to this size goes out as one call
METADATA_BYTES: Final = 4096  # of an offset, Kafka's bound
Serializer = Callable[[Any], bytes | None]
Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]
Topics = Callable[[str, bool], Topic | None]


@runtime_checkable
class OffsetSource(Protocol):
    """A consumer, as a transaction sees it."""

    def transaction_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the positions that may be committed with a transaction."""
        ...

    def group_metadata(self) -> GroupMetadata:
        """Return the group that the positions belong to."""
        ...


class _Route:
    """What `send` needs to know of a topic: kept so that a record costs one look-up."""

    __slots__ = ("count", "lanes", "limit", "sticky", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.count = len(topic.partition_ids)
        self.limit = topic.max_message_bytes
        self.lanes: list[Any] = [None] * self.count
        self.sticky = random.randrange(self.count)  # noqa: S311 - spreads load, guards nothing


class BatchFuture:
    """The outcome of `send_batch`."""

    __slots__ = ("_futures", "_lock")

    def __init__(self, batches: list[PendingBatch], lock: Any) -> None:
        self._futures = batches
        self._lock = lock

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return all(batch.finished for batch in self._futures)

    def result(self, timeout: float | None = None) -> BatchMetadata:
        """Wait for all records. Raise the first error, or `TimeoutError`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        offsets: dict[TopicPartition, list[tuple[int, int]]] = {}
        count = 0
        for batch in self._futures:
            if not batch.finished:
                wait_for(batch, self._lock, None if deadline is None else max(0.0, deadline - time.monotonic()))
            if batch.error is not None:
                raise batch.error
            if batch.dropped:
                raise next(iter(batch.dropped.values()))
            count += len(batch)
            last = batch.base_offset + len(batch) - 1 if batch.base_offset >= 0 else -1
            offsets.setdefault(batch.topic_partition, []).append((batch.base_offset, last))
        return BatchMetadata(count, offsets)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait; return the first error, or None."""
        try:
            self.result(timeout)
        except Exception as error:  # noqa: BLE001 - handed to the caller, whatever it is
            return error
        return None


class Transaction:
    """The open transaction of a producer, as `begin_transaction` and `with producer.transaction()` hand it out."""

    __slots__ = ("_producer", "id")

    def __init__(self, producer: "Producer", transaction_id: TransactionId) -> None:
        self._producer = producer
        self.id = transaction_id

    def send_offsets(self, offsets: "OffsetSource | Offsets", group_metadata: GroupMetadata | str | None = None) -> None:
        """Commit consumer offsets with this transaction; see `Producer.send_offsets_to_transaction`."""
        self._producer.send_offsets_to_transaction(offsets, group_metadata)


class Producer:
    """Sends records: idempotent by default, transactional with a `transactional_id`.

    May be shared by threads (a transaction belongs to one at a time); does not survive `fork`. Made by `client.producer()`.
    """

    def __init__(
        self,
        engine: Engine,
        config: ProducerConfig,
        *,
        topics: Topics,
        wake: Wake,
        decided: Callable[[], None],
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> None:
        self._engine = engine
        self.config = config
        self._topics = topics
        self._wake = wake
        self._decided = decided
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partition_of = PARTITIONERS[config.partitioner]
        self._accumulator = Accumulator(linger_ms=config.linger_ms, buffer_bytes=config.buffer_bytes)
        self._lock = self._accumulator.lock
        self._routes: dict[str, _Route] = {}
        self._sender = Sender(
            engine,
            self._accumulator,
            config,
            wake=wake,
            refresh_topic=self._refresh,
            on_failed=self._batch_failed,
        )
        self._transactional = config.transactional_id is not None
        self._may_send = False
        self._enter(ClientState.UNINITIALIZED if self._transactional else ClientState.READY)
        self._error: MsgtxError | None = None
        self._number: int | None = None  # of the open transaction
        self._next_number = 0
        self._last_id: TransactionId | None = None
        self._timeout_ms: int | None = None
        self._offsets: dict[GroupMetadata, dict[int, OffsetAndMetadata]] = {}
        self._fused: list[PendingBatch] | None = None  # batches of a fused call whose answer is not known
        self._handed_decision = False
        self._ending = threading.Lock()
        self._started = False
        self._pid = os.getpid()
        _living.add(self)

    # ── sending ──

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
        on_delivery: Callable[[RecordFuture], object] | None = None,
    ) -> RecordFuture:
        """Send a record. Returns a future at once; blocks while `buffer_bytes` are waiting, at most `max_block_ms`.

        `value=None` is a tombstone. A key chooses the partition; without one records stick to a partition drawn for each
        batch. Raise `IllegalState`, `TypeError`, `UnknownTopicOrPartition`, the stored error of a failed transaction or
        producer; everything else is in the future. Source: semantics 3.
        """
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if (value.__class__ is not bytes and value is not None) or (key.__class__ is not bytes and key is not None):
            value, key = _as_bytes(value, "value"), _as_bytes(key, "key")
        route = self._routes.get(topic) or self._route(topic)
        size = RECORD_OVERHEAD_BYTES + (len(value) if value is not None else 0)
        sticky = False
        if key:
            size += len(key)
            if partition is None:
                partition = self._partition_of(key, route.count)
        elif partition is None:
            partition = route.sticky
            sticky = True
        pairs = None if headers is None else _as_headers(headers)
        if pairs:
            size += sum(len(name.encode()) + len(content or b"") for name, content in pairs)
        with self._lock:
            if not self._may_send:
                self._refuse(Call.SEND)
            if size > route.limit + RECORD_OVERHEAD_BYTES:
                return self._too_large(route, partition, size - RECORD_OVERHEAD_BYTES, on_delivery)
            lane = route.lanes[partition] if -1 < partition < route.count else None
            if lane is None or (batch := lane.open) is None or self._full(batch, size):
                batch = self._roll(route, partition, size, sticky=sticky)
            batch.values.append(value)
            batch.keys.append(key)
            batch.size += size
            self._accumulator.buffered += size
            if timestamp is not None or batch.timestamps is not None:
                batch.remember_timestamp(batch.created_ms if timestamp is None else _as_milliseconds(timestamp))
            index = len(batch.values) - 1
            if pairs:
                if batch.headers is None:
                    batch.headers = {}
                batch.headers[index] = pairs
            future = RecordFuture(batch if self.config.acks != "0" else _unanswered(batch), index, self._lock)
        if on_delivery is not None:
            future.add_done_callback(on_delivery)
        return future

    def send_batch(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int | None = None,
        timestamps: Sequence[int] | None = None,
    ) -> BatchFuture:
        """Send columns: no cost per record beyond its place in a batch. Returns one future for all of them.

        Without keys the records are spread by batch. Serializers do not apply. Raise as `send` does; `ConfigError`-free:
        columns of unequal length are an `InvalidRequest`.
        """
        for name, column in (("keys", keys), ("timestamps", timestamps)):
            if column is not None and len(column) != len(values):
                raise errors.InvalidRequest(f"{len(values)} values, and {len(column)} {name}")
        for name, column in (("value", values), ("key", keys or ())):
            if not {type(item) for item in column} <= {bytes, type(None)}:
                for item in column:
                    _require_bytes(item, name)
        route = self._routes.get(topic) or self._route(topic)
        batches: list[PendingBatch] = []
        for part, rows in self._spread(route, keys, partition, len(values)):
            if rows is None:
                self._fill(route, part, batches, values, keys, timestamps)
            else:
                self._fill(
                    route,
                    part,
                    batches,
                    [values[i] for i in rows],
                    None if keys is None else [keys[i] for i in rows],
                    None if timestamps is None else [timestamps[i] for i in rows],
                )
        return BatchFuture(batches, self._lock)

    def _spread(
        self, route: _Route, keys: Sequence[bytes | None] | None, partition: int | None, count: int
    ) -> Iterable[tuple[int | None, Sequence[int] | None]]:
        if partition is not None or keys is None:
            return [(partition, None)] if count else []
        rows: dict[int | None, list[int]] = {}
        for i, key in enumerate(keys):
            rows.setdefault(self._partition_of(key, route.count) if key else None, []).append(i)
        return rows.items()

    def _fill(
        self,
        route: _Route,
        partition: int | None,
        batches: list[PendingBatch],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        timestamps: Sequence[int] | None,
    ) -> None:
        sizes = [0 if value is None else len(value) for value in values]
        if keys is not None:
            sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
        start = 0
        while start < len(values):
            end, total = start, 0
            most = min(len(values), start + self.config.batch_records)
            while end < most and (end == start or total + sizes[end] + RECORD_OVERHEAD_BYTES <= self.config.batch_bytes):
                total += sizes[end] + RECORD_OVERHEAD_BYTES
                end += 1
            with self._lock:
                if not self._may_send:
                    self._refuse(Call.SEND)
                if max(sizes[start:end]) > route.limit:
                    self._too_large(route, partition or 0, max(sizes[start:end]), None).result()
                index = route.sticky if partition is None else partition
                batch = self._roll(route, index, total, sticky=partition is None, fresh=True)
                batch.values.extend(values[start:end])
                batch.keys.extend([None] * (end - start) if keys is None else keys[start:end])
                if timestamps is not None:
                    batch.timestamps = list(timestamps[start:end])
                batch.size += total
                self._accumulator.buffered += total
                self._accumulator.close_batch(self._accumulator.lanes[batch.topic_partition])
                self._accumulator.work.notify()
            batches.append(batch)
            start = end

    def _full(self, batch: PendingBatch, size: int) -> bool:
        return (
            batch.size + size > self.config.batch_bytes
            or len(batch.values) >= self.config.batch_records
            or self._accumulator.buffered + size > self.config.buffer_bytes
        )

    def _roll(self, route: _Route, partition: int, size: int, *, sticky: bool, fresh: bool = False) -> PendingBatch:
        """Return an open batch with room, behind the back-pressure of `buffer_bytes`. The caller holds the lock."""
        if not 0 <= partition < route.count:
            raise errors.UnknownTopicOrPartition(
                f"{route.topic.name} has partitions 0 to {route.count - 1}, and not {partition}"
            )
        lane = route.lanes[partition]
        if lane is None:
            lane = route.lanes[partition] = self._accumulator.lane(route.topic, partition)
        if lane.open is not None and (fresh or self._full(lane.open, size)):
            self._accumulator.close_batch(lane)
            self._accumulator.work.notify()
        self._wait_for_room(size)
        if sticky:
            route.sticky = random.randrange(route.count)  # noqa: S311 - spreads load, guards nothing
        batch: PendingBatch | None = lane.open
        if batch is None:
            batch = self._accumulator.open_batch(lane, self._number)
        return batch

    def _wait_for_room(self, size: int) -> None:
        accumulator = self._accumulator
        if size > self.config.buffer_bytes:
            raise errors.RecordTooLarge(f"{size} bytes do not fit into buffer_bytes={self.config.buffer_bytes}")
        if accumulator.buffered + size <= self.config.buffer_bytes:
            return
        accumulator.close_all()
        accumulator.work.notify_all()
        room = accumulator.settled.wait_for(
            lambda: accumulator.buffered + size <= self.config.buffer_bytes or not self._may_send,
            self.config.max_block_ms / 1000,
        )
        if not self._may_send:
            self._refuse(Call.SEND)
        if not room:
            raise errors.DeliveryTimeout(
                f"buffer_bytes={self.config.buffer_bytes} stayed full for max_block_ms={self.config.max_block_ms}"
            )

    def _too_large(
        self, route: _Route, partition: int, size: int, on_delivery: Callable[[RecordFuture], object] | None
    ) -> RecordFuture:
        error = errors.RecordTooLarge(
            f"{route.topic.name} takes records of at most {route.limit} bytes (max_message_bytes); this one has {size}"
        )
        batch = PendingBatch(TopicPartition(route.topic.name, partition), self._number)
        batch.error, batch.finished = error, True
        self._batch_failed(self._number, error)
        future = RecordFuture(batch, 0, self._lock)
        if on_delivery is not None:
            on_delivery(future)
        return future

    def _route(self, topic: str) -> _Route:
        self._start()
        deadline = time.monotonic() + self.config.max_block_ms / 1000
        found = self._retried(lambda: self._topics(topic, False), deadline, DatabaseUnavailable)
        if found is None:
            raise errors.UnknownTopicOrPartition(f"there is no topic {topic!r}; create it first")
        return self._routes.setdefault(topic, _Route(found))

    def _refresh(self, topic: str) -> Topic | None:
        found = self._topics(topic, True)
        if found is not None and topic in self._routes:
            self._routes[topic].limit = found.max_message_bytes
        return found

    def _start(self) -> None:
        with self._lock:
            if self._started:
                return
            if self._state is ClientState.CLOSED:
                self._refuse(Call.SEND)
            if self.config.enable_idempotence and self._sender.producer is None and not self._transactional:
                deadline = time.monotonic() + self.config.max_block_ms / 1000
                self._sender.producer = self._retried(
                    lambda: self._initialize(None), deadline, errors.DatabaseUnavailable
                )
            self._started = True
            self._sender.start()

    def flush(self, timeout: float | None = None) -> None:
        """Send everything now and wait for the answers. Failed sends do not raise here; raise `TimeoutError`."""
        accumulator = self._accumulator
        with accumulator.settled:
            accumulator.close_all()
            accumulator.work.notify_all()
            if not accumulator.settled.wait_for(lambda: accumulator.unfinished == 0, timeout):
                raise TimeoutError(f"{accumulator.unfinished} batches are not acknowledged after {timeout} s")

    def _batch_failed(self, transaction_number: int | None, error: MsgtxError) -> None:
        """Hear from the sender that a batch failed, or (number None, fatal) that the producer did."""
        with self._lock:
            if error.fatal:
                self._fail(error)
            elif transaction_number is not None and transaction_number == self._number:
                self._fail(error)
                self._accumulator.drop_unsent(error)

    def _fail(self, error: MsgtxError) -> None:
        if self._state in {ClientState.CLOSED, ClientState.FATAL_ERROR}:
            return
        if error.fatal:
            self._error = error
            self._enter(ClientState.FATAL_ERROR)
        elif self._state in {ClientState.IN_TRANSACTION, ClientState.COMMITTING}:
            self._error = error
            self._enter(client_move(self._state, Call.FAILED))

    # ── transactions ──

    def init_transactions(self, timeout: float | None = None) -> None:
        """Take over the transactional id: older producers are fenced, what they left open is aborted (I7)."""
        self._require_transactional(Call.INIT)
        with self._sole_ending(Call.INIT):
            target = client_move(self._state, Call.INIT)
            self._sender.producer = self._retried(
                lambda: self._initialize(self.config.transactional_id), self._deadline(timeout), DatabaseUnavailable
            )
            self._next_number = 0
            self._enter(target)

    def _initialize(self, transactional_id: str | None) -> Any:
        with self._engine.connection() as connection:
            return init_producer_id(connection, transactional_id, timeout_ms=self.config.transaction_timeout_ms)

    def begin_transaction(self, timeout_ms: int | None = None) -> Transaction:
        """Begin a transaction, locally: it opens in the database with its first batch. Returns it."""
        self._require_transactional(Call.BEGIN)
        if timeout_ms is not None and timeout_ms <= 0:
            raise errors.InvalidTransactionTimeout(f"timeout_ms must be above 0, not {timeout_ms}")
        with self._lock:
            if self._state is ClientState.FATAL_ERROR and self._error is not None:
                raise self._error
            self._enter(client_move(self._state, Call.BEGIN))
            assert self._sender.producer is not None
            self._number = self._next_number
            self._last_id = TransactionId(*self._sender.producer, self._number)
            self._sender.transaction_timeout_ms = timeout_ms
            self._sender.handed.clear()
            self._offsets.clear()
            self._fused = None
            self._handed_decision = False
            return Transaction(self, self._last_id)

    def send_offsets_to_transaction(
        self,
        offsets: "OffsetSource | Offsets",
        group_metadata: GroupMetadata | str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit consumer offsets with this transaction (I10). The offset is the next one to read; later replaces earlier.

        `offsets`: a consumer (its positions), or a map with a group. Source: semantics 7.
        """
        del timeout  # nothing is awaited: the offsets travel with the decision, which checks them
        self._require_transactional(Call.SEND_OFFSETS)
        if isinstance(offsets, OffsetSource):
            positions: Offsets = offsets.transaction_offsets()
            group = offsets.group_metadata()
        else:
            positions = offsets
            if group_metadata is None:
                raise errors.InvalidRequest("offsets need the group they belong to: a name, or consumer.group_metadata()")
            group = GroupMetadata(group_metadata) if isinstance(group_metadata, str) else group_metadata
        with self._lock:
            if not self._may_send:
                self._refuse(Call.SEND_OFFSETS)
            try:
                kept = {self._partition_id(tp): _as_offset(tp, at) for tp, at in positions.items()}
            except MsgtxError as error:
                if not isinstance(error, IllegalState):
                    self._fail(error)
                raise
            if kept:
                self._offsets.setdefault(group, {}).update(kept)

    def _partition_id(self, topic_partition: TopicPartition) -> int:
        topic = self._topics(topic_partition[0], False)
        if topic is None or not 0 <= topic_partition[1] < len(topic.partition_ids):
            raise errors.UnknownTopicOrPartition(f"there is no partition {topic_partition[0]}-{topic_partition[1]}")
        return topic.partition_ids[topic_partition[1]]

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Commit: when this returns, all of it is durable and readable; when it raises an abortable error, none of it is.

        Raise the error of a send that failed, `TransactionAborted`, `ProducerFenced`; `OutcomeUnknown` when time is over
        (call it again, or ask `client.transaction_outcome`). Idempotent. Source: semantics 4.
        """
        self._require_transactional(Call.COMMIT)
        with self._sole_ending(Call.COMMIT):
            with self._lock:
                if self._error is not None and self._state in _FAILED:
                    raise self._error
                self._enter(client_move(self._state, Call.COMMIT))
            self._commit(self._deadline(timeout))
            self._ended()

    def _commit(self, deadline: float) -> None:
        assert self._last_id is not None
        with self._lock:
            if self._fused is None and not self._handed_decision:
                self._fused = self._take_whole()
        offsets = offset_columns(self._offsets) if self._offsets else NO_OFFSETS
        if self._fused:
            self._commit_at_once(self._fused, offsets, deadline)
            return
        self._flush_transaction(deadline)
        if not self._sender.handed and not self._offsets:
            return
        self._handed_decision = True
        answer = self._decide("COMMIT", offsets, deadline)
        if answer.error is not None:
            with self._lock:
                self._fail(answer.error)
            raise answer.error

    def _take_whole(self) -> list[PendingBatch] | None:
        """Take the transaction out of the lanes if nothing of it was sent and it fits into one call."""
        accumulator = self._accumulator
        if self._sender.handed:
            return None
        lanes = [lane for lane in accumulator.lanes.values() if lane.open or lane.ready]
        total = sum(batch.size for lane in lanes for batch in (*lane.ready, *([lane.open] if lane.open else [])))
        if not lanes or total > FUSED_BYTES or any(len(lane.ready) + (lane.open is not None) > 1 for lane in lanes):
            return None
        accumulator.close_all()
        batches = accumulator.take_ready()
        batches.sort(key=lambda batch: accumulator.lanes[batch.topic_partition].partition_id)
        for batch in batches:
            batch.base_sequence = self._sender.next_sequences.get(batch.topic_partition, 0)
            partition_id = accumulator.lanes[batch.topic_partition].partition_id
            self._sender.handed[batch.topic_partition] = (partition_id, batch.base_sequence + len(batch) - 1)
        return batches

    def _commit_at_once(self, batches: list[PendingBatch], offsets: OffsetColumns, deadline: float) -> None:
        assert self._last_id is not None
        transaction_id = self._last_id
        lanes = self._accumulator.lanes
        columns = [batch.columns(lanes[batch.topic_partition].partition_id, transaction_id[:2]) for batch in batches]

        def attempt() -> list[Appended]:
            woke = self._wake.now([column.partition_id for column in columns])
            with self._engine.connection() as connection:
                answers = append_and_decide(connection, transaction_id, columns, offsets=offsets, wake=woke)
            refused = next((answer.error for answer in answers if answer.error is not None), None)
            if refused is not None and refused.retriable:
                raise refused
            if not woke:
                self._wake.later([column.partition_id for column in columns])
            return answers

        answers = self._retried(attempt, deadline, OutcomeUnknown)
        refused = next((answer.error for answer in answers if answer.error is not None), None)
        if refused is not None:
            for batch in batches:
                self._accumulator.finish(batch, error=refused)
            with self._lock:
                self._fail(refused)
            self._fused = None
            raise refused
        for batch, answer in zip(batches, answers, strict=True):
            batch.base_offset, batch.duplicate = answer.base_offset, answer.duplicate
            if lanes[batch.topic_partition].log_append_time:
                batch.timestamp = answer.timestamp
            assert batch.base_sequence is not None
            self._sender.next_sequences[batch.topic_partition] = batch.base_sequence + len(batch)
            self._accumulator.finish(batch)

    def _flush_transaction(self, deadline: float) -> None:
        accumulator = self._accumulator
        with accumulator.settled:
            accumulator.close_all()
            accumulator.work.notify_all()
            done = accumulator.settled.wait_for(
                lambda: accumulator.unfinished == 0 or self._state in _FAILED, max(0.0, deadline - time.monotonic())
            )
            if self._state in _FAILED and self._error is not None:
                raise self._error
            if not done:
                raise OutcomeUnknown(f"transaction {self._last_id} is not decided yet: its records wait for the database")

    def _decide(self, outcome: Any, offsets: OffsetColumns, deadline: float) -> Decided:
        assert self._last_id is not None
        transaction_id = self._last_id
        tails = dict(self._sender.handed.values())

        def attempt() -> Decided:
            woke = self._wake.now(list(tails))
            with self._engine.connection() as connection:
                answer = decide(connection, transaction_id, outcome, tails=tails, offsets=offsets, wake=woke)
            if answer.error is not None and answer.error.retriable:
                raise answer.error
            if not woke:
                self._wake.later(list(tails))
            return answer

        return self._retried(attempt, deadline, OutcomeUnknown)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort: what was not sent is dropped, what was sent is never seen. Then the next transaction may begin."""
        self._require_transactional(Call.ABORT)
        with self._sole_ending(Call.ABORT):
            with self._lock:
                if self._state is ClientState.FATAL_ERROR and self._error is not None:
                    raise self._error
                self._enter(client_move(self._state, Call.ABORT))
                self._accumulator.drop_unsent(self._dropped_error())
            deadline = self._deadline(timeout)
            try:
                with self._sender.paused(deadline):
                    self._accumulator.drop_unsent(self._dropped_error())
                    self._abort(deadline)
            except TimeoutError as error:
                raise OutcomeUnknown(f"transaction {self._last_id} is not aborted yet: {error}") from error
            self._ended()

    def _dropped_error(self) -> errors.TransactionAborted:
        return errors.TransactionAborted(f"transaction {self._last_id} was aborted by its producer before this was sent")

    def _abort(self, deadline: float) -> None:
        handed = dict(self._sender.handed)
        if not handed and not self._handed_decision:
            return
        self._handed_decision = True
        answer = self._decide("ABORT", NO_OFFSETS, deadline)
        if answer.error is not None:
            with self._lock:
                self._fail(answer.error)
            raise answer.error
        with self._lock:
            for topic_partition, (partition_id, _) in handed.items():
                last = answer.last_sequences.get(partition_id)
                self._sender.next_sequences[topic_partition] = 0 if last is None else last + 1
                self._accumulator.lanes[topic_partition].broken = False

    def _ended(self) -> None:
        with self._lock:
            # A number is used up only when something of its transaction was handed to the connection.
            if self._sender.handed or self._handed_decision:
                self._next_number += 1
                self._decided()
            self._number = None
            self._error = None
            self._fused = None
            self._offsets.clear()
            self._enter(client_move(self._state, Call.ENDED))

    @contextlib.contextmanager
    def transaction(self, timeout_ms: int | None = None) -> Iterator[Transaction]:
        """Run a transaction: commit at the end of the block, abort if it raises; the original exception goes on."""
        transaction = self.begin_transaction(timeout_ms)
        number = self._number
        try:
            yield transaction
        except BaseException as error:
            if self._number == number and self._state is not ClientState.FATAL_ERROR:
                try:
                    self.abort_transaction()
                except MsgtxError as failed:
                    error.add_note(f"the abort of transaction {transaction.id} failed, too: {failed}")
            raise
        if self._number != number or self._state is ClientState.READY:
            return
        try:
            self.commit_transaction()
        except MsgtxError as error:
            if self._state is ClientState.ABORTABLE_ERROR:
                try:
                    self.abort_transaction()
                except MsgtxError as failed:
                    error.add_note(f"the abort of transaction {transaction.id} failed, too: {failed}")
            raise

    @property
    def transaction_id(self) -> TransactionId | None:
        """The name of the current transaction, or of the last one."""
        return self._last_id

    # ── plumbing ──

    def _enter(self, state: ClientState) -> None:
        self._state = state
        self._may_send = state is (ClientState.IN_TRANSACTION if self._transactional else ClientState.READY)

    def _refuse(self, call: Call) -> None:
        if self._error is not None and self._state in _FAILED:
            raise self._error
        client_move(self._state, call)
        raise IllegalState(f"{call} while {self._state}: the producer is closed")

    def _require_transactional(self, call: Call) -> None:
        if not self._transactional:
            raise IllegalState(f"{call} needs a producer with a transactional_id")

    @contextlib.contextmanager
    def _sole_ending(self, call: Call) -> Iterator[None]:
        if not self._ending.acquire(blocking=False):
            raise IllegalState(f"{call} while another thread ends the transaction: wait for it")
        try:
            yield
        finally:
            self._ending.release()

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self.config.max_block_ms / 1000 if timeout is None else timeout)

    def _retried(self, attempt: Callable[[], Any], deadline: float, when_late: type[MsgtxError]) -> Any:
        """Repeat a call that may be repeated until it is answered or time is over (semantics 4: lost answer)."""
        backoff = self.config.retry_backoff_ms / 1000
        while True:
            try:
                return attempt()
            except MsgtxError as error:
                if error.fatal:
                    with self._lock:
                        self._fail(error)
                if not error.retriable:
                    raise
                if time.monotonic() + backoff > deadline:
                    if isinstance(error, DatabaseUnavailable) or when_late is OutcomeUnknown:
                        raise when_late(f"no answer in time ({error}); the same call may be repeated") from error
                    raise
            time.sleep(backoff)
            backoff = min(backoff * 2, 1.0)

    def close(self, timeout: float | None = None) -> None:
        """Flush, abort an open transaction, and end. Never raises on a fenced producer; may be called twice."""
        if self._state is ClientState.CLOSED:
            return
        if os.getpid() == self._pid:
            if self._transactional and self._state in {ClientState.IN_TRANSACTION, ClientState.ABORTABLE_ERROR}:
                try:
                    self.abort_transaction(timeout)
                except (MsgtxError, TimeoutError) as error:
                    log.warning("closing: transaction %s could not be aborted: %s", self._last_id, error)
            elif not self._transactional and self._started:
                seconds = self.config.delivery_timeout_ms / 1000 if timeout is None else timeout
                try:
                    self.flush(seconds)
                except TimeoutError as error:
                    log.warning("closing: %s", error)
        with self._lock:
            self._enter(ClientState.CLOSED)
            self._accumulator.drop_unsent(IllegalState("the producer was closed before this was sent"))
        if self._started:
            self._sender.close()

    def __enter__(self) -> Self:
        """Initialize transactions, if there is a transactional id."""
        if self._transactional:
            self.init_transactions()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


_FAILED: Final = frozenset({ClientState.ABORTABLE_ERROR, ClientState.FATAL_ERROR})
_living: "weakref.WeakSet[Producer]" = weakref.WeakSet()


def _disown_after_fork() -> None:
    for producer in _living:
        producer._state = ClientState.CLOSED
        producer._may_send = False


os.register_at_fork(after_in_child=_disown_after_fork)


def _unanswered(batch: PendingBatch) -> PendingBatch:
    # acks=0: nothing is awaited, the future is done at once with offset −1.
    stand_in = PendingBatch(batch.topic_partition, None)
    stand_in.finished = True
    return stand_in


def _require_bytes(item: object, name: str) -> None:
    if item is not None and not isinstance(item, bytes):
        hint = "; encode it, or give the producer a serializer" if isinstance(item, str) else ""
        raise TypeError(f"a {name} is bytes or None, not {type(item).__name__}{hint}")


def _as_bytes(item: Any, name: str) -> bytes | None:
    if isinstance(item, bytearray | memoryview):
        return bytes(item)
    _require_bytes(item, name)
    return None if item is None else bytes(item)


def _as_headers(headers: Iterable[tuple[str, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
    pairs = tuple((name, content) for name, content in headers)
    for name, content in pairs:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header is str, not {type(name).__name__}")
        _require_bytes(content, "header's content")
    return pairs


def _as_milliseconds(timestamp: int | datetime) -> int:
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise TypeError("a timestamp needs its time zone: use an aware datetime, or milliseconds since 1970 UTC")
        return int(timestamp.timestamp() * 1000)
    if not isinstance(timestamp, int) or isinstance(timestamp, bool):
        raise TypeError(f"a timestamp is an int (milliseconds) or an aware datetime, not {type(timestamp).__name__}")
    return timestamp


def _as_offset(topic_partition: TopicPartition, at: int | OffsetAndMetadata) -> OffsetAndMetadata:
    found = at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
    if found.offset < 0:
        raise errors.InvalidRequest(f"{topic_partition}: an offset is not negative; this one is {found.offset}")
    if len(found.metadata.encode()) > METADATA_BYTES:
        raise errors.OffsetMetadataTooLarge(
            f"{topic_partition}: metadata of {len(found.metadata.encode())} bytes; at most {METADATA_BYTES} are stored"
        )
    return found


__all__ = ["BatchFuture", "Producer", "RecordFuture", "RecordMetadata", "Transaction"]
