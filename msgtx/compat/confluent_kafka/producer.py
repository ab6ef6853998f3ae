"""confluent-kafka's `Producer` over a producer of msgtx."""

import contextlib
import logging
import operator
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import confluent_kafka
from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import ClusterMetadata

import msgtx
from msgtx import errors
from msgtx.compat.confluent_kafka import metadata, settings
from msgtx.compat.confluent_kafka.clients import ClientOf
from msgtx.compat.confluent_kafka.error import as_kafka, translated
from msgtx.compat.confluent_kafka.serving import Statistics, deadline_of, none_or, seconds_left
from msgtx.producer.producer import RecordFuture

log = logging.getLogger("msgtx.compat")
Report = Callable[[KafkaError | None, Message], object]
PAUSE_SECONDS: Final = 0.02  # between two looks of a `poll` that has nothing to wait for
OVERHEAD: Final = 36  # bytes of a message that are not its key, value and headers, as librdkafka counts
TOO_LONG: Final = "Unable to produce message: Broker: Message size too large: message.max.bytes={}"
PURGED: Final = "the producer was purged: the message may be stored"


class MayWaitError(Exception):
    """A message was not sent, as that might wait for the database: an event loop has a thread do it."""


class Sent(NamedTuple):
    """A message on its way. `future`: its outcome, or the error for which it was not sent."""

    future: RecordFuture | KafkaError
    report: Report | None
    began: float
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


