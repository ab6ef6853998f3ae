"""A mirror's source in Kafka: its committed records, partition by partition (decision 0173).

Kafka tells a consumer where a partition stands, and nothing about transactions across partitions. So each record is copied
exactly once, and those of one Kafka transaction may be in two portions.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_NOT_AVAILABLE, KafkaError, Message, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition

from msgtx import forks
from msgtx.errors import (
    IncarnationChanged,
    InvalidRecord,
    KafkaUnavailable,
    LogTruncated,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from msgtx.mirror import kafka_progress
from msgtx.mirror.ends import Lag, Portion, PortionLimits, Progress, SourcePlace, TopicShape
from msgtx.mirror.kafka_address import KafkaAddress
from msgtx.mirror.kafka_client import COPIED_SETTINGS, METADATA_SECONDS, Cluster, log, message_offset, message_partition
from msgtx.types import Record, TopicPartition

TOPICS_LOOK_SECONDS: Final = 5.0  # between two looks for new topics and partitions
MARKERS_SECONDS: Final = 10.0  # between two writes of a progress that passes markers and aborted records only
QUIET_SECONDS: Final = 10.0  # without a record or an end of a partition: the brokers are away
SLICE_SECONDS: Final = 0.25  # of a wait: Ctrl-C is noticed in between
MESSAGES: Final = 1_000  # taken from librdkafka at once
NO_EPOCH: Final = -1
POLICIES: Final = {"delete,compact": "compact,delete"}


@dataclass(frozen=True, slots=True)
class _Topic:
    identity: str
    shape: TopicShape


class KafkaSource:
    """Topics of Kafka that a mirror reads.

    `chosen`: whether a mirror copies a topic of this name. `required`: topics that must be there. `skip_removed`: go on
    behind records that retention has removed before they were copied; otherwise this is an error. `outage_timeout`: bounds
    each call, in seconds.
    """

    def __init__(
        self,
        address: KafkaAddress,
        chosen: Callable[[str], bool],
        *,
        required: frozenset[str] = frozenset(),
        skip_removed: bool = False,
        outage_timeout: float | None = None,
    ) -> None:
        self._cluster = Cluster(address, outage_timeout)
        self._chosen = chosen
        self._required = required
        self._skip_removed = skip_removed
        self._origin = forks.here()
        self._consumer: Any = None
        self._identity: str | None = None  # of the cluster
        self._topics: dict[str, _Topic] = {}
        self._looked: float | None = None
        self._at: dict[TopicPartition, SourcePlace] = {}  # behind the records that were returned; `_rest` follows
        self._returned: Mapping[TopicPartition, SourcePlace] | None = None  # the places of the progress that is to come next
        self._rest: deque[Message] = deque()
        self._unread: set[TopicPartition] = set()  # partitions whose end the consumer has not reached
        self._passed = time.monotonic()

    def next(self, progress: Progress, limits: PortionLimits) -> Portion:
        """Return the records behind a progress. An empty portion: there are none now.

        Raise `IncarnationChanged`, `UnknownTopicOrPartition`, `LogTruncated`, `OffsetOutOfRange`.
        """
        self._origin.require("the mirror")
        with self._cluster.asking("reading"):
            if self._looked is None or time.monotonic() > self._looked + TOPICS_LOOK_SECONDS:
                self._look()
            self._check(progress)
            self._follow(progress)
            self._returned = None  # an error in between: begin anew behind the progress
            records = self._take(limits)
            deadline = time.monotonic() + min(QUIET_SECONDS, self._cluster.answer_seconds)
            while not records and self._unread:  # none were fetched yet, which is not the end
                if time.monotonic() > deadline:
                    raise KafkaUnavailable(f"{self._cluster.address} tells nothing of {min(self._unread)}")
                self._rest.extend(self._consumer.consume(1, SLICE_SECONDS))
                records = self._take(limits)
            places = {at: place for at, place in self._at.items() if place.offset >= 0 and place != progress.places.get(at)}
            if not records and places and time.monotonic() < self._passed + MARKERS_SECONDS:
                places = {}
            topics = self._topics
            if places:
                self._passed = time.monotonic()
                # Records that were read from a topic made again since the last look are not those that the mirror follows.
                self._look()
                self._check(Progress(self._identity, places))
            self._returned = {**progress.places, **places}
            shapes = {at.topic: topics[at.topic].shape for at in places}
            assert self._identity is not None
            return Portion(self._identity, records, places, shapes, self._lag(records))

    def wait(self, timeout: float) -> None:
        """Return when there may be further records, at the latest after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self._rest and (left := deadline - time.monotonic()) > 0:
            if self._consumer is None:
                time.sleep(min(left, SLICE_SECONDS))
            else:
                self._rest.extend(self._consumer.consume(1, min(left, SLICE_SECONDS)))

    def close(self) -> None:
        """Give up the connections."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None and not self._origin.is_parent:
            consumer.close()
            self._cluster.close()

    def _look(self) -> None:
        """Ask for the topics, their ids and partitions."""
        admin = self._cluster.admin
        found = admin.list_topics(timeout=self._cluster.answer_seconds)
        if self._required - found.topics.keys():
            time.sleep(METADATA_SECONDS)
            found = admin.list_topics(timeout=self._cluster.answer_seconds)
        names = sorted(name for name in found.topics if self._chosen(name))
        if missing := sorted(self._required - {*names}):
            raise UnknownTopicOrPartition(f"{self._cluster.address} has no topic {missing[0]!r}", topic=missing[0])
        topics = {}
        if names:
            asked = admin.describe_topics(TopicCollection(names), request_timeout=self._cluster.answer_seconds)
            for name in names:
                told = asked[name].result()
                topics[name] = _Topic(str(told.topic_id), TopicShape(len(told.partitions), self._settings(name)))
        self._identity, self._topics, self._looked = found.cluster_id, topics, time.monotonic()

    def _settings(self, topic: str) -> Mapping[str, object]:
        """Return the settings with which msgtx makes a topic like this one; asked for once."""
        if topic in self._topics:
            return self._topics[topic].shape.settings
        found = kafka_progress.topic_settings(self._cluster, topic)
        told = {name: found[name.replace("_", ".")] for name in COPIED_SETTINGS if name.replace("_", ".") in found}
        return {name: POLICIES.get(value, value) if name == "cleanup_policy" else int(value) for name, value in told.items()}

    def _check(self, progress: Progress) -> None:
        """Raise the error of a progress of another cluster, or of a topic that was made again."""
        if progress.source is not None and progress.source != self._identity:
            raise IncarnationChanged(
                f"{self._cluster.address} is the cluster {self._identity}, the mirror has copied from {progress.source}: "
                f"compare both, then reset the mirror"
            )
        for at, place in progress.places.items():
            topic = self._topics.get(at.topic)
            if topic is not None and topic.identity != place.topic_id:
                raise UnknownTopicOrPartition(
                    f"topic {at.topic!r} of {self._cluster.address} was deleted and made again: the mirror would mix "
                    f"the records of both; reset it to copy the new one",
                    topic=at.topic,
                )

    def _follow(self, progress: Progress) -> None:
        """Let the consumer continue, or begin anew behind the progress: with new partitions, or after a failed write."""
        begins = {
            TopicPartition(name, number): SourcePlace(OFFSET_BEGINNING, topic.identity)
            for name, topic in self._topics.items()
            for number in range(topic.shape.partitions)
        }
        if self._returned != progress.places or self._at.keys() != begins.keys():
            self._assign({at: progress.places.get(at, place) for at, place in begins.items()})

    def _assign(self, places: dict[TopicPartition, SourcePlace]) -> None:
        if self._consumer is None:
            self._consumer = self._cluster.consumer()
        self._rest.clear()
        self._at, self._unread = places, {*places}
        # With the epoch, librdkafka asks the broker whether its log is still the one that was read.
        self._consumer.assign([
            KafkaPartition(at.topic, at.partition, place.offset, "", int(place.identity or NO_EPOCH))
            for at, place in places.items()
        ])  # fmt: skip

    def _take(self, limits: PortionLimits) -> list[Record]:
        """Return the next records, at most so many, and note where the consumer is behind them."""
        records: list[Record] = []
        size = 0
        last: dict[tuple[str, int], Message] = {}
        passed: dict[TopicPartition, int] = {}
        skipped = False
        while len(records) < limits.records and size < limits.bytes and not skipped:
            if not self._rest:
                self._rest.extend(self._consumer.consume(MESSAGES, 0))
                if not self._rest:
                    break
            message = self._rest.popleft()
            if (error := message.error()) is None:
                record = _record(message)
                records.append(record)
                last[record.topic, record.partition] = message
                size += (
                    len(record.key or b"")
                    + len(record.value or b"")
                    + sum(len(n) + len(v or b"") for n, v in record.headers)
                )
                continue
            at = message_partition(message)
            if error.code() == KafkaError._PARTITION_EOF:
                passed[at] = message_offset(message)
            else:
                passed[at] = self._behind_removed(at, error)
                skipped = True
        for message in last.values():
            at, epoch = message_partition(message), message.leader_epoch()
            self._at[at] = SourcePlace(
                message_offset(message) + 1, self._at[at].topic_id, "" if epoch is None else str(epoch)
            )
        for at, offset in passed.items():
            before = self._at[at].offset
            if offset > before:  # the epoch is that of a record, and markers may have been written in a later one
                self._at[at] = replace(self._at[at], offset=offset, identity="")
            if offset >= before:
                self._unread.discard(at)
        if skipped:
            self._assign(self._at)
        return records

    def _behind_removed(self, at: TopicPartition, error: KafkaError) -> int:
        """Return where to go on in a partition that has no record at the consumer's offset. Raise the reason otherwise."""
        place = self._at[at]
        if error.code() == KafkaError._LOG_TRUNCATION:
            raise self._truncated(at, place.offset, error.str())
        if error.code() != KafkaError._AUTO_OFFSET_RESET:
            self._looked = None
            raise self._cluster.error(error, f"reading {at}", at=at)
        self._look()
        self._check(Progress(self._identity, {at: place}))
        low: int
        low, high = self._consumer.get_watermark_offsets(KafkaPartition(*at), self._cluster.answer_seconds)
        if place.offset >= low:  # librdkafka has compared the epochs
            raise self._truncated(at, place.offset, f"the log ends at {high}; {error.str()}")
        told = f"{at} of {self._cluster.address}: retention has removed the records from offset {place.offset} to {low - 1}"
        if not self._skip_removed:
            raise OffsetOutOfRange(
                f"{told} before they were copied: reset the mirror, or have it skip them", at=at, offset=place.offset
            )
        log.warning("%s, which the mirror skips", told)
        return low

    def _truncated(self, at: TopicPartition, offset: int, reason: str) -> LogTruncated:
        return LogTruncated(
            f"{at} of {self._cluster.address} has lost records below offset {offset} that were copied ({reason}): "
            f"compare both topics, then reset the mirror",
            at=at,
            offset=offset,
        )

    def _lag(self, records: list[Record]) -> Lag:
        """Return what is left: a record at most for each offset, and no older than the newest record of this portion."""
        left = 0
        for at, place in self._at.items():
            low, high = self._consumer.get_watermark_offsets(KafkaPartition(*at), cached=True)
            left += max(0, high - max(low, place.offset))
        age_ms = time.time_ns() // 1_000_000 - records[-1].timestamp if left and records else 0
        return Lag(left, max(0, age_ms))


def _record(message: Message) -> Record:
    """Return a message as a record. Raise `InvalidRecord` for a header whose name is no text."""
    at, offset = message_partition(message), message_offset(message)
    try:
        headers = cast(list[tuple[str, bytes | None]], message.headers() or [])  # a dictionary is what a producer may give
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"{at} offset {offset}: a header's name is not UTF-8", at=at, offset=offset) from error
    kind, at_ms = message.timestamp()
    if kind == TIMESTAMP_NOT_AVAILABLE:
        at_ms = time.time_ns() // 1_000_000
    return Record(at.topic, at.partition, offset, at_ms, message.key(), message.value(), tuple(headers))
