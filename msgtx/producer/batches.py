"""Batches on their way: open ones, filled by `send`, and the sender's queue.

Kafka's record accumulator. `Producer.send` fills the open batch by itself, to save a call per record.
"""

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from msgtx import arguments, callbacks, forks, units
from msgtx.database.connection import LOOK_SECONDS, seconds_left
from msgtx.database.wire import BatchColumns
from msgtx.errors import MsgtxError, fresh
from msgtx.observer import Observers
from msgtx.store.append.append import Appended
from msgtx.store.append.rows import OpenRow
from msgtx.store.topics.topics import Topic
from msgtx.types import BatchMetadata, RecordMetadata, TopicPartition
from msgtx.units import Duration

log = logging.getLogger("msgtx.producer")
RECORD_OVERHEAD_BYTES: Final = 64  # memory of a record beyond its bytes: objects and their places in lists
RESERVED_BYTES: Final = 16 * 1024  # that an open batch takes of the buffer ahead of its records
Callback = Callable[["RecordFuture"], object]


class PendingBatch(OpenRow):
    """Records of one partition, as columns; becomes one row of the log."""

    __slots__ = (
        "attempts",
        "base_offset",
        "base_sequence",
        "callbacks",
        "created_at",
        "dropped",
        "duplicate",
        "error",
        "event",
        "finished",
        "lock",
        "origin",
        "reserved",
        "revive",
        "timestamp",
        "topic_partition",
        "transaction_number",
        "uncertain",
    )

    def __init__(self, topic_partition: TopicPartition, transaction_number: int | None, lock: Any) -> None:
        super().__init__()
        self.lock = lock
        self.origin = forks.here()
        self.topic_partition = topic_partition
        self.transaction_number = transaction_number
        self.reserved = 0  # of `buffer_bytes`; `size` grows up to it without a look at the others
        self.created_at = time.monotonic()
        self.base_sequence: int | None = None
        self.attempts = 0
        self.uncertain = False  # it was handed to the database and not answered
        self.finished = False
        self.error: BaseException | None = None
        self.base_offset = -1
        self.timestamp = -1
        self.duplicate = False
        self.dropped: dict[int, BaseException] | None = None  # records taken out because they are refused
        self.event: threading.Event | None = None
        self.revive: Callable[[], None] | None = None  # starts the sender's thread again if it has died
        self.callbacks: list[tuple[Callback, RecordFuture]] | None = None

    def columns(self, partition_id: int, producer: tuple[int | None, int | None]) -> BatchColumns:
        """Return the row to store."""
        return self.stored_as(
            partition_id,
            producer,
            transaction_number=self.transaction_number,
            base_sequence=self.base_sequence,
            without=self.dropped or (),
        )

    def __len__(self) -> int:
        """Return the number of records that are to be stored."""
        return len(self.values) - (len(self.dropped) if self.dropped else 0)

    def error_of(self, index: int) -> BaseException | None:
        """Return why the record at `index` is nowhere, as an error of its own; None if it is stored."""
        error = self.dropped[index] if self.dropped and index in self.dropped else self.error
        return None if error is None else fresh(error)

    def metadata(self, index: int) -> RecordMetadata:
        """Return where the record at `index` is. Raise why it is nowhere."""
        if (self.error is not None or self.dropped) and (error := self.error_of(index)) is not None:
            raise error
        offset = -1
        if self.base_offset >= 0:
            before = sum(1 for other in self.dropped if other < index) if self.dropped else 0
            offset = self.base_offset + index - before
        timestamp = self.timestamp
        if timestamp < 0:
            timestamp = self.time_of(index)
        return RecordMetadata(*self.topic_partition, offset, timestamp, self.duplicate)