class Producer:
    """Sends messages. Delivery callbacks run in `poll` and `flush`, in the order of the calls of `produce`."""

    _client: ClientOf | None = None  # as of a subclass whose constructor does not call this one

    def __init__(self, *config: Any, **keywords: Any) -> None:
        given = settings.read(settings.PRODUCER, config, keywords)
        own = given.own
        self._settings: Any = given.passed
        self._most = given.number("queue.buffering.max.messages", 100_000)
        self._limit = given.number("message.max.bytes", 1_000_000, least=1_000)
        self._longest = self._limit - OVERHEAD
        self._report: Report | None = own.get("on_delivery") or own.get("dr_msg_cb") or own.get("dr_cb")
        self._failures_only = given.flag("delivery.report.only.error", False)
        self._error_cb: Callable[[KafkaError], object] | None = own.get("error_cb")
        self._statistics = Statistics("producer", own.get("stats_cb"), given.number("statistics.interval.ms", 0))
        self._partition = partitioner(own.get("partitioner", "consistent_random"))
        if self._partition is None and str(own.get("partitioner")).startswith("murmur2"):
            self._settings = {**given.passed, "partitioner": "murmur2"}
        self._log: logging.Logger = own.get("logger") or log
        self._sent: deque[Sent | RecordFuture | KafkaError] = deque()
        self._serving = threading.RLock()
        self._client = ClientOf(self)
        self._made = threading.Lock()
        self._producer: msgtx.Producer | None = None
        self._counts: dict[str, int] = {}  # partitions of topics, for the partitioners that msgtx does not have
        self._in_transaction = False
        self._lacks: KafkaError | None = None  # why the open transaction lacks a message: it cannot be committed

    # ── sending ──

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: Report | None = None,
        on_delivery: Report | None = None,
        timestamp: int = 0,
        headers: "Mapping[str, Any] | Sequence[tuple[str, Any]] | None" = None,
        *,
        _at_once: bool = False,
    ) -> None:
        """Send a message. Raise `BufferError` while `queue.buffering.max.messages` wait for their report."""
        inner = self._producer or self._inner()
        if value.__class__ is not bytes and value is not None:
            value = _bytes(value)
        if key.__class__ is not bytes and key is not None:
            key = _bytes(key)
        if topic.__class__ is not str:
            raise TypeError(f"argument 1 must be str, not {type(topic).__name__}")
        if partition.__class__ is not int or partition < -1:
            partition = _partition_number(partition)
        pairs = None if headers is None else _pairs(headers)
        if len(self._sent) >= self._most:
            raise BufferError("Local: Queue full")
        if self._partition is not None and partition == -1:
            if _at_once and topic not in self._counts:
                raise MayWaitError
            partition = self._partition(key, self._count_of(topic))
        if len(value or b"") + len(key or b"") + (_length_of(pairs) if pairs else 0) > self._longest:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, TOO_LONG.format(self._limit)))
        place = None if partition == -1 else partition
        report = on_delivery or callback or self._report
        future: RecordFuture | KafkaError | None
        send: Any = inner.send_at_once if _at_once else inner.send
        try:
            if timestamp or pairs:
                future = send(topic, value, key=key, partition=place, timestamp=timestamp or None, headers=pairs)
            else:
                future = send(topic, value, key=key, partition=place)
        except errors.WrongType as error:
            raise TypeError(str(error)) from error
        except errors.MsgtxError as error:
            if _at_once and isinstance(error, errors.UnknownTopicOrPartition):
                raise MayWaitError from error
            future = self._not_sent(error, topic, value, key=key, partition=place, timestamp=timestamp, headers=pairs)
        if future is None:
            raise MayWaitError
        # A message without a callback is its future alone: each object that waits costs the garbage collector time.
        reported = report is not None
        self._sent.append(Sent(future, report, time.monotonic(), topic, partition, key, value) if reported else future)

    def _not_sent(
        self, error: errors.MsgtxError, topic: str, value: bytes | None, *, timestamp: int, **rest: Any
    ) -> RecordFuture | KafkaError:
        """Handle an error of `send`: create a missing topic, or keep the error for the message's report, or raise it."""
        transactional = "transactional_id" in self._settings
        if isinstance(error, errors.DeliveryTimeout) and not transactional:
            raise BufferError("Local: Queue full") from error
        if not isinstance(error, errors.UnknownTopicOrPartition):
            raise KafkaException(as_kafka(error)) from error
        self._counts.pop(topic, None)
        client = self._connected()
        try:
            if topic in client.topics.list():
                raise KafkaException(as_kafka(error, KafkaError._UNKNOWN_PARTITION)) from error
            client.topics.create(topic, if_not_exists=True)
            self._log.info("created the topic %s with one partition, as a broker does by default", topic)
            return self._inner().send(topic, value, timestamp=timestamp or None, **rest)
        except errors.MsgtxError as failed:
            told = as_kafka(failed)
            if not transactional:
                return told
            if self._in_transaction and not told.fatal():  # a commit would be of a part of it
                told = self._lacks = KafkaError(told.code(), told.str(), False, False, True)
            raise KafkaException(told) from failed

    def _count_of(self, topic: str) -> int:
        if topic not in self._counts:
            with translated():
                try:
                    self._counts[topic] = self._connected().topics.describe(topic).partitions
                except errors.UnknownTopicOrPartition:
                    return 1  # it is created
        return self._counts[topic]

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Report | None = None,
        on_delivery: Report | None = None,
    ) -> int:
        """Send messages. Return the number of those taken; the others have their error under `_error`."""
        if not isinstance(messages, list):
            raise TypeError("messages must be a list")
        taken = 0
        for message in messages:
            if not isinstance(message, dict):
                raise TypeError("each message must be a dict")
            given = {name: message[name] for name in ("value", "key", "timestamp", "headers") if name in message}
            report = message.get("on_delivery") or message.get("callback") or on_delivery or callback
            try:
                self.produce(topic, partition=message.get("partition", partition), on_delivery=report, **given)
                taken += 1
            except BufferError:
                message["_error"] = KafkaError(KafkaError._QUEUE_FULL)
            except KafkaException as error:
                message["_error"] = error.args[0]
        return taken

    # ── reports ──

    def poll(self, timeout: float | None = -1) -> int:
        """Call callbacks that are due, and wait for one at most `timeout` seconds. Return how many were called."""
        self._require_open()
        deadline = deadline_of(timeout)
        while True:
            if called := self._serve():
                return called
            left = seconds_left(deadline)
            if left <= 0:
                return 0
            pause = min(PAUSE_SECONDS, left)
            head = self._head()
            if head is None or isinstance(head, KafkaError):
                time.sleep(pause)
                continue
            with contextlib.suppress(TimeoutError):
                head.exception(pause)

    def _head(self) -> RecordFuture | KafkaError | None:
        try:
            return _future_of(self._sent[0])
        except IndexError:  # there is none, or another thread has just told of it
            return None

    def flush(self, timeout: float | None = -1) -> int:
        """Wait for all messages and call their callbacks. Return the number of messages without a report."""
        self._require_open()
        deadline = deadline_of(timeout)
        self._serve()
        while self._sent:
            left = seconds_left(deadline)
            with translated(), contextlib.suppress(TimeoutError):
                self._inner().flush(left)
            self._serve()
            if left <= 0:
                break
        self._serve()
        return len(self._sent)

    def _serve(self) -> int:
        """Call the callbacks of messages with a known outcome. An exception of one leaves the call, as there."""
        called = 0
        with self._serving:
            sent: deque[Any] = self._sent
            reported = self._error_cb is not None
            while sent:
                one = sent[0]
                future: Any = one[0] if one.__class__ is Sent else one
                if future.__class__ is not KafkaError and not future.done():
                    break
                sent.popleft()
                called += 1
                if reported or one is not future:
                    self._tell(future, None if one is future else one)
        self._statistics.messages += called
        return called + self._statistics.serve(len(self._sent))

    def _tell(self, future: Any, one: Any) -> None:
        place: msgtx.RecordMetadata | None = None
        error: KafkaError | None = None
        of_client = False
        if isinstance(future, KafkaError):
            error = future
        else:
            try:
                place = future.result()
            except errors.MsgtxError as failed:
                error, of_client = as_kafka(failed), isinstance(failed, OF_CLIENT)
        try:
            if self._error_cb is not None and error is not None and of_client:
                self._error_cb(error)
        finally:
            if one is not None and (error is not None or not self._failures_only):
                one.report(error, _message(one, place, error))

    def __len__(self) -> int:
        """Return the number of messages that wait for their report."""
        return len(self._sent)

    def __bool__(self) -> bool:
        """Return True, also without messages."""
        return True

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Give up the messages on their way: their reports have an error. msgtx may have stored them nevertheless."""
        self._require_open()
        if in_queue or in_flight:
            error = KafkaError(KafkaError._PURGE_INFLIGHT, PURGED)
            with self._serving:
                for at in range(len(self._sent)):  # in place: another thread may produce meanwhile
                    one = self._sent[at]
                    future = _future_of(one)
                    if isinstance(future, RecordFuture) and not future.done():
                        self._sent[at] = one._replace(future=error) if isinstance(one, Sent) else error

    # ── transactions ──

    def init_transactions(self, timeout: float | None = -1) -> None:
        """Take over the transactional id: an older producer is fenced, its open transaction aborted."""
        with translated():
            self._transactional().init_transactions(none_or(timeout))
            self._in_transaction, self._lacks = False, None

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        with translated():
            self._transactional().begin_transaction()
            self._in_transaction, self._lacks = True, None

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group_metadata: Any, timeout: float | None = -1
    ) -> None:
        """Commit these offsets with the transaction. `group_metadata`: from `consumer.consumer_group_metadata()`."""
        if not isinstance(positions, list):
            raise TypeError("expected list of TopicPartition")
        offsets = {
            msgtx.TopicPartition(each.topic, each.partition): msgtx.OffsetAndMetadata(each.offset, each.metadata or "")
            for each in positions
            if each.offset >= 0
        }
        with translated():
            producer = self._transactional()
            member = getattr(group_metadata, "member", None)
            if member is None:
                raise TypeError("group_metadata is what consumer_group_metadata() returned")
            if offsets:
                producer.send_offsets_to_transaction(offsets, member, none_or(timeout))
                group_metadata.settled({each: at.offset for each, at in offsets.items()})

    def commit_transaction(self, timeout: float | None = -1) -> None:
        """Commit the transaction. Then call the delivery callbacks of its messages."""
        with translated():
            producer = self._transactional()
            if self._lacks is not None:
                raise KafkaException(self._lacks)
            producer.commit_transaction(none_or(timeout))
            self._in_transaction = False
        self._serve()

    def abort_transaction(self, timeout: float | None = -1) -> None:
        """Abort the transaction. Delivery callbacks of its messages have an error."""
        with translated():
            producer = self._transactional()
            producer.abort_transaction(none_or(timeout))
            self._in_transaction, self._lacks = False, None
        self._serve()

    def _transactional(self) -> msgtx.Producer:
        if "transactional_id" not in self._settings:
            raise KafkaException(
                KafkaError(KafkaError._NOT_CONFIGURED, "The Transactional API requires transactional.id to be configured")
            )
        return self._inner()

    # ── the rest ──

    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> ClusterMetadata:
        """Return the topics, and the database as the only broker."""
        with translated():
            return metadata.cluster(self._connected(), topic)

    def cluster_id(self, timeout: float | None = -1) -> str:
        """Return the id of the installation."""
        with translated():
            return metadata.cluster_id(self._connected())

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Do nothing: user and password are part of the database's URL."""
        self._require_open()

    def close(self) -> bool:
        """Send what waits, and end. Return True."""
        if self._client is not None:
            try:
                if self._producer is not None:
                    self.flush()
            finally:
                self._end()
        return True

    def _end(self) -> None:
        client, producer = self._client, self._producer
        self._client = self._producer = None
        if client is not None:  # else a callback has closed the producer
            try:
                if producer is not None:
                    with translated():
                        producer.close()
            finally:
                client.release()

    def __enter__(self) -> Self:
        """Return the producer. The end of the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the producer."""
        self.close()

    def _require_open(self) -> None:
        if self._client is None:
            raise RuntimeError("Producer has been closed")

    def _connected(self) -> msgtx.Client:
        if self._client is None:
            raise RuntimeError("Producer has been closed")
        with translated():
            return self._client.get()

    def _inner(self) -> msgtx.Producer:
        self._require_open()
        with self._made:
            if self._producer is None:
                with translated():
                    self._producer = self._connected().producer(**self._settings)
            return self._producer


