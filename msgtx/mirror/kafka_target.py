"""A mirror's target in Kafka: a portion is one transaction of Kafka, which holds the progress, too (decision 0173).

Readers of Kafka at `isolation.level=read_committed` see a portion whole or not at all. The mirror's transactional id fences
every other mirror of its name.
"""

import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewPartitions

from msgtx import forks
from msgtx.errors import KafkaUnavailable, LogTruncated, MirrorFenced, UnknownTopicOrPartition
from msgtx.mirror import kafka_progress
from msgtx.mirror.ends import Lag, Portion, Progress, TopicShape
from msgtx.mirror.kafka_address import KafkaAddress
from msgtx.mirror.kafka_client import COPIED_SETTINGS, LEAST_ANSWER_SECONDS, METADATA_SECONDS, Cluster, log
from msgtx.mirror.kafka_stored import MIRRORS_TOPIC, StoredMirror, TargetEnd, encode
from msgtx.rules.partitioner import by_murmur2
from msgtx.types import Record, TopicPartition

ABORT_SECONDS: Final = 5.0  # of a transaction that is given up: its timeout aborts it otherwise
SERVED_RECORDS: Final = 10_000  # sent between two looks at what failed
FLUSH_SECONDS: Final = 0.25  # between two looks whether Kafka takes records: Ctrl-C is noticed in between
PARTITIONS_SECONDS: Final = 0.05  # between two looks for new partitions
PURGED: Final = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)  # another record's failure took these with it
RESERVED_TIMES: Final = (0, -1)  # to librdkafka "now", to Kafka "none"


