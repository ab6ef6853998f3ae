"""Takes records into open batches, with the back-pressure of `buffer_bytes`.

The path of a record: route (its topic, kept), partition, lane, open batch. `send` does it in one piece, to save calls.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from msgtx import arguments, callbacks, errors
from msgtx.config import ProducerConfig
from msgtx.producer.batches import RECORD_OVERHEAD_BYTES, Accumulator, BatchFuture, PendingBatch, RecordFuture
from msgtx.producer.keyed import Deduplicator
from msgtx.producer.routes import Route, Routes
from msgtx.producer.state import OpenTransaction, ProducerStatus
from msgtx.rules.partitioner import PARTITIONERS
from msgtx.rules.record import (
    PLAIN,
    HeaderPairs,
    are_times,
    as_bytes,
    as_headers,
    as_json,
    as_milliseconds,
    check_dedup_key,
    counted_bytes,
    record_bytes,
    too_large,
)
from msgtx.rules.transaction import Call
from msgtx.store.append.append_once import KeyedRecord
from msgtx.store.append.rows import delivered_later
from msgtx.types import OutputRecord, TopicPartition

Serializer = Callable[[Any], bytes | None]
Contents = Sequence[bytes | None]
Columns = tuple[Contents, Contents | None, Sequence[int | None] | None, Sequence[int]]  # values, keys, timestamps, sizes


class Batcher:
    """Fills open batches with records, while the state of the producer allows it. `start`: called before a first record."""

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: Accumulator,
        state: ProducerStatus,
        *,
        routes: Routes,
        keyed: Deduplicator,
        start: Callable[[], None],
        key_serializer: Serializer | None,
        value_serializer: Serializer | None,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._lock = accumulator.lock
        self._state = state
        self._routes = routes
        self._known = routes.known
        self._keyed = keyed
        self._start = start
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._serializes = key_serializer is not None or value_serializer is not None
        self._plain: Batcher | None = None  # the same without serializers
        if self._serializes:
            self._plain = Batcher(
                config,
                accumulator,
                state,
                routes=routes,
                keyed=keyed,
                start=start,
                key_serializer=None,
                value_serializer=None,
            )
        self._partition_of = PARTITIONERS[config.partitioner]
        self._batch_records = config.batch_records
        self._awaits = config.acks != "0"

    def send(
        self,
        topic: Any,
        value: Any = ...,
        unnamed: Any = ...,
        json: Any = ...,
        key: Any = None,
        partition: Any = None,
        timestamp: Any = None,
        headers: Any = None,
        on_delivery: Any = None,
        dedup_key: Any = None,
        deliver_at: Any = None,
        delay_ms: Any = None,
    ) -> RecordFuture:
        """See `Producer.send`. `Any`: wrong types are refused here, in our own words.

        `unnamed` takes the place of a `*`, behind which Python looks up the default of each parameter: a tenth of the time.
        """
        if unnamed is not ...:
            raise errors.WrongType("send takes a topic and a value; name what else is given, as in key=…", name="key")
        if self._serializes or json is not ... or value is ...:
            value, key = self._serialized(value, key, json)
        if (value.__class__ is not bytes and value is not None) or (key is not None and key.__class__ is not bytes):
            value, key = as_bytes(value, "value"), as_bytes(key, "key")
        route = self._known.get(topic) if topic.__class__ is str else None
        if route is None:
            route = self._route(topic)
        size = RECORD_OVERHEAD_BYTES + (len(value) if value is not None else 0)
        sticky = False
        if key:
            size += len(key)
        if partition is not None:
            if partition.__class__ is not int or not -1 < partition < route.count:
                partition = _partition(route, partition)
        elif key:
            partition = self._partition_of(key, route.count)
        else:
            partition = route.sticky
            sticky = True
        if on_delivery is not None and not callable(on_delivery):
            arguments.function("on_delivery", on_delivery)
        pairs = None if headers is None else as_headers(headers)
        if deliver_at is not None or delay_ms is not None:
            pairs = delivered_later(pairs or (), deliver_at, delay_ms)
        if pairs:
            size += record_bytes(None, None, pairs)
        stamp = None if timestamp is None else as_milliseconds(timestamp)
        if dedup_key is not None:
            check_dedup_key(dedup_key)
            drawn = random.randrange(route.count) if sticky else partition  # noqa: S311 - as above
            return self._send_keyed(route, drawn, (dedup_key, value, key, stamp, pairs or ()), size, on_delivery)
        if size > route.limit + RECORD_OVERHEAD_BYTES:
            counted = counted_bytes(size - RECORD_OVERHEAD_BYTES, pairs or ())
            if counted > route.limit:
                return self._too_large(route, partition, counted, on_delivery)
        with self._lock:
            try:
                if not self._state.may_send:
                    self._state.refuse(Call.SEND)
                lane = route.lanes[partition]
                if lane is None or (batch := lane.open) is None or batch.size + size > batch.reserved:
                    batch = self._roll(route, partition, size, sticky=sticky)
                values = batch.values
                index = len(values)
                if index >= self._batch_records:
                    batch = self._roll(route, partition, size, sticky=sticky)
                    values, index = batch.values, len(batch.values)
                values.append(value)
                batch.keys.append(key)
                batch.size += size
                if stamp is not None or batch.timestamps is not None:
                    batch.add_timestamp(batch.created_ms if stamp is None else stamp)
                if pairs:
                    batch.add_headers(pairs)
                future = RecordFuture()
                future._batch, future._index = batch if self._awaits else _unanswered(batch), index
            except BaseException as error:  # as in `Accumulator.steps`, which would double the cost of a record
                self._accumulator.raised(error)
                raise
        if on_delivery is not None:
            future.add_done_callback(on_delivery)
        return future

    def send_at_once(self, topic: str, value: Any, **rest: Any) -> RecordFuture | None:
        """See `Producer.send_at_once`."""
        plain = self._plain
        if plain is not None and self._known.get(arguments.topic(topic)) is not None:
            # Without the lock: they are the user's code.
            value, rest["key"] = self._serialized(value, rest.get("key"), rest.pop("json", ...))
            return plain.send_at_once(topic, value, **rest)
        with self._lock:
            route = self._known.get(arguments.topic(topic))
            if route is None:
                return None
            needed = self._accumulator.buffered + route.limit + RECORD_OVERHEAD_BYTES
            return None if needed > self._config.buffer_bytes else self.send(topic, value, **rest)

    def _send_keyed(
        self,
        route: Route,
        partition: int,
        content: tuple[str, bytes | None, bytes | None, int | None, HeaderPairs],
        size: int,
        on_delivery: Callable[[RecordFuture], object] | None,
    ) -> RecordFuture:
        dedup_key, value, key, stamp, pairs = content
        if self._config.transactional_id is not None:
            raise errors.IllegalState(
                "a dedup_key needs a producer without transactional_id: its record is stored at once, and no abort takes it"
                " back; within a transaction a retry is recognised by the transaction itself",
                reason="transactional_id",
            )
        counted = counted_bytes(size - RECORD_OVERHEAD_BYTES, pairs)
        if counted > route.limit:
            return self._too_large(route, partition, counted, on_delivery)
        with self._lock, self._accumulator.steps():
            if not self._state.may_send:
                self._state.refuse(Call.SEND)
            self._wait_for_room(size)
            batch = PendingBatch(TopicPartition(route.topic.name, partition), None, self._lock)
            batch.size = batch.reserved = size
            partition_id = route.topic.partition_ids[partition]
            at = batch.created_ms if stamp is None else stamp
            self._keyed.add(KeyedRecord(partition_id, dedup_key, value, key, at, pairs), batch)
        future = RecordFuture.of(batch, 0)
        if on_delivery is not None:
            future.add_done_callback(on_delivery)
        return future

    def _serialized(self, value: Any, key: Any, json: Any) -> tuple[Any, Any]:
        if json is not ... or value is ...:
            value = as_json(value, json)
        elif self._value_serializer is not None:
            value = self._value_serializer(value)
        return value, key if self._key_serializer is None else self._key_serializer(key)

    def send_batch(
        self,
        topic: Any,
        values: Any,
        keys: Any = None,
        *,
        partition: Any = None,
        timestamps: Any = None,
    ) -> BatchFuture:
        """See `Producer.send_batch`."""
        values = arguments.column("values", values)
        keys = None if keys is None else arguments.column("keys", keys)
        timestamps = None if timestamps is None else arguments.column("timestamps", timestamps)
        for name, column in (("keys", keys), ("timestamps", timestamps)):
            if column is not None and len(column) != len(values):
                raise errors.InvalidRequest(f"{len(values)} values, and {len(column)} {name}", name=name)
        columns = _checked(values, keys, timestamps)
        route = self._known.get(arguments.topic(topic)) or self._route(topic)
        if partition is not None:
            partition = _partition(route, partition)
        if (largest := max(columns[-1], default=0)) > route.limit:
            self._too_large(route, partition or 0, largest, None).result()
        batches: list[PendingBatch] = []
        try:
            self._spread(route, partition, columns, batches)
        except errors.MsgtxError as error:
            if not batches:
                raise
            # A part is on its way: if this raised, the caller would send it again.
            batches.append(self._failed(batches[0].topic_partition, batches[0].transaction_number, error))
        return BatchFuture(batches)

    def add(self, topic: str, outputs: Sequence[OutputRecord]) -> bool:
        """Add records to the open batches by columns, as `send` adds one. Return whether that was possible, for all of them.

        It is if they have nothing but a value, a key and a timestamp, each fits, and all have a key or none: what goes to a
        partition keeps its order.
        """
        if not outputs or self._serializes or not all(map(_is_plain, outputs)):
            return False
        keys, timestamps = _given([o.key for o in outputs]), _given([o.timestamp for o in outputs])
        columns = _, given, _, sizes = _checked([o.value for o in outputs], keys, timestamps)
        route = self._known.get(topic) or self._route(topic)
        if max(sizes) > route.limit or not (given is None or all(given)):
            return False
        self._spread(route, None, columns, None)
        return True

    def _spread(self, route: Route, partition: int | None, columns: Columns, batches: list[PendingBatch] | None) -> None:
        """Add records, each to the batch of its partition. `batches`: where new ones go that have no other records."""
        values, keys, timestamps, sizes = columns
        if partition is not None or keys is None:
            self._fill(route, partition, columns, batches)
            return
        rows: dict[int | None, list[int]] = {}
        for i, key in enumerate(keys):
            rows.setdefault(self._partition_of(key, route.count) if key else None, []).append(i)
        for part, found in rows.items():
            of_part = (
                [values[i] for i in found],
                [keys[i] for i in found],
                None if timestamps is None else [timestamps[i] for i in found],
                [sizes[i] for i in found],
            )
            self._fill(route, part, of_part, batches)

    def _fill(self, route: Route, partition: int | None, columns: Columns, batches: list[PendingBatch] | None) -> None:
        values, keys, timestamps, sizes = columns
        fresh, start = batches is not None, 0
        while start < len(values):
            end, total = start, 0
            most = min(len(values), start + self._config.batch_records)
            while end < most and (end == start or total + sizes[end] + RECORD_OVERHEAD_BYTES <= self._config.batch_bytes):
                total += sizes[end] + RECORD_OVERHEAD_BYTES
                end += 1
            with self._lock, self._accumulator.steps():
                if not self._state.may_send:
                    self._state.refuse(Call.SEND)
                index = route.sticky if partition is None else partition
                batch = self._roll(route, index, total, sticky=partition is None, fresh=fresh, count=end - start)
                batch.extend(
                    values[start:end],
                    None if keys is None else keys[start:end],
                    None if timestamps is None else timestamps[start:end],
                    size=total,
                )
                if batches is not None:
                    self._accumulator.close_batch(self._accumulator.lanes[batch.topic_partition])
                    self._accumulator.work.notify()
                    batches.append(batch)
            start = end

    def _roll(
        self, route: Route, partition: int, size: int, *, sticky: bool, fresh: bool = False, count: int = 1
    ) -> PendingBatch:
        """Return an open batch that takes `count` records of `size` bytes; wait while `buffer_bytes` are used up.

        `fresh`: a new one. The caller holds the lock.
        """
        route.topic.partition_id(partition)
        self._state.require_whole()
        accumulator = self._accumulator
        lane = self._routes.lane(route, partition)
        if lane.open is not None:
            if not fresh and self._takes(lane.open, size, count) and accumulator.reserve(lane.open, size):
                return lane.open
            accumulator.close_batch(lane)
            accumulator.work.notify()
        if sticky:  # a new batch of keyless records: its partition is drawn, and they stay with it
            route.sticky = random.randrange(route.count)  # noqa: S311 - spreads load, guards nothing
            lane = self._routes.lane(route, route.sticky)
        self._wait_for_room(size)
        if lane.open is not None and (fresh or not self._takes(lane.open, size, count)):  # of another thread, or drawn
            accumulator.close_batch(lane)
            accumulator.work.notify()
        batch = lane.open or accumulator.open_batch(lane, self._number())
        if not accumulator.reserve(batch, size):  # another thread was faster
            return self._roll(route, lane.topic_partition.partition, size, sticky=False, fresh=fresh, count=count)
        return batch

    def _takes(self, batch: PendingBatch, size: int, count: int) -> bool:
        return batch.size + size <= self._config.batch_bytes and len(batch.values) + count <= self._batch_records

    def _number(self) -> int | None:
        transaction = self._state.transaction
        return None if transaction is None else transaction.id.transaction_number

    def _wait_for_room(self, size: int) -> None:
        accumulator, transaction = self._accumulator, self._state.transaction
        if size > self._config.buffer_bytes:
            error = errors.RecordTooLarge(
                f"{size} bytes do not fit into buffer_bytes={self._config.buffer_bytes}",
                name="buffer_bytes",
                given=size,
                limit=self._config.buffer_bytes,
            )
            raise self._state.lacks(transaction, error)
        if accumulator.buffered + size <= self._config.buffer_bytes:
            return
        accumulator.close_all()
        accumulator.work.notify_all()
        if callbacks.is_inside(self._lock):
            full = f"buffer_bytes={self._config.buffer_bytes} are full"
            self._state.lacks(
                transaction, errors.DeliveryTimeout(full, name="buffer_bytes", limit=self._config.buffer_bytes)
            )
            callbacks.require_none(f"{full}, and a send", self._lock)
        try:
            room = accumulator.settled.wait_for(
                lambda: accumulator.buffered + size <= self._config.buffer_bytes or not self._state.may_send,
                self._config.max_block_ms / 1000,
            )
        except BaseException as error:  # an interrupt: the record is not sent, and all is where it was
            accumulator.harmless = error
            raise
        if not self._state.may_send:
            self._state.refuse(Call.SEND)
        if not room:
            full = f"buffer_bytes={self._config.buffer_bytes} stayed full for max_block_ms={self._config.max_block_ms}"
            raise self._state.lacks(
                transaction, errors.DeliveryTimeout(full, name="buffer_bytes", limit=self._config.buffer_bytes)
            )

    def _too_large(
        self, route: Route, partition: int, size: int, on_delivery: Callable[[RecordFuture], object] | None
    ) -> RecordFuture:
        """Return the future of a record that has failed. Not under the lock: callbacks are the user's code."""
        with self._lock:
            if not self._state.may_send:
                self._state.refuse(Call.SEND)
            number, transaction = self._number(), self._state.transaction
        error = too_large(route.topic.name, route.limit, size)
        place = TopicPartition(route.topic.name, partition)
        future = RecordFuture.of(self._failed(place, number, error, of=transaction), 0)
        if on_delivery is not None:
            future.add_done_callback(on_delivery)
        return future

    def _failed(
        self,
        topic_partition: TopicPartition,
        number: int | None,
        error: errors.MsgtxError,
        *,
        of: OpenTransaction | None = None,
    ) -> PendingBatch:
        """Return a batch that has failed, and its transaction with it; `of`: as `batch_failed`."""
        batch = PendingBatch(topic_partition, number, self._lock)
        batch.error, batch.finished = error, True
        self._accumulator.tell(batch)
        self._state.batch_failed(number, error, of=of)
        return batch

    def _route(self, topic: Any) -> Route:
        topic = arguments.topic(topic)
        if (route := self._known.get(topic)) is not None:
            return route
        transaction = self._state.transaction
        try:
            self._start()
            return self._routes.find(topic)
        except errors.MsgtxError as error:
            self._state.lacks(transaction, error)
            raise