class RecordFuture:
    """A record on its way: a small handle on its batch. It completes by itself, without flush or poll."""

    __slots__ = ("_batch", "_index")
    _batch: PendingBatch
    _index: int

    @classmethod
    def of(cls, batch: PendingBatch, index: int) -> "RecordFuture":
        """Return the future of a record of a batch. `send` sets both by itself: a call of `__init__` takes as long again."""
        future = cls()
        future._batch, future._index = batch, index
        return future

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._batch.finished

    def __repr__(self) -> str:
        batch = self._batch
        fate = "on its way"
        if batch.finished:
            error = batch.error_of(self._index)
            fate = f"offset {batch.metadata(self._index).offset}" if error is None else f"failed: {type(error).__name__}"
        return f"<RecordFuture of {batch.topic_partition}, {fate}>"

    def result(self, timeout: Duration | None = None) -> RecordMetadata:
        """Wait for the record's place. Raise its error, or `TimeoutError` after `timeout` seconds.

        Raise `IllegalState` in a callback of the record's own producer, for one that is still on its way.
        """
        seconds = None if timeout is None else units.timeout(timeout)
        if not self._batch.finished:
            wait_for(self._batch, seconds, "result")
        return self._batch.metadata(self._index)

    def exception(self, timeout: Duration | None = None) -> BaseException | None:
        """Wait; return the record's error, or None if it is stored. Raise `TimeoutError`, and `IllegalState` as `result`."""
        seconds = None if timeout is None else units.timeout(timeout)
        if not self._batch.finished:
            wait_for(self._batch, seconds, "exception")
        return self._batch.error_of(self._index)

    def add_done_callback(self, callback: Callback) -> None:
        """Call `callback(future)` when the outcome is known, from the sender's thread; at once if it is."""
        arguments.function("callback", callback)
        if not self._batch.finished:
            self._batch.origin.require("the record's producer")
        with self._batch.lock:
            if not self._batch.finished:
                if self._batch.callbacks is None:
                    self._batch.callbacks = []
                self._batch.callbacks.append((callback, self))
                return
        call_back(callback, self, self._batch.lock)


def call_back(callback: Callable[[Any], object], future: object, lock: object) -> None:
    """Call a user's callback.

    An exception from it is logged: it ends neither the sender nor a `send` whose record is stored.
    """
    interrupt = callbacks.run(log, "a delivery callback raised", lock, callback, future)
    if interrupt is not None:
        raise interrupt


def wait_for(batch: PendingBatch, timeout: float | None, call: str) -> None:
    """Wait until a batch is finished. Raise `TimeoutError`, and `IllegalState` in a callback of its producer."""
    callbacks.require_none(call, batch.lock)
    batch.origin.require("the record's producer")
    if batch.revive is not None:
        batch.revive()
    with batch.lock:
        if batch.finished:
            return
        if batch.event is None:
            batch.event = threading.Event()
        event = batch.event
    if not event.wait(timeout):
        raise TimeoutError(f"the record for {batch.topic_partition} was not acknowledged within {timeout} s")