def partitioner(name: object) -> "Callable[[bytes | None, int], int] | None":
    """Return how a key chooses its partition. None: as msgtx does it by itself. Raise `KafkaException`."""
    if name not in PARTITIONERS:
        raise settings.refused(f'Invalid value "{name}" for configuration property "partitioner"')
    return PARTITIONERS[name]


def _draw(key: bytes | None, count: int) -> int:
    return random.randrange(count)  # noqa: S311 - spreads load, guards nothing


def _hashed(key: bytes | None, count: int) -> int:
    return confluent_kafka.fnv1a(key or b"", count)


def _hashed_or_drawn(key: bytes | None, count: int) -> int:
    return confluent_kafka.fnv1a(key, count) if key is not None else _draw(key, count)


PARTITIONERS: Final[Mapping[object, "Callable[[bytes | None, int], int] | None"]] = {
    "consistent_random": None,
    "consistent": lambda key, count: confluent_kafka.consistent(key or b"", count),
    "murmur2_random": None,
    "murmur2": lambda key, count: confluent_kafka.murmur2(key or b"", count),
    "random": _draw,
    "fnv1a": _hashed,
    "fnv1a_random": _hashed_or_drawn,
}
OF_CLIENT: Final = (errors.DatabaseUnavailable, errors.FatalError)  # errors that concern more than one message


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise TypeError(f"a bytes-like object is required, not '{type(value).__name__}'")
    return bytes(value)


