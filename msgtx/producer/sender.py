"""The sender: takes batches from the accumulator to the database, in order, and settles them by its answers.

Kafka's sender and the idempotent half of its transaction manager (internals: append). One thread per producer. Several calls
are in flight in one pipeline, each its own SQL transaction. Sequences are given to a batch when it is first sent; a
batch whose answer was lost keeps its sequence and is repeated until it is answered.
"""

import contextlib
import heapq
import logging
import operator
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgtx import errors
from msgtx.background import BackgroundThread
from msgtx.config import ProducerConfig
from msgtx.database.calls import batch_array, end_call
from msgtx.database.connection import Connection, until
from msgtx.database.pool import Engine
from msgtx.database.translation import translated
from msgtx.database.wire import Cursor
from msgtx.errors import MsgtxError
from msgtx.generated import calls
from msgtx.producer.batches import Accumulator, Lane, PendingBatch
from msgtx.producer.calls import MAX_BACKOFF_SECONDS, ProducerCalls
from msgtx.producer.losses import LossDetector, is_lost, records_lost
from msgtx.producer.state import ProducerStatus, interrupted
from msgtx.producer.wake import Wake
from msgtx.rules.record import lacks_key, too_large
from msgtx.rules.transaction import Call
from msgtx.session.answers import Answers
from msgtx.store.append.append import APPEND_UNFLUSHED, CALL_BYTES, PARTITIONS_AT_ONCE, append_arguments, read_appended
from msgtx.store.shares.answers import acknowledge_in_transaction
from msgtx.store.topics.topics import Topic
from msgtx.store.transactions.producers import init_producer_id
from msgtx.types import TopicPartition

log = logging.getLogger("msgtx.producer")
AWAKE_SECONDS: Final = 0.2  # without work, before the thread sleeps until it is woken
MIN_WAIT_SECONDS: Final = 0.001
# Of a transactional producer, between two looks for a batch that has lingered: nothing of it is visible before the
# commit, which sends it. Sixteen that look every 5 ms cost a process a sixth of its transactions.
UNHURRIED_SECONDS: Final = 0.04


@dataclass(slots=True)
class CallInFlight:
    """The batches of one call, and the cursor that gets their answers."""

    lanes: list[Lane]
    batches: list[PendingBatch]
    cursor: Cursor


