"""A mirror's source in Kafka: committed records once each, and no silence about what is missing."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import confluent_kafka
import pytest

from msgtx import errors
from msgtx.mirror.ends import Lag, Portion, PortionLimits, Progress, SourcePlace
from msgtx.mirror.kafka_address import parse_kafka
from msgtx.mirror.kafka_source import KafkaSource
from msgtx.types import Record, TopicPartition
from tests.databases import wait_until
from tests.kafka.broker import Broker
from tests.kafka.conftest import Kafka
from tests.refusals import refuses

Read = Callable[..., "Reader"]
LIMITS = PortionLimits(1_000, 1_000_000)


class Reader:
    """What a mirror does with a source: it asks for what is behind the progress, and stores it."""

    def __init__(self, source: KafkaSource, progress: Progress) -> None:
        self.source = source
        self.progress = progress
        self.records: list[Record] = []
        self.lag: Lag | None = None

    def next(self, limits: PortionLimits = LIMITS) -> Portion:
        """Take a portion, and wait for one that has records."""
        portion: Portion = wait_until(lambda: self._take(limits), "a portion with records")
        return portion

    def _take(self, limits: PortionLimits) -> Portion | None:
        portion = self.source.next(self.progress, limits)
        records = [*portion.records]
        places = {**self.progress.places, **portion.places}
        self.progress, self.lag = replace(self.progress, source=portion.source, places=places), portion.lag
        self.records += records
        if records:
            return portion
        self.source.wait(1)
        return None

    def pass_to(self, at: TopicPartition, offset: int) -> None:
        """Take portions until the progress is at an offset."""

        def is_there() -> bool:
            self._take(LIMITS)
            place = self.progress.places.get(at)
            return place is not None and place.offset == offset

        wait_until(is_there, f"a progress at {offset}")

    def until(self, count: int, limits: PortionLimits = LIMITS) -> list[Record]:
        """Take portions until there are so many records in all."""
        while len(self.records) < count:
            self.next(limits)
        return self.records


@pytest.fixture
def read(broker: Broker) -> Iterator[Read]:
    """Read topics behind a progress."""
    made: list[KafkaSource] = []

    def reader(*topics: str, progress: Progress | None = None, **options: bool) -> Reader:
        source = KafkaSource(parse_kafka(broker.url), lambda name: name in topics, **options)  # type: ignore[arg-type]
        made.append(source)
        return Reader(source, progress or Progress())

    yield reader
    for each in made:
        each.close()


def fill(kafka: Kafka, topic: str, count: int, *, partition: int = 0, first: int = 0) -> None:
    producer = kafka.producer()
    for number in range(first, first + count):
        producer.produce(topic, b"v%d" % number, key=b"k%d" % number, partition=partition, timestamp=1_000 + number)
    assert producer.flush(30) == 0


def begin(kafka: Kafka, topic: str, value: bytes) -> confluent_kafka.Producer:
    """Store a record in a transaction that stays open."""
    producer = kafka.producer(**{"transactional.id": topic})
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.flush()
    return producer


def test_every_column_of_a_record_is_read(kafka: Kafka, read: Read) -> None:
    topic, producer = kafka.topic(2), kafka.producer()
    headers = [("h", b"1"), ("h", None), ("", b""), ("ü", b"\xff")]
    producer.produce(topic, b"v", key=b"k", partition=1, timestamp=5, headers=headers)
    producer.produce(topic, None, key=b"", partition=1, timestamp=1_700_000_000_000)
    assert producer.flush(30) == 0
    assert read(topic).until(2) == [
        Record(topic, 1, 0, 5, b"k", b"v", tuple(headers)),
        Record(topic, 1, 1, 1_700_000_000_000, b"", None),
    ]


def test_the_time_of_the_log_is_taken_where_a_topic_has_it(kafka: Kafka, read: Read) -> None:
    topic = kafka.topic(1, message_timestamp_type="LogAppendTime")
    fill(kafka, topic, 1)
    assert read(topic).until(1)[0].timestamp > 1_700_000_000_000


def test_a_topic_is_made_with_the_settings_of_the_source(kafka: Kafka, read: Read) -> None:
    topic = kafka.topic(2, cleanup_policy="compact,delete", retention_ms="3600000")
    producer = kafka.producer()
    producer.produce(topic, b"v", key=b"k", partition=0)  # now: retention would remove an older one at any moment
    assert producer.flush(30) == 0
    shape = read(topic).next().topics[topic]
    assert shape.partitions == 2
    assert (shape.settings["cleanup_policy"], shape.settings["retention_ms"]) == ("compact,delete", 3_600_000)


def test_only_committed_records_are_read_and_each_once_over_restarts(kafka: Kafka, read: Read) -> None:
    topic, count, progress = kafka.topic(), 0, Progress()
    producer = kafka.producer(**{"transactional.id": topic})
    for number in range(40):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce(topic, b"%d" % number, partition=partition)
        if number % 4 == 3:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            count += 3
    found: list[Record] = []
    while len(found) < count:
        reader = read(topic, progress=progress)  # anew each time, as after a crash
        reader.next(PortionLimits(25, 1_000_000))
        found, progress = found + reader.records, reader.progress
    places = [(record.partition, int(record.value or b"")) for record in found]
    assert sorted(places) == [(partition, number) for partition in range(3) for number in range(40) if number % 4 != 3]
    assert all(places.index((0, one)) < places.index((0, other)) for one, other in [(0, 1), (1, 2), (36, 38)])


def test_an_open_transaction_holds_the_records_behind_it_up(kafka: Kafka, read: Read) -> None:
    topic = kafka.topic(1)
    fill(kafka, topic, 2)
    producer = begin(kafka, topic, b"open")
    fill(kafka, topic, 2, first=2)
    reader = read(topic)
    assert [record.value for record in reader.until(2)] == [b"v0", b"v1"]
    producer.commit_transaction()
    assert [record.value for record in reader.until(5)][2:] == [b"open", b"v2", b"v3"]


def test_a_portion_is_as_small_as_its_limits(kafka: Kafka, read: Read) -> None:
    topic = kafka.topic(1)
    fill(kafka, topic, 100)
    reader = read(topic)
    assert len([*reader.next(PortionLimits(7, 1_000_000)).records]) == 7
    assert reader.lag is not None
    assert reader.lag.records == 93
    assert reader.lag.age_ms > 0
    assert len([*reader.next(PortionLimits(100, 1)).records]) == 1
    assert [record.offset for record in reader.until(100)] == [*range(100)]
    assert reader.lag == Lag(0, 0)


def test_new_partitions_and_gaps_are_followed(kafka: Kafka, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msgtx.mirror.kafka_source.TOPICS_LOOK_SECONDS", 0.0)
    topic = kafka.topic(1)
    fill(kafka, topic, 10)
    kafka.remove(topic, 0, below=4)
    reader = read(topic)
    assert [record.offset for record in reader.until(6)] == [4, 5, 6, 7, 8, 9]
    kafka.widen(topic, 3)
    fill(kafka, topic, 2, partition=2)
    assert [(record.partition, record.offset) for record in reader.until(8)][6:] == [(2, 0), (2, 1)]


def test_a_topic_that_was_made_again_is_noticed(kafka: Kafka, read: Read) -> None:
    topic = kafka.topic(1)
    fill(kafka, topic, 3)
    reader = read(topic)
    reader.until(3)
    kafka.delete(topic)
    kafka.make(topic, 1)
    fill(kafka, topic, 10, first=100)
    for one in (reader, read(topic, progress=reader.progress)):
        with refuses(errors.UnknownTopicOrPartition, topic=topic):
            one.next()
    assert len(reader.records) == 3


def test_a_required_topic_must_be_there(broker: Broker, unique: Callable[[str], str]) -> None:
    topic = unique("missing")
    source = KafkaSource(parse_kafka(broker.url), lambda name: name == topic, required=frozenset({topic}))
    with refuses(errors.UnknownTopicOrPartition, topic=topic):
        source.next(Progress(), LIMITS)
    source.close()


def test_another_cluster_is_noticed(kafka: Kafka, read: Read) -> None:
    topic = kafka.topic(1)
    fill(kafka, topic, 1)
    reader = read(topic)
    reader.until(1)
    with refuses(errors.IncarnationChanged):
        read(topic, progress=replace(reader.progress, source="other")).next()


def test_records_that_retention_has_removed_are_an_error_or_skipped(kafka: Kafka, read: Read) -> None:
    topic = kafka.topic(1)
    fill(kafka, topic, 3)
    reader = read(topic)
    reader.until(3)
    fill(kafka, topic, 20, first=3)
    kafka.remove(topic, 0, below=10)
    with refuses(errors.OffsetOutOfRange, topic=topic, partition=0, offset=3):
        read(topic, progress=reader.progress).next()
    skipping = read(topic, progress=reader.progress, skip_removed=True)
    assert [record.offset for record in skipping.until(13)] == [*range(10, 23)]


def test_a_log_that_has_lost_copied_records_is_noticed(kafka: Kafka, read: Read) -> None:
    topic = kafka.topic(1)
    fill(kafka, topic, 3)
    reader = read(topic)
    reader.until(3)
    at = TopicPartition(topic, 0)
    beyond = {at: SourcePlace(30, reader.progress.places[at].topic_id, "0")}
    with refuses(errors.LogTruncated, topic=topic, partition=0, offset=30):
        read(topic, progress=replace(reader.progress, places=beyond)).next()


def test_a_log_that_has_lost_copied_records_and_has_grown_past_them_is_noticed(
    broker: Broker, kafka: Kafka, read: Read
) -> None:
    """Also by a mirror that skips what retention has removed. A start of the broker begins another epoch."""
    topic = kafka.topic(1)
    fill(kafka, topic, 3)
    reader = read(topic)
    reader.until(3)
    broker.kill()
    broker.start()
    fill(kafka, topic, 10, first=3)
    at = TopicPartition(topic, 0)
    lost = {at: replace(reader.progress.places[at], offset=8)}  # of the first epoch, which has ended at 3
    for skip_removed in (False, True):
        with refuses(errors.LogTruncated, topic=topic, partition=0, offset=8):
            read(topic, progress=replace(reader.progress, places=lost), skip_removed=skip_removed).next()
    assert len(read(topic, progress=reader.progress).until(10)) == 10


def test_a_marker_of_a_later_epoch_than_its_record_is_no_loss(
    broker: Broker, kafka: Kafka, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msgtx.mirror.kafka_source.MARKERS_SECONDS", 0.0)
    topic = kafka.topic(1)
    producer = begin(kafka, topic, b"1")
    broker.kill()
    broker.start()
    producer.commit_transaction(60)
    reader, at = read(topic), TopicPartition(topic, 0)
    reader.until(1)
    reader.pass_to(at, 2)
    fill(kafka, topic, 1)
    assert [record.offset for record in read(topic, progress=reader.progress).until(1)] == [2]


def test_a_progress_behind_markers_alone_moves(kafka: Kafka, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise retention would seem to remove records that were not copied."""
    monkeypatch.setattr("msgtx.mirror.kafka_source.MARKERS_SECONDS", 0.0)
    topic = kafka.topic(1)
    producer = begin(kafka, topic, b"aborted")
    producer.abort_transaction()
    reader = read(topic)
    reader.pass_to(TopicPartition(topic, 0), 2)
    assert reader.records == []