class BatchFuture:
    """The outcome of `send_batch`."""

    __slots__ = ("_batches",)

    def __init__(self, batches: list[PendingBatch]) -> None:
        self._batches = batches

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return all(batch.finished for batch in self._batches)

    def __repr__(self) -> str:
        fate = "finished" if self.done() else "on its way"
        return f"<BatchFuture of {sum(map(len, self._batches))} records, {fate}>"

    def result(self, timeout: Duration | None = None) -> BatchMetadata:
        """Wait for all records. Raise the first error, or `TimeoutError`; `IllegalState` as `RecordFuture.result`."""
        offsets: dict[TopicPartition, list[tuple[int, int]]] = {}
        count = 0
        for batch in self._finished(timeout, "result"):
            if (error := _first_error(batch)) is not None:
                raise error
            count += len(batch)
            last = batch.base_offset + len(batch) - 1 if batch.base_offset >= 0 else -1
            offsets.setdefault(batch.topic_partition, []).append((batch.base_offset, last))
        return BatchMetadata(count, offsets)

    def _finished(self, timeout: Duration | None, call: str) -> Iterator[PendingBatch]:
        """Yield the batches, in order, each when it is finished."""
        seconds = None if timeout is None else units.timeout(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        for batch in self._batches:
            if not batch.finished:
                wait_for(batch, None if deadline is None else max(0.0, deadline - time.monotonic()), call)
            yield batch

    def add_done_callback(self, callback: Callable[["BatchFuture"], object]) -> None:
        """Call `callback(future)` when all records are settled, from the sender's thread; at once if they are."""
        arguments.function("callback", callback)
        left = iter(self._batches)

        def settled(_: RecordFuture | None = None) -> None:
            waiting = next((batch for batch in left if not batch.finished), None)
            if waiting is None:
                call_back(callback, self, self._batches[0].lock if self._batches else None)
            else:
                RecordFuture.of(waiting, 0).add_done_callback(settled)

        settled()

    def exception(self, timeout: Duration | None = None) -> BaseException | None:
        """Wait; return the first error, or None. Raise `TimeoutError`, and `IllegalState` as `RecordFuture.result`."""
        return next((error for batch in self._finished(timeout, "exception") if (error := _first_error(batch))), None)


def _first_error(batch: PendingBatch) -> BaseException | None:
    error = next(iter(batch.dropped.values())) if batch.error is None and batch.dropped else batch.error
    return None if error is None else fresh(error)


@dataclass(slots=True)
class Lane:
    """One partition's batches: the open one, and the waiting ones, oldest first."""

    topic_partition: TopicPartition
    partition_id: int
    log_append_time: bool
    open: PendingBatch | None = None
    ready: deque[PendingBatch] = field(default_factory=deque)
    next_sequence: int = 0  # of the next batch that is handed over
    acknowledged: int = 0  # the sequence behind the last one that was acknowledged in this epoch
    acknowledged_at: float = 0.0  # by time.monotonic
    server: tuple[int, int] | None = None  # that acknowledged it, as `Connection.server`


class _Steps:
    """See `Accumulator.steps`."""

    __slots__ = ("_accumulator",)

    def __init__(self, accumulator: "Accumulator") -> None:
        self._accumulator = accumulator

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._accumulator.raised(error)


class Accumulator:
    """All lanes of a producer, under one lock.

    `work` wakes the sender, `settled` the threads that wait for batches to be finished. While awake, the sender looks after
    open batches by itself: a record in a transaction that goes out as one call wakes no thread.
    """

    def __init__(self, *, linger_ms: int, batch_bytes: int, buffer_bytes: int, observers: Observers) -> None:
        self.observers = observers
        self.lock = threading.RLock()
        self.work = threading.Condition(self.lock)
        self.settled = threading.Condition(self.lock)
        self.torn = False  # an exception came between two steps: the places of the batches are not certain any more
        self.harmless: BaseException | None = None  # the last one that came while its thread waited for room
        self.sender_sleeps = False
        self.revive: Callable[[], None] = lambda: None  # starts the sender again, should its thread have died
        self.lanes: dict[TopicPartition, Lane] = {}
        self.filled: set[TopicPartition] = set()  # lanes whose `ready` holds something
        self.opened: set[TopicPartition] = set()  # lanes with an open batch
        self.buffered = 0  # bytes of batches that are not finished
        self.unfinished = 0  # batches that are not finished, or whose callbacks are to come
        self.unanswered: set[PendingBatch] = set()  # those that are not finished, wherever they are
        self.linger_seconds = linger_ms / 1000
        self.batch_bytes = batch_bytes
        self.buffer_bytes = buffer_bytes

    def lane(self, topic: Topic, partition: int) -> Lane:
        """Return the lane of a partition. The caller holds the lock."""
        key = TopicPartition(topic.name, partition)
        lane = self.lanes.get(key)
        if lane is None:
            stamped = topic.settings["timestamp_type"] == "LogAppendTime"
            lane = self.lanes[key] = Lane(key, topic.partition_ids[partition], stamped)
        return lane

    def steps(self) -> "_Steps":
        """Note where an exception comes in between, as a signal handler raises it: Ctrl-C, the time limit of a job."""
        return _Steps(self)

    def raised(self, error: BaseException) -> None:
        """Note an exception between steps. Our own errors tear nothing, nor does an interrupt of a wait."""
        if not (isinstance(error, MsgtxError) or error is self.harmless):
            self.torn = True
            with self.lock:
                self.work.notify_all()  # the sender answers the waiting callers
                self.settled.notify_all()

    def lead_to(self, topic: Topic) -> None:
        """Have the lanes of a topic lead to other partitions: it was made again. The caller holds the lock."""
        for key, lane in self.lanes.items():
            if key.topic != topic.name:
                continue
            lane.next_sequence = lane.acknowledged = 0  # nothing was sent there yet
            if key.partition < len(topic.partition_ids):
                lane.partition_id = topic.partition_ids[key.partition]
                lane.log_append_time = topic.settings["timestamp_type"] == "LogAppendTime"

    def open_batch(self, lane: Lane, transaction_number: int | None) -> PendingBatch:
        """Begin a batch on a lane. The caller holds the lock."""
        self.revive()
        batch = lane.open = PendingBatch(lane.topic_partition, transaction_number, self.lock)
        batch.revive = self.revive
        self.opened.add(lane.topic_partition)
        self.take_in(batch)
        if self.sender_sleeps:
            self.sender_sleeps = False
            self.work.notify()
        return batch

    def take_in(self, batch: PendingBatch) -> None:
        """Count a batch that is to be finished. The caller holds the lock."""
        self.unfinished += 1
        self.unanswered.add(batch)

    def reserve(self, batch: PendingBatch, size: int) -> bool:
        """Let a batch grow by `size` bytes, and a little more if there is room. Returns whether there was."""
        free = self.buffer_bytes - self.buffered
        if batch.size + size - batch.reserved > free:
            return False
        more = max(batch.size + size - batch.reserved, min(RESERVED_BYTES, free // 8, self.batch_bytes - batch.reserved))
        batch.reserved += more
        self.buffered += more
        return True

    def close_batch(self, lane: Lane) -> None:
        """Make the open batch ready to be sent. The caller holds the lock, and notifies `work`."""
        if lane.open is not None:
            self.buffered -= lane.open.reserved - lane.open.size
            lane.open.reserved = lane.open.size
            lane.ready.append(lane.open)
            lane.open = None
            self.opened.discard(lane.topic_partition)
            self.filled.add(lane.topic_partition)

    def close_all(self) -> None:
        """Make all open batches ready. The caller holds the lock."""
        with self.steps():
            for key in [*self.opened]:
                self.close_batch(self.lanes[key])

    def close_lingering(self, now: float) -> float | None:
        """Make open batches ready whose linger is over. Returns the seconds until the next one's, None if there is none."""
        soonest: float | None = None
        for key in list(self.opened):
            lane = self.lanes[key]
            assert lane.open is not None
            left = lane.open.created_at + self.linger_seconds - now
            if left <= 0:
                self.close_batch(lane)
            else:
                soonest = left if soonest is None else min(soonest, left)
        return soonest

    def take_ready(self, wanted: Callable[[PendingBatch], bool] | None = None) -> list[PendingBatch]:
        """Take batches that are not in flight out of their lanes."""
        taken: list[PendingBatch] = []
        with self.lock, self.steps():
            for key in [*self.filled]:
                lane = self.lanes[key]
                taken.extend(lane.ready if wanted is None else filter(wanted, lane.ready))
                lane.ready = deque(() if wanted is None else itertools.filterfalse(wanted, lane.ready))
                if not lane.ready:
                    self.filled.discard(key)
        return taken

    def take_whole(self, *, most_lanes: int, most_bytes: int) -> list[PendingBatch] | None:
        """Take all that is not in flight, ascending by partition, if it is a batch per lane and small; else None.

        The caller holds the lock.
        """
        lanes = [self.lanes[key] for key in self.filled | self.opened]
        batches = [batch for lane in lanes for batch in (*lane.ready, lane.open) if batch is not None]
        if not 0 < len(lanes) <= most_lanes or len(batches) > len(lanes) or sum(b.size for b in batches) > most_bytes:
            return None
        self.close_all()
        taken = self.take_ready()
        if len(taken) > 1:
            taken.sort(key=lambda batch: self.lanes[batch.topic_partition].partition_id)
        return taken

    def flush(
        self,
        timeout: float | None,
        *,
        unless: Callable[[], bool] = lambda: False,
        also: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Have everything sent now, and wait until each batch is finished and `also` holds, or until `unless`.

        Returns whether the wait ended before the time was over.
        """
        self.revive()
        with self.lock:
            self.close_all()
            self.work.notify_all()
            return self.settles(lambda: (self.unfinished == 0 and also()) or self.torn or unless(), timeout)

    def settles(self, wanted: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until this holds, no longer than `timeout` seconds and than calls may take here (`until`). Return it.

        The caller holds the lock.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not wanted():
            left = min(end - time.monotonic(), seconds_left())
            if left <= 0:
                return False
            self.settled.wait(min(left, LOOK_SECONDS))
        return True

    def drop_unsent(self, error: BaseException, wanted: Callable[[PendingBatch], bool] | None = None) -> None:
        """Fail every batch that is not in flight."""
        with self.lock:
            self.close_all()
            dropped = self.take_ready(wanted)
        self.finish(dropped, error=error)

    def drop_all(self, error: BaseException) -> None:
        """Fail every batch, also one that an exception has kept between two places. Nothing is in flight."""
        self.drop_unsent(error)
        with self.lock:
            left = [*self.unanswered]
        self.finish(left, error=error)

    def stored(self, lane: Lane, batch: PendingBatch, answer: Appended) -> None:
        """Note where the database has stored a batch, before it is finished."""
        batch.base_offset, batch.duplicate = answer.base_offset, answer.duplicate
        if lane.log_append_time:
            batch.timestamp = answer.timestamp

    def finish(self, batches: Iterable[PendingBatch], *, error: BaseException | None = None) -> None:
        """Settle batches: their futures are done, their bytes are free, waiting threads wake up.

        Callbacks come last, when all batches are settled: an exception from one keeps no other record from its answer.
        A `flush` waits for them. An interrupt of the main thread in between is raised at the end.
        """
        waiting: list[PendingBatch] = []  # for callbacks
        finished: list[PendingBatch] = []
        with self.lock, self.steps():
            for batch in batches:
                if batch not in self.unanswered:
                    continue
                if not batch.finished:  # else an exception came in between
                    batch.error = error
                    batch.finished = True
                self.buffered -= batch.reserved
                finished.append(batch)
                if batch.callbacks:
                    waiting.append(batch)
                else:
                    self.unfinished -= 1
                if batch.event is not None:
                    batch.event.set()
                self.unanswered.discard(batch)
            self.settled.notify_all()
        try:
            if self.observers.each:
                for batch in finished:
                    self.tell(batch)
        finally:
            if waiting:
                self._call_back(waiting)

    def _call_back(self, batches: list[PendingBatch]) -> None:
        interrupt: BaseException | None = None
        try:
            for batch in batches:
                called, batch.callbacks = batch.callbacks, None
                for callback, future in called or ():
                    raised = callbacks.run(log, "a delivery callback raised", self.lock, callback, future)
                    interrupt = raised or interrupt
        finally:
            with self.lock:
                self.unfinished -= len(batches)
                self.settled.notify_all()
        if interrupt is not None:
            raise interrupt

    def tell(self, batch: PendingBatch) -> None:
        """Tell the observers of a batch that is finished."""
        seconds = time.monotonic() - batch.created_at
        self.observers.tell(
            lambda observer: observer.batch_settled(
                batch.topic_partition.topic,
                records=len(batch) or 1,
                size=batch.size,
                seconds=seconds,
                retries=max(0, batch.attempts - 1),
                error=batch.error,
            ),
            self.lock,
        )