def _partition_number(given: Any) -> int:
    partition = operator.index(given)
    if partition < -1:
        told = f"Unable to produce message: Local: Unknown partition: {partition}"
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, told))
    return partition


def _pairs(headers: Any) -> "list[tuple[str, bytes | None]]":
    if not isinstance(headers, dict | list):
        raise TypeError(f"expected headers to be dict or list of (key, value) tuples, not {type(headers).__name__}")
    found: list[tuple[str, bytes | None]] = []
    for each in headers.items() if isinstance(headers, dict) else headers:
        if not isinstance(each, tuple) or len(each) != 2 or not isinstance(each[0], str):
            raise TypeError("Headers are expected to be a list of (key, value) tuples")
        name, value = each
        if value is not None and not isinstance(value, bytes | bytearray | str):
            raise TypeError(f"expected header value to be None, binary, or unicode string, not {type(value).__name__}")
        found.append((name, value.encode() if isinstance(value, str) else None if value is None else bytes(value)))
    return found


def _length_of(headers: "list[tuple[str, bytes | None]]") -> int:
    """Return the bytes of headers as librdkafka counts them: each name and value has its length before it, as a varint."""
    parts = (len(each) for name, value in headers for each in (name.encode(), value or b""))
    return sum(length + length.bit_length() // 7 + 1 for length in parts)


def _future_of(one: "Sent | RecordFuture | KafkaError | None") -> "RecordFuture | KafkaError | None":
    return one.future if isinstance(one, Sent) else one


def _message(one: Sent, place: msgtx.RecordMetadata | None, error: KafkaError | None) -> Message:
    latency = time.monotonic() - one.began
    if place is None:
        at, offset, stamp = one.partition, OFFSET_INVALID, (TIMESTAMP_NOT_AVAILABLE, 0)
    else:
        at, offset, stamp = place.partition, place.offset, (TIMESTAMP_CREATE_TIME, place.timestamp)
    return Message(one.topic, at, offset, one.key, one.value, None, error, stamp, latency)
