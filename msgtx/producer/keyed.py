"""Sends records with a dedup_key: for programs that keep no sequence and repeat their sends.

Records that come during a call wait, and go together with the next one. A call is repeated if its answer was lost: the keys
show the stored records. One thread per producer, from the first such record on.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from msgtx.background import BackgroundThread
from msgtx.config import ProducerConfig
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.errors import DeliveryTimeout, IllegalState, MsgtxError, UnknownTopicOrPartition
from msgtx.producer.batches import Accumulator, PendingBatch
from msgtx.producer.calls import MAX_BACKOFF_SECONDS
from msgtx.producer.state import ProducerStatus
from msgtx.producer.wake import Wake
from msgtx.store.append.append import PARTITIONS_AT_ONCE
from msgtx.store.append.append_once import KeyedRecord, Placed, append_once
from msgtx.store.topics.topics import Topic
from msgtx.types import TopicPartition


@dataclass(slots=True)
class WaitingRecord:
    """A record, and the batch of one behind its future. `alone`: it goes in a call of its own, so a refusal is its own."""

    record: KeyedRecord
    batch: PendingBatch
    alone: bool = False


class Deduplicator:
    """Sends keyed records, one call at a time; under the lock, the buffer and the count of the accumulator."""

    def __init__(
        self,
        engine: Engine,
        accumulator: Accumulator,
        config: ProducerConfig,
        state: ProducerStatus,
        *,
        wake: Wake,
        refresh_topic: Callable[[str], Topic | None],
    ) -> None:
        self._engine = engine
        self._accumulator = accumulator
        self._config = config
        self._state = state
        self._wake = wake
        self._refresh_topic = refresh_topic
        self._work = threading.Condition(accumulator.lock)
        self._waiting: deque[WaitingRecord] = deque()
        self._taken: list[WaitingRecord] = []  # on their way
        self._closing = False
        self._thread = BackgroundThread("msgtx-deduplicator", self._run, what="the deduplicator", failed=self._fail_all)

    def add(self, record: KeyedRecord, batch: PendingBatch) -> None:
        """Take a record in. The caller holds the lock, and has seen to it that there is room in the buffer."""
        self._thread.start()  # with the first record
        batch.revive = self._thread.start
        self._accumulator.buffered += batch.reserved
        self._accumulator.take_in(batch)
        self._waiting.append(WaitingRecord(record, batch))
        self._work.notify()

    def close(self, timeout: float | None = None) -> None:
        """Discard waiting records.

        End the thread after its current call; wait for it at most `timeout` seconds.
        """
        with self._accumulator.lock:
            self._closing = True
            dropped, self._waiting = self._waiting, deque()
            self._work.notify_all()
        self._fail(dropped, IllegalState("the producer was closed before this was sent", reason="closed"))
        self._thread.stop()
        self._thread.join(timeout)

    # ── the thread ──

    def _run(self) -> None:
        failures = 0
        while self._take():
            taken = self._taken
            try:
                deadline = min(each.batch.created_at for each in taken) + self._config.delivery_timeout_ms / 1000
                with until(deadline, silence=self._config.request_timeout_ms / 1000):
                    answers = self._call([each.record for each in taken])
                self._settle(taken, answers)
                failures = 0
            except MsgtxError as error:
                if error.retriable and self._closing:
                    self._fail(taken, error)  # nothing waits for it: the producer was closed
                elif error.retriable:
                    failures += 1
                    self._again(taken)
                    self._expire(error)
                    self._pause(failures)
                elif error.fatal:
                    self._fail_all(self._engine.cause_of(error))
                else:
                    self._refuse([(each, error) for each in taken])

    def _take(self) -> bool:
        """Wait for records, and take as many as go together. Returns False at the end."""
        with self._work:
            self._taken = []
            self._work.wait_for(lambda: self._waiting or self._closing)
            size = 0
            places: set[int] = set()
            while self._waiting and len(self._taken) < self._config.batch_records:
                size += self._waiting[0].batch.size
                places.add(self._waiting[0].record.partition_id)
                if len(places) > PARTITIONS_AT_ONCE:
                    break
                if self._taken and (size > self._config.batch_bytes or self._taken[0].alone):
                    break  # behind one that is not alone, none is: those were put back ahead of all
                self._taken.append(self._waiting.popleft())
            if len(self._taken) == 1:
                self._taken[0].alone = True
            return bool(self._taken)

    def _call(self, records: list[KeyedRecord]) -> list[Placed]:
        partition_ids = sorted({record.partition_id for record in records})
        with self._engine.connection() as connection:
            answers = append_once(connection, records, wake=False)
        self._wake.tell(partition_ids)
        return answers

    def _settle(self, taken: list[WaitingRecord], answers: list[Placed]) -> None:
        refused: list[tuple[WaitingRecord, MsgtxError]] = []
        stored: list[PendingBatch] = []
        for each, answer in zip(taken, answers, strict=True):
            if answer.error is not None:
                refused.append((each, answer.error))
                continue
            batch = each.batch
            batch.topic_partition = TopicPartition(batch.topic_partition.topic, answer.partition)
            batch.base_offset, batch.timestamp, batch.duplicate = answer.offset, answer.timestamp, answer.duplicate
            stored.append(batch)
        self._accumulator.finish(stored)
        self._refuse(refused)

    def _refuse(self, refused: list[tuple[WaitingRecord, MsgtxError]]) -> None:
        """Fail a record that was refused alone; have the rest sent again, each alone: one bad record harms no other."""
        failed: set[int] = set()
        for each, error in refused:
            if each.alone and not self._finds_anew(each, error):
                self._fail([each], error)
                failed.add(id(each))
        rest = [each for each, _ in refused if id(each) not in failed]
        for each in rest:
            each.alone = True
        self._again(rest)

    def _finds_anew(self, each: WaitingRecord, error: MsgtxError) -> bool:
        """Return whether the record's topic was deleted and made again; it then goes to the partition that is there now."""
        if not isinstance(error, UnknownTopicOrPartition):
            return False
        place = each.batch.topic_partition
        topic = self._refresh_topic(place.topic)
        if topic is None or place.partition >= len(topic.partition_ids):
            return False
        before, each.record = each.record, replace(each.record, partition_id=topic.partition_ids[place.partition])
        return before != each.record

    def _again(self, taken: list[WaitingRecord]) -> None:
        with self._work:
            self._waiting.extendleft(reversed(taken))

    def _expire(self, cause: MsgtxError) -> None:
        seconds = self._config.delivery_timeout_ms / 1000
        oldest = time.monotonic() - seconds
        with self._work:
            late = [each for each in self._waiting if each.batch.created_at < oldest]
            self._waiting = deque(each for each in self._waiting if each.batch.created_at >= oldest)
        for each in late:
            place = each.batch.topic_partition
            text = f"{place}: not acknowledged within {seconds:g} s ({cause}); send it again with the same dedup_key"
            self._fail([each], DeliveryTimeout(text))

    def _pause(self, failures: int) -> None:
        seconds = min(MAX_BACKOFF_SECONDS, self._config.retry_backoff_ms / 1000 * 2 ** min(failures, 6))
        with self._work:
            self._work.wait_for(lambda: self._closing, seconds)

    def _fail_all(self, error: MsgtxError) -> None:
        """Fail all records, sent and waiting: every caller gets the error, instead of waiting forever."""
        self._state.batch_failed(None, error)  # first: no record is taken in any more
        with self._work:
            waiting, self._waiting = self._waiting, deque()
        self._fail([*self._taken, *waiting], error)

    def _fail(self, some: Iterable[WaitingRecord], error: MsgtxError) -> None:
        self._accumulator.finish((each.batch for each in some), error=error)