class Sender:
    """Sends the batches of the accumulator. A failure goes into the producer's state, too."""

    def __init__(
        self,
        engine: Engine,
        accumulator: Accumulator,
        config: ProducerConfig,
        state: ProducerStatus,
        calls: ProducerCalls,
        *,
        wake: Wake,
        refresh_topic: Callable[[str], Topic | None],
    ) -> None:
        self._engine = engine
        self._origin = engine.origin
        self._accumulator = accumulator
        self._config = config
        self._state = state
        self._calls = calls
        self._wake = wake
        self._refresh_topic = refresh_topic
        self._host = socket.gethostname()
        self._in_flight: deque[CallInFlight] = deque()
        self._refusals: list[tuple[PendingBatch, MsgtxError]] = []  # to be looked into; the batches wait in their lanes
        self._partitions_at_once = PARTITIONS_AT_ONCE
        self._bump_needed = False
        self._paused = False
        self._busy = False
        self.losses = LossDetector(engine, accumulator, state)
        self._closing = False
        self._starting = threading.RLock()
        self._thread = BackgroundThread("msgtx-sender", self._run, what="the sender", failed=self._give_up)
        self.looks: Callable[[], None] = lambda: None  # called after each round, without the lock
        accumulator.revive = self._thread.revive

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in the sender's thread."""
        return self._thread.is_current

    @property
    def started(self) -> bool:
        """Whether the thread was started."""
        return self._thread.started

    def start(self) -> None:
        """Start the thread, with the first record, and where it has died; an idempotent producer gets its id."""
        self._origin.require("a producer")
        if not self._thread.lives:
            with self._starting:  # not the lock that a `send` in an event loop takes: the database is asked
                self._begin()

    def _begin(self) -> None:
        if self._thread.lives:  # by another thread
            return
        producer = None
        asks = self._config.enable_idempotence and not self._state.transactional and not self._state.closed
        if self._state.producer is None and asks:
            producer = self._calls.answered(lambda: self._calls.initialize(None), self._calls.deadline())
        with self._accumulator.lock:
            if self._state.closed:
                self._state.refuse(Call.SEND)
            self._state.producer = producer or self._state.producer
            self._thread.start()
        _started.add(self)

    def unanswered(self) -> int:
        """Return how many records are not known to be stored."""
        accumulator = self._accumulator
        with accumulator.lock:
            batches = [
                batch for lane in accumulator.lanes.values() for batch in (*lane.ready, lane.open) if batch is not None
            ]
            batches += [batch for call in self._in_flight for batch in call.batches]
            left = [batch for batch in batches if not batch.finished]
            return sum(map(len, left)) + max(0, accumulator.unfinished - len(left))  # with a dedup_key each is a batch

    def finish(self, seconds: float) -> None:
        """Send the rest of a producer that nobody closes any more."""
        if not (self._state.closed or self._state.transactional or self._accumulator.flush(seconds)):
            log.warning("the interpreter ends: %d records are not acknowledged and may be lost", self.unanswered())

    def close(self, timeout: float | None = None) -> None:
        """End the thread after what it has in flight; wait for that, at most `timeout` seconds."""
        with self._accumulator.lock:
            self._closing = True
            self._accumulator.work.notify_all()
        self._thread.stop()
        self._thread.join(timeout)

    @contextlib.contextmanager
    def paused(self, deadline: float) -> Iterator[None]:
        """Keep the sender from taking anything; wait until nothing is in flight. Raise `TimeoutError`."""
        lock, work = self._accumulator.lock, self._accumulator.work
        with lock:
            self._paused = True
            idle = self._accumulator.settles(lambda: not self._busy, max(0.0, deadline - time.monotonic()))
        try:
            if not idle:
                raise TimeoutError("the database has not answered what was sent; call again")
            yield
        finally:
            with lock:
                self._paused = False
                work.notify_all()

    # ── the thread ──

    def _run(self) -> None:
        backoff = self._config.retry_backoff_ms / 1000
        failures = 0
        trouble: MsgtxError | None = None  # of the last attempt
        while self._wait_for_work():
            try:
                self._expire(trouble, attempted=False)
                with until(self._deadline, silence=self._config.request_timeout_ms / 1000):
                    with self._engine.connection() as connection:
                        self.losses.look(connection)  # after the check-out, which may be what finds a new primary
                        self._acknowledge(connection)
                        self._drain(connection)
                    self._look_into_refusals()  # with a connection of the pool, which may have no other one
                failures, trouble = 0, None
                self._partitions_at_once = min(PARTITIONS_AT_ONCE, self._partitions_at_once * 2)
            except MsgtxError as error:
                self._requeue_in_flight()
                if isinstance(error, errors.LockTableFull):
                    self._partitions_at_once = max(1, self._partitions_at_once // 2)
                if error.retriable:
                    failures, trouble = failures + 1, error
                    if self._closing:  # nothing waits for the rest: it was dropped when the producer was closed
                        self._accumulator.drop_unsent(error)
                    self._expire(error, attempted=True)
                    self._sleep(min(MAX_BACKOFF_SECONDS, backoff * 2 ** min(failures, 6)))
                else:
                    self.losses.due = False  # a producer that has failed looks no more: it would ask without a pause
                    self._fail_all(self._engine.cause_of(error) if error.fatal else error)
            finally:
                with self._accumulator.lock:
                    self._busy = False
                    self._accumulator.settled.notify_all()
                self.looks()
        if self._accumulator.torn:  # every waiting caller is answered, also for a batch that was between two places
            self._accumulator.drop_all(interrupted())

    def _give_up(self, error: MsgtxError) -> None:
        """Handle an exception that has ended the loop, a bug: every waiting caller gets it, instead of waiting forever."""
        self._requeue_in_flight()
        self._fail_all(error)
        self._accumulator.drop_all(error)
        self.looks()

    def _sleep(self, seconds: float) -> None:
        with self._accumulator.work:
            self._accumulator.work.wait_for(lambda: self._paused, seconds)

    def _wait_for_work(self) -> bool:
        accumulator = self._accumulator
        idle_since = time.monotonic()
        pause = 0.0
        with accumulator.work:
            while True:
                if accumulator.torn:
                    return False
                now = time.monotonic()
                soonest = accumulator.close_lingering(now)
                if self._closing and not self._paused and not accumulator.filled:
                    return False
                has_work = accumulator.filled or self._bump_needed or self.losses.due
                if not self._paused and (has_work or self._due_answers(now) is not None):
                    self._busy = True
                    return True
                if accumulator.opened:
                    idle_since = now
                if now - idle_since < AWAKE_SECONDS:
                    linger = max(accumulator.linger_seconds, MIN_WAIT_SECONDS)
                    accumulator.work.wait(max(soonest or linger, pause))
                    if self._state.transactional:  # its batches go with their commits, as it seems: it looks less often
                        pause = min(pause + linger, UNHURRIED_SECONDS)
                else:
                    accumulator.sender_sleeps = True
                    accumulator.work.wait()
                    accumulator.sender_sleeps = False
                    idle_since = time.monotonic()  # the batch that woke it may be gone with its commit by now

    def _drain(self, connection: Connection) -> None:
        batch_array(connection, ())  # asks for the type once, which a pipeline could not
        with translated(connection), connection.pipeline() as pipeline:
            while True:
                may_take = len(self._in_flight) < self._config.max_in_flight and not self._refusals
                call = self._take(connection) if may_take else None
                if call is not None:
                    self._hand_over(connection, call)
                    end_call(pipeline)
                elif self._in_flight:
                    # Only now is every call committed; an answer that came before is not yet an acknowledgement (P13).
                    pipeline.sync()
                    refused: set[TopicPartition] = set()
                    while self._in_flight:
                        self._settle(self._in_flight[0], refused)
                        self._in_flight.popleft()
                else:
                    break
        # By now every batch is answered. A new epoch forgets what was acknowledged: the losses are looked for first.
        if self._bump_needed and not self._refusals and not self.losses.due:
            self._raise_epoch(connection)

    def _due_answers(self, now: float) -> Answers | None:
        """Return the acknowledgements of a transaction that are to be sent. The caller holds the lock."""
        transaction = self._state.transaction
        if transaction is None or not transaction.answers or self._state.has_failed or transaction.fused is not None:
            return None
        waiting = (each for each in transaction.answers if not each.stored)
        return next((each for each in waiting if transaction.tails or each.due <= now), None)

    def _acknowledge(self, connection: Connection) -> None:
        """Have acknowledgements wait for the decision, one call after the other; a refusal fails the transaction."""
        while True:
            with self._accumulator.lock:
                answers, transaction = self._due_answers(time.monotonic()), self._state.transaction
                if answers is None or transaction is None or self._paused:
                    return
                answers.handed = True
            try:
                acknowledge_in_transaction(
                    connection,
                    transaction.id,
                    answers.columns,
                    call_number=answers.call,
                    timeout_ms=transaction.timeout_ms,
                    client_host=self._host,
                    client_process=os.getpid(),
                )
            except MsgtxError as error:
                answers.refused = not error.retriable
                if error.retriable or error.fatal:
                    raise
                self._state.batch_failed(transaction.id.transaction_number, error)
                return
            answers.stored = True  # a caller that waits for that is woken at the end of the round

    def _deadline(self) -> float:
        """Return when the oldest batch is late; without one, when the next could be."""
        with self._accumulator.lock:
            lanes = self._accumulator.lanes
            oldest = [time.monotonic(), *(lanes[key].ready[0].created_at for key in self._accumulator.filled)]
            oldest += [batch.created_at for key in self._accumulator.opened if (batch := lanes[key].open) is not None]
        oldest += [batch.created_at for call in self._in_flight for batch in call.batches if not batch.finished]
        return min(oldest) + self._config.delivery_timeout_ms / 1000

    def _hand_over(self, connection: Connection, call: CallInFlight) -> None:
        transaction = self._state.transaction
        function = calls.APPEND if self._flushes(call.batches[0]) else APPEND_UNFLUSHED
        partition_ids = [lane.partition_id for lane in call.lanes]
        columns = [
            batch.columns(partition_id, self._state.producer or (None, None))
            for partition_id, batch in zip(partition_ids, call.batches, strict=True)
        ]
        arguments = append_arguments(
            connection,
            columns,
            durable=function is calls.APPEND,
            wake=False,
            timeout_ms=None if transaction is None else transaction.timeout_ms,
            client_host=self._host,
            client_process=os.getpid(),
        )
        call.cursor.execute(function.statement, arguments, prepare=True)

    def _flushes(self, batch: PendingBatch) -> bool:
        # Flush only if it must last: in a transaction only the decision must.
        return batch.transaction_number is None and self._config.acks == "all"

    def _take(self, connection: Connection) -> CallInFlight | None:
        accumulator = self._accumulator
        with accumulator.lock:
            if self._paused:
                return None
            accumulator.close_lingering(time.monotonic())
            chosen = self._chosen()
            if not chosen:
                return None
            # In flight before they leave their lanes: an exception in between loses none.
            call = CallInFlight([], [], Cursor(connection))
            self._in_flight.append(call)
            size = 0
            for lane, batch in chosen:
                if size >= CALL_BYTES:
                    break
                call.lanes.append(lane)
                call.batches.append(batch)
                self.number(lane, batch)
                lane.ready.remove(batch)
                if not lane.ready:
                    accumulator.filled.discard(lane.topic_partition)
                size += batch.size
            return call

    def _chosen(self) -> list[tuple[Lane, PendingBatch]]:
        """Return the batches for one call, ascending by partition; of too many the oldest, so that none waits forever."""
        lanes = [self._accumulator.lanes[key] for key in self._accumulator.filled]
        found = [(lane, batch) for lane in lanes if (batch := self._next(lane)) is not None]
        if len(found) > self._partitions_at_once:
            found = heapq.nsmallest(self._partitions_at_once, found, key=lambda one: one[1].created_at)
        return sorted(found, key=lambda one: one[0].partition_id)

    def _next(self, lane: Lane) -> PendingBatch | None:
        # Before the epoch is raised, uncertain batches are repeated under the old one, and nothing else is sent.
        if self._bump_needed:
            return next((batch for batch in lane.ready if batch.uncertain), None)
        return lane.ready[0]

    def number(self, lane: Lane, batch: PendingBatch) -> None:
        """Give a batch its sequence before it is sent. The caller holds the lock."""
        batch.attempts += 1
        if self._state.producer is not None and not batch.uncertain:
            batch.base_sequence = lane.next_sequence
            lane.next_sequence += len(batch)
        batch.uncertain = True
        if batch.transaction_number is not None:
            assert batch.base_sequence is not None
            assert self._state.transaction is not None
            self._state.transaction.tails[lane.topic_partition] = (lane.partition_id, batch.base_sequence + len(batch) - 1)

    # ── answers ──

    def _settle(self, call: CallInFlight, refused: set[TopicPartition]) -> None:
        """Take a call's answers. `refused`: where a batch before it, of those in flight with it, was refused."""
        with translated(call.cursor.connection):
            rows = call.cursor.fetchall()
        answers = read_appended(rows)
        if call.batches[0].transaction_number is None:
            self._wake.tell([lane.partition_id for lane in call.lanes])
        stored: list[PendingBatch] = []
        connection, now = call.cursor.connection, time.monotonic()
        server = connection.server if isinstance(connection, Connection) else None
        try:
            for lane, batch, answer in zip(call.lanes, call.batches, answers, strict=True):
                batch.uncertain = False
                if answer.error is None:
                    self._accumulator.stored(lane, batch, answer)
                    stored.append(batch)
                    if batch.base_sequence is not None:
                        lane.acknowledged, lane.acknowledged_at = batch.base_sequence + len(batch), now
                        lane.server = server
                elif lane.topic_partition in refused and not answer.error.fatal:
                    self._requeue(lane, batch)  # it followed a refused batch; it gets a new number
                else:
                    refused.add(lane.topic_partition)
                    if is_lost(lane, batch, answer.error, server):
                        self._refused(lane, batch, records_lost(lane, f"the server said: {answer.error}"))
                    else:
                        self._refused(lane, batch, answer.error)
        finally:
            self._accumulator.finish(stored)

    def _refused(self, lane: Lane, batch: PendingBatch, error: MsgtxError) -> None:
        goes_on = isinstance(error, errors.OutOfOrderSequence) or self._has_expired(error)
        if goes_on and batch.transaction_number is None:
            # The epoch is raised once every uncertain batch is answered; then the refused are renumbered.
            self._bump_needed = True
            self._requeue(lane, batch)
        elif isinstance(error, (*errors.OF_RECORDS, errors.UnknownTopicOrPartition)):
            self._renumber_from(lane, batch)
            self._requeue(lane, batch)
            self._refusals.append((batch, error))
        elif error.fatal:
            error = self._engine.cause_of(error)
            self._fail_all(error)
            self._accumulator.finish([batch], error=error)
        else:
            self._renumber_from(lane, batch)
            self._fail(batch, error)

    def _has_expired(self, error: MsgtxError) -> bool:
        """Return whether a producer without transactional id was idle for so long that its id was removed.

        No unanswered batch is stored under that id then: otherwise the id would have been in use (I13).
        """
        known = not isinstance(error, errors.InvalidProducerIdMapping) or self._state.transactional
        return not known and self._engine.cause_of(error) is error

    def _look_into_refusals(self) -> None:
        """Send a refused batch again without the records that its topic refuses, or to its new partition; else it fails."""
        while self._refusals:
            batch, error = self._refusals[0]
            goes_on = self._drop_refused(batch, error) if isinstance(error, errors.OF_RECORDS) else self._finds_anew(batch)
            if not goes_on and self._accumulator.take_ready(partial(operator.is_, batch)):
                self._fail(batch, error)
            self._refusals.pop(0)

    def _renumber_from(self, lane: Lane, batch: PendingBatch) -> None:
        # A refused batch uses up no sequence: the next one carries its numbers.
        if batch.base_sequence is not None:
            lane.next_sequence = batch.base_sequence

    def _requeue(self, lane: Lane, batch: PendingBatch) -> None:
        with self._accumulator.lock:
            at = next(
                (i for i, other in enumerate(lane.ready) if _before(batch, other)),
                len(lane.ready),
            )
            lane.ready.insert(at, batch)
            self._accumulator.filled.add(lane.topic_partition)

    def _drop_refused(self, batch: PendingBatch, error: MsgtxError) -> bool:
        topic = self._refresh_topic(batch.topic_partition.topic)
        if topic is None:
            return False
        needs_keys = topic.is_compacted
        dropped: dict[int, BaseException] = {}
        for i, key in enumerate(batch.keys):
            if key is None and needs_keys:
                dropped[i] = lacks_key(topic.name)
            elif (size := batch.record_bytes(i)) > topic.max_message_bytes:
                dropped[i] = too_large(topic.name, topic.max_message_bytes, size)
        if dropped.keys() <= (batch.dropped or {}).keys():
            return False
        batch.dropped = dropped
        self._state.batch_failed(batch.transaction_number, error)
        return len(batch) > 0

    def _finds_anew(self, batch: PendingBatch) -> bool:
        """Return whether the topic was deleted and made again, so that the batch has a partition to go to."""
        topic = self._refresh_topic(batch.topic_partition.topic)
        if topic is None or batch.transaction_number is not None or self._late(batch):
            return False
        return batch.topic_partition.partition < len(topic.partition_ids)

    def _late(self, batch: PendingBatch) -> bool:
        return self._overdue(batch) or batch.attempts > (0 if self._config.acks == "0" else self._config.retries)

    def _overdue(self, batch: PendingBatch) -> bool:
        return time.monotonic() - batch.created_at > self._config.delivery_timeout_ms / 1000

    # ── trouble ──

    def _requeue_in_flight(self) -> None:
        """Put unanswered batches back, in order; it keeps its sequences and is repeated."""
        while self._in_flight:
            call = self._in_flight.pop()
            for lane, batch in zip(call.lanes, call.batches, strict=False):  # an exception may have come between the two
                if batch.uncertain and batch not in lane.ready:
                    with self._accumulator.lock:
                        lane.ready.appendleft(batch)
                        self._accumulator.filled.add(lane.topic_partition)

    def _expire(self, cause: MsgtxError | None, *, attempted: bool) -> None:
        """Fail late batches: after a failed attempt, or if their turn did not come in time. `cause`: the last failure."""
        if not attempted and time.monotonic() <= self._deadline():
            return
        late = self._accumulator.take_ready(self._late if attempted else self._overdue)
        for batch in late:
            if batch.uncertain and self._state.producer is not None and batch.transaction_number is None:
                # It may be stored or still be on its way: a new epoch keeps it apart from later batches.
                self._bump_needed = True
            seconds = self._config.delivery_timeout_ms / 1000
            why = "" if cause is None else f" ({cause})"
            error = errors.DeliveryTimeout(
                f"{batch.topic_partition}: not acknowledged within {seconds:g} s{why}", at=batch.topic_partition
            )
            self._fail(batch, error)

    def _fail(self, batch: PendingBatch, error: MsgtxError) -> None:
        # Its transaction first: else a commit that waits for the batch would continue without it.
        self._state.batch_failed(batch.transaction_number, error)
        self._accumulator.finish([batch], error=error)

    def _fail_all(self, error: MsgtxError) -> None:
        self._bump_needed = False
        self._refusals.clear()
        self._state.fail(error)  # its transaction, too: the dropped records would be missing from it
        self._accumulator.drop_unsent(error)

    def _raise_epoch(self, connection: Connection) -> None:
        assert self._state.producer is not None
        timeout_ms = self._config.transaction_timeout_ms
        try:
            producer = init_producer_id(connection, None, timeout_ms=timeout_ms, expected=self._state.producer)
        except errors.InvalidProducerIdMapping as error:
            if not self._has_expired(error):
                raise
            producer = init_producer_id(connection, None, timeout_ms=timeout_ms)
        self._state.producer = producer
        log.info("producer %s goes on with epoch %s", *self._state.producer)
        with self._accumulator.lock:
            self._bump_needed = False
            for lane in self._accumulator.lanes.values():
                lane.next_sequence = lane.acknowledged = 0


_started: "Final[weakref.WeakSet[Sender]]" = weakref.WeakSet()


def finish_all(deadline: float) -> None:
    """Send the records of producers that were dropped without `close`. Their threads still work."""
    for sender in list(_started):
        sender.finish(max(0.0, deadline - time.monotonic()))


def _before(batch: PendingBatch, other: PendingBatch) -> bool:
    return batch.created_at <= other.created_at