def _checked(values: Sequence[Any], keys: Sequence[Any] | None, timestamps: Sequence[Any] | None) -> Columns:
    """Return columns as they are stored, and the bytes of each record. Raise `WrongType`, `InvalidRequest`."""
    kinds = {*map(type, values)}
    if not kinds <= PLAIN:
        values = [as_bytes(item, "value") for item in values]
    if keys is not None and not {*map(type, keys)} <= PLAIN:
        keys = [as_bytes(item, "key") for item in keys]
    if timestamps is not None and not ({*map(type, timestamps)} <= {int} and are_times(timestamps)):
        timestamps = [None if timestamp is None else as_milliseconds(timestamp) for timestamp in timestamps]
    sizes = [*map(len, values)] if kinds == {bytes} else [0 if value is None else len(value) for value in values]
    if keys is not None:
        sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
    return values, keys, timestamps, sizes


def _is_plain(output: OutputRecord) -> bool:
    return output.topic is None and output.partition is None and not output.headers


def _given(column: list[Any]) -> list[Any] | None:
    return None if column.count(None) == len(column) else column


def _partition(route: Route, given: Any) -> int:
    """Return the index of a partition. Raise `WrongType`, `InvalidRequest`, `UnknownTopicOrPartition`."""
    partition = arguments.whole("partition", given, least=-arguments.LARGEST_INT8)
    route.topic.partition_id(partition)
    return partition


def _unanswered(batch: PendingBatch) -> PendingBatch:
    # acks=0: nothing is awaited, the future is done at once with offset −1.
    stand_in = PendingBatch(batch.topic_partition, None, batch.lock)
    stand_in.finished = True
    return stand_in