class KafkaTarget:
    """Topics of Kafka that a mirror writes to.

    `repartition`: a key chooses the partition, as with Java's partitioner. `outage_timeout`: bounds each call, in seconds.
    """

    def __init__(
        self,
        address: KafkaAddress,
        name: str,
        *,
        source_address: str,
        repartition: bool = False,
        outage_timeout: float | None = None,
    ) -> None:
        self._cluster = Cluster(address, outage_timeout)
        self._name = name
        self._source_address = source_address
        self._repartition = repartition
        self._origin = forks.here()
        self._producer: Producer | None = None
        self._stored: StoredMirror | None = None  # as this run has written it
        self._counts: dict[str, int] = {}  # of partitions, by topic
        self._ids: dict[str, str] = {}  # of topics
        self._failed: Any = None  # the first record of the transaction that was not stored: its error and place

    def take_over(self) -> Progress:
        """See `Target.take_over`."""
        found, before, now = self._claim(), self._stored, _now()
        ends = self._kept(found.ends if found else {})
        self._counts = {}
        self._write(
            StoredMirror(
                found.progress if found else Progress(revision="0"),
                run=before.run if before else uuid.uuid4().hex,
                source_address=self._source_address,
                host=socket.gethostname(),
                process=os.getpid(),
                started_at=before.started_at if before else now,
                moved_at=found.moved_at if found else now,
                seen_at=now,
                records=found.records if found else 0,
                lag=found.lag if found else Lag(0, 0),
                ends=ends,
            )
        )
        return self._written().progress

    def write(self, progress: Progress, portion: Portion) -> Progress:
        """See `Target.write`. Raise also `RecordTooLarge`, and `UnknownTopicOrPartition` for a topic that was deleted."""
        before = self._written()
        if progress.revision != before.progress.revision:
            raise MirrorFenced(f"mirror {self._name}: the target has another progress", name=self._name)
        self._make_topics(progress, portion.topics)
        after = Progress(portion.source, {**progress.places, **portion.places}, str(int(before.progress.revision or 0) + 1))
        self._write(replace(before, progress=after, moved_at=_now(), lag=portion.lag), portion.records)
        return after

    def note(self, lag: Lag) -> None:
        """See `Target.note`."""
        self._write(replace(self._written(), lag=lag))

    def give_up(self, error: Exception) -> None:
        """See `Target.give_up`. It is not noted after an error that says that the cluster takes nothing of this mirror."""
        if isinstance(error, MirrorFenced | KafkaUnavailable):
            return
        stored = self._stored if self._producer is not None else None
        if stored is None:
            stored = self._claim()
        if stored is not None:
            self._write(replace(stored, error=str(error)))

    def close(self) -> None:
        """See `Target.close`."""
        if not self._origin.is_parent:
            self._give_up()
            self._cluster.close()

    def _claim(self) -> StoredMirror | None:
        """Fence every other mirror of this name, and return what the cluster has of it after that."""
        self._origin.require("the mirror")
        self._give_up()
        is_again = self._stored is not None
        if is_again:
            # Looked at first: the producer that follows fences another mirror that has taken over.
            self._require_ours(self._look())
        kafka_progress.make_mirrors_topic(self._cluster)
        producer = self._cluster.producer(kafka_progress.TRANSACTIONAL_ID + self._name, self._note_failure)
        with self._cluster.asking(f"taking over the mirror {self._name!r}"):
            producer.init_transactions(self._cluster.answer_seconds)
        found = self._look()
        if is_again:
            self._require_ours(found)  # from here on no other mirror writes
        self._producer = producer
        return found

    def _written(self) -> StoredMirror:
        """Return what this run wrote last."""
        self._origin.require("the mirror")
        assert self._stored is not None, "take_over comes first"
        return self._stored

    def _look(self) -> StoredMirror | None:
        """Return this mirror as the cluster has it."""
        return kafka_progress.read_mirrors(self._cluster, self._name).get(self._name)

    def _require_ours(self, stored: StoredMirror | None) -> None:
        """Raise `MirrorFenced` if the cluster has another run of this mirror, or none."""
        ours = self._stored
        if stored is None or ours is None or stored.run != ours.run:
            raise MirrorFenced(
                f"mirror {self._name}: another one of this name has taken over, or its progress was reset", name=self._name
            )

    def _kept(self, ends: Mapping[TopicPartition, TargetEnd]) -> dict[TopicPartition, TargetEnd]:
        """Return the ends that still hold: not those of a topic that was made again by a person.

        Those of a topic that the broker does not know, maybe not yet, are not compared. Raise `LogTruncated` for a partition
        that has lost records since.
        """
        with self._cluster.asking("looking for the ends of topics"):
            self._ids = kafka_progress.topic_ids(self._cluster, {at.topic for at in ends})
            same = {at: end for at, end in ends.items() if self._ids.get(at.topic, end.topic_id) == end.topic_id}
            now = kafka_progress.ends_of(self._cluster, [at for at in same if at.topic in self._ids])
        for at, end in now.items():
            self._require_end(at, end, same[at].offset)
        return same

    def _ends_behind(
        self, producer: Producer, before: Mapping[TopicPartition, TargetEnd], sent: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, TargetEnd]:
        """Return where partitions end with the records that were sent. Raise `LogTruncated` if they have lost others."""
        if not sent:
            return before
        self._flush(producer)
        if unknown := {at.topic for at in sent} - self._ids.keys():
            self._ids |= kafka_progress.topic_ids(self._cluster, unknown)
            if missing := unknown - self._ids.keys():
                raise KafkaUnavailable(f"{self._cluster.address} has not heard of the topic {min(missing)}")
        now = kafka_progress.ends_of(self._cluster, sent.keys())
        for at, end in now.items():
            if at in before and before[at].topic_id == self._ids[at.topic]:
                self._require_end(at, end, before[at].offset + sent[at])
        return {**before, **{at: TargetEnd(self._ids[at.topic], end) for at, end in now.items()}}

    def _flush(self, producer: Producer) -> None:
        """Return when Kafka has all records that were sent."""
        seconds = self._cluster.answer_seconds
        deadline, before = time.monotonic() + seconds, len(producer)
        while left := producer.flush(FLUSH_SECONDS):
            self._raise_failure()
            if left < before:
                deadline, before = time.monotonic() + seconds, left
            elif time.monotonic() > deadline:
                raise KafkaUnavailable(f"{self._cluster.address} takes no records")
        self._raise_failure()

    def _require_end(self, at: TopicPartition, end: int, least: int) -> None:
        if end < least:
            raise LogTruncated(
                f"{at} of {self._cluster.address} has lost records that were copied to it: its log ends at {end}, and had"
                f" records up to offset {least}: compare both topics, then reset the mirror {self._name!r}",
                at=at,
                offset=least,
                limit=end,
            )

    def _write(self, mirror: StoredMirror, records: Iterable[Record] = ()) -> None:
        """Store records and the mirror in one transaction.

        Kafka refuses a producer alike when another one of its id is there, and when a transaction was longer than its
        timeout. What the cluster has stored tells which it was.
        """
        producer = self._producer
        if producer is None:
            raise KafkaUnavailable(f"{self._cluster.address}: the mirror {self._name!r} has to take over again")
        try:
            with self._cluster.asking(f"writing as the mirror {self._name!r}"):
                self._failed = None
                producer.begin_transaction()
                sent = self._send_all(producer, records)
                ends = self._ends_behind(producer, mirror.ends, sent)
                mirror = replace(mirror, seen_at=_now(), records=mirror.records + sent.total(), ends=ends)
                key, value = self._name.encode(), encode(mirror)
                self._send(producer, MIRRORS_TOPIC, 0, key, value, [], mirror.seen_at)
                self._commit(producer)
        except MirrorFenced as error:
            self._give_up()
            if self._stored is not None:
                self._require_ours(self._look())
            raise KafkaUnavailable(f"{self._cluster.address} has ended the transaction of the mirror: {error}") from error
        except BaseException:
            self._give_up()
            raise
        self._stored = mirror

    def _send_all(self, producer: Producer, records: Iterable[Record]) -> Counter[TopicPartition]:
        """Queue records. Return how many for each partition."""
        sent: Counter[tuple[str, int]] = Counter()
        for count, record in enumerate(records, start=1):
            place = self._partition(record)
            time_ms = 1 if record.timestamp in RESERVED_TIMES else record.timestamp
            self._send(producer, record.topic, place, record.key, record.value, [*record.headers], time_ms)
            sent[record.topic, place] += 1
            if count % SERVED_RECORDS == 0:
                self._serve(producer, 0)
        return Counter({TopicPartition(*at): count for at, count in sent.items()})

    def _send(self, producer: Producer, topic: str, partition: int, key: Any, value: Any, headers: Any, at: int) -> None:
        """Queue a record. While the queue is full, wait for brokers to take some."""
        deadline = None
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=headers, timestamp=at)
                return
            except BufferError:
                deadline = deadline or time.monotonic() + self._cluster.answer_seconds
                self._serve(producer, 0.1)
                if time.monotonic() > deadline:
                    raise KafkaUnavailable(f"{self._cluster.address} takes no records") from None

    def _commit(self, producer: Producer) -> None:
        """Commit. A call that had no answer is made again: Kafka gives the same one."""
        deadline = time.monotonic() + self._cluster.answer_seconds
        while True:
            try:
                producer.commit_transaction(max(LEAST_ANSWER_SECONDS, deadline - time.monotonic()))
                return
            except KafkaException as error:
                self._raise_failure()
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def _serve(self, producer: Producer, seconds: float) -> None:
        producer.poll(seconds)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failed is not None:
            error, topic, partition = self._failed
            raise self._cluster.error(error, f"sending a record to {topic}-{partition}", at=(topic, partition))

    def _note_failure(self, error: Any, message: Any) -> None:
        if error is not None and self._failed is None and error.code() not in PURGED:
            self._failed = (error, message.topic(), message.partition())

    def _partition(self, record: Record) -> int:
        """Return a record's partition: that of the source, or the one that its key chooses."""
        if not self._repartition:
            return record.partition
        count = self._counts[record.topic]
        return record.partition % count if record.key is None else by_murmur2(record.key, count)

    def _make_topics(self, progress: Progress, shapes: Mapping[str, TopicShape]) -> None:
        """Make the topics and partitions that are missing. Raise `UnknownTopicOrPartition` for one that has been deleted."""
        if all(self._is_large_enough(topic, shape) for topic, shape in shapes.items()):
            return
        copied = {at.topic for at, place in progress.places.items() if place.offset > 0}
        with self._cluster.asking("making topics"):
            counts = self._count()
            if any(topic in copied and topic not in counts for topic in shapes):
                time.sleep(METADATA_SECONDS)
                counts = self._count()
            for topic, shape in shapes.items():
                if not self._is_large_enough(topic, shape):
                    self._make_topic(topic, shape, counts.get(topic, 0), is_copied=topic in copied)

    def _make_topic(self, topic: str, shape: TopicShape, count: int, *, is_copied: bool) -> None:
        """Make a topic that has `count` partitions as large as the source's. Another program may do the same meanwhile."""
        cluster, known = self._cluster, self._counts.get(topic, count)
        if not count:
            if is_copied:
                raise UnknownTopicOrPartition(
                    f"topic {topic!r} of {cluster.address} was deleted after records were copied to it: make it "
                    f"again for those that follow, or reset the mirror {self._name!r} to copy all again",
                    topic=topic,
                )
            settings = {
                name.replace("_", "."): str(shape.settings[name]) for name in COPIED_SETTINGS if name in shape.settings
            }
            if kafka_progress.make_topic(cluster, topic, shape.partitions, settings):
                log.info("made topic %s of %s with %d partitions", topic, cluster.address, shape.partitions)
                self._counts[topic] = shape.partitions
                return
            count = self._wait_for_partitions(topic, 1)
        if count < shape.partitions and not self._repartition:
            more = NewPartitions(topic, shape.partitions)
            error = cluster.admin.create_partitions([more], request_timeout=cluster.answer_seconds)[topic].exception()
            if error is not None and error.args[0].code() != KafkaError.INVALID_PARTITIONS:
                raise error
            count = self._wait_for_partitions(topic, shape.partitions)  # also those that another program has added
        elif count > known:
            self._wait_for_partitions(topic, count)
        self._counts[topic] = count

    def _count(self) -> dict[str, int]:
        """Return how many partitions each topic of the cluster has."""
        found = self._cluster.admin.list_topics(timeout=self._cluster.answer_seconds).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def _wait_for_partitions(self, topic: str, count: int) -> int:
        """Return how many partitions the producer knows that a topic has: at least `count`. It refuses records to others."""
        producer, seconds = self._producer, self._cluster.answer_seconds
        assert producer is not None
        deadline = time.monotonic() + seconds
        while (known := len(producer.list_topics(topic, seconds).topics[topic].partitions)) < count:
            if time.monotonic() > deadline:
                raise KafkaUnavailable(f"{self._cluster.address} has not heard of the new partitions of {topic}")
            time.sleep(PARTITIONS_SECONDS)
        return known

    def _is_large_enough(self, topic: str, shape: TopicShape) -> bool:
        count = self._counts.get(topic)
        return count is not None and (self._repartition or count >= shape.partitions)

    def _give_up(self) -> None:
        """Abort the transaction, if there is one, and close the producer."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.abort_transaction(min(ABORT_SECONDS, self._cluster.answer_seconds))
        except KafkaException as error:  # there is none, another mirror has fenced this one, or Kafka is away
            log.debug("the transaction of the mirror %s was left: %s", self._name, error)


def _now() -> int:
    return time.time_ns() // 1_000_000
