"""A mirror's target in Kafka: a portion and its progress are one transaction, and one mirror of a name writes."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from msgtx import errors
from msgtx.mirror import kafka_progress
from msgtx.mirror.ends import Lag, Portion, SourcePlace, TopicShape
from msgtx.mirror.kafka import KafkaMirrors
from msgtx.mirror.kafka_address import parse_kafka
from msgtx.mirror.kafka_client import Cluster
from msgtx.mirror.kafka_target import KafkaTarget
from msgtx.rules.partitioner import by_murmur2
from msgtx.types import Record, TopicPartition
from tests.databases import wait_until
from tests.kafka.broker import Broker
from tests.kafka.conftest import Columns, Kafka
from tests.refusals import refuses

Make = Callable[..., KafkaTarget]
T0 = 1_700_000_000_000


@pytest.fixture
def make(broker: Broker, unique: Callable[[str], str]) -> Iterator[Make]:
    """Make targets of one mirror."""
    name, made = unique("mirror"), list[KafkaTarget]()

    def target(**options: bool) -> KafkaTarget:
        made.append(KafkaTarget(parse_kafka(broker.url), name, source_address="postgresql://source/db", **options))
        return made[-1]

    yield target
    for each in made:
        each.close()


def portion(topic: str, records: Iterable[Record], *, end: int, partitions: int = 3) -> Portion:
    places = {TopicPartition(topic, number): SourcePlace(end, "id", f"row-{end}") for number in range(partitions)}
    return Portion("source", records, places, {topic: TopicShape(partitions, {"retention_ms": -1})}, Lag(0, 0))


def record(topic: str, number: int, **columns: object) -> Record:
    given = {"key": b"k%d" % number, "value": b"v%d" % number, "headers": (), "timestamp": T0 + number, **columns}
    return Record(topic, number % 3, number // 3, **given)  # type: ignore[arg-type]


def columns(one: Record) -> Columns:
    return one.key, one.value, one.timestamp, one.headers


def test_every_column_of_a_record_is_kept(kafka: Kafka, make: Make, unique: Callable[[str], str]) -> None:
    topic, target = unique("topic"), make()
    records = [
        record(topic, 0, key=None),
        record(topic, 3, key=b""),
        record(topic, 6, value=None),
        record(topic, 9, value=b""),
        record(topic, 12, headers=(("h", b"1"), ("h", None), ("", b""), ("ü", b"\xff\x00"))),
        record(topic, 15, timestamp=-5_000),
        record(topic, 18, timestamp=1),
        record(topic, 21, value=bytes(900_000)),
    ]
    target.write(target.take_over(), portion(topic, records, end=30))
    assert kafka.contents(topic) == {(topic, 0): [columns(one) for one in records]}
    assert kafka.metadata().topics[topic].partitions.keys() == {0, 1, 2}


@pytest.mark.parametrize("timestamp", [0, -1])
def test_the_times_that_kafka_reserves_become_the_first_millisecond(
    kafka: Kafka, make: Make, unique: Callable[[str], str], timestamp: int
) -> None:
    topic, target = unique("topic"), make()
    target.write(target.take_over(), portion(topic, [record(topic, 0, timestamp=timestamp)], end=1))
    assert [one[2] for one in kafka.contents(topic)[topic, 0]] == [1]


def test_records_and_progress_are_there_together_or_not_at_all(
    kafka: Kafka, make: Make, unique: Callable[[str], str]
) -> None:
    topic, target = unique("topic"), make()
    first = target.write(target.take_over(), portion(topic, [record(topic, 0)], end=1))

    def broken() -> Iterator[Record]:
        yield from (record(topic, number) for number in range(30_000))
        raise ConnectionError("the source")

    with pytest.raises(ConnectionError):
        target.write(first, portion(topic, broken(), end=10_000))
    again = target.take_over()
    assert again == first
    assert make().take_over() == first
    assert kafka.contents(topic) == {(topic, 0): [columns(record(topic, 0))]}


def test_a_second_mirror_fences_the_first(kafka: Kafka, make: Make, unique: Callable[[str], str]) -> None:
    topic, target, other = unique("topic"), make(), make()
    first = target.write(target.take_over(), portion(topic, [record(topic, 0)], end=1))
    second = other.take_over()
    assert second == first
    with refuses(errors.MirrorFenced):
        target.write(first, portion(topic, [record(topic, 3)], end=2))
    with refuses(errors.MirrorFenced):
        target.take_over()
    second = other.write(second, portion(topic, [record(topic, 6)], end=3))
    other.note(Lag(7, 8))
    assert [one[0] for one in kafka.contents(topic)[topic, 0]] == [b"k0", b"k6"]


def test_a_mirror_whose_transaction_was_ended_by_kafka_goes_on(
    broker: Broker, kafka: Kafka, unique: Callable[[str], str]
) -> None:
    """Kafka aborts a transaction that is longer than its timeout, and then refuses the producer like one that is fenced."""
    topic, name = unique("topic"), unique("mirror")
    target = KafkaTarget(
        parse_kafka(f"{broker.url}&transaction.timeout.ms=5000"), name, source_address="postgresql://source/db"
    )
    progress = target.take_over()

    def slow() -> Iterator[Record]:
        yield record(topic, 0)
        target._producer.flush()  # type: ignore[union-attr]
        wait_until(lambda: kafka.last_stable(topic, 0) > 0, "Kafka has ended the transaction")
        yield record(topic, 3)

    with refuses(errors.KafkaUnavailable):
        target.write(progress, portion(topic, slow(), end=1))
    progress = target.take_over()
    target.write(progress, portion(topic, [record(topic, 0)], end=1))
    target.close()
    assert kafka.contents(topic) == {(topic, 0): [columns(record(topic, 0))]}


def test_a_progress_behind_another_mirrors_open_transaction_is_found(
    broker: Broker, kafka: Kafka, make: Make, unique: Callable[[str], str]
) -> None:
    """A reader of committed records sees nothing behind the first open transaction, and the progress may be there."""
    topic, target = unique("topic"), make()
    progress = target.take_over()
    other = kafka.producer(**{"transactional.id": unique("other"), "transaction.timeout.ms": 3_000})
    other.begin_transaction()
    other.produce("__msgtx_mirrors", b"open", key=b"other", partition=0)
    other.flush()
    written = target.write(progress, portion(topic, [record(topic, 0)], end=1))
    assert make().take_over() == written


def test_a_record_that_is_too_large_is_refused_and_nothing_of_its_portion_is_there(
    kafka: Kafka, make: Make, unique: Callable[[str], str]
) -> None:
    topic, target = unique("topic"), make()
    progress = target.take_over()
    with refuses(errors.RecordTooLarge, topic=topic, partition=0):
        target.write(progress, portion(topic, [record(topic, 1), record(topic, 0, value=bytes(2_000_000))], end=1))
    assert target.take_over() == progress
    assert kafka.contents(topic) == {}


def test_partitions_are_added_and_a_key_chooses_among_others_if_asked(
    kafka: Kafka, make: Make, unique: Callable[[str], str]
) -> None:
    topic, few, target = kafka.topic(1), kafka.topic(2), make()
    progress = target.write(target.take_over(), portion(topic, [record(topic, 2)], end=1))
    assert [*kafka.contents(topic)] == [(topic, 2)]
    target.close()
    other = make(repartition=True)
    other.write(other.take_over(), portion(few, [record(few, 2), record(few, 5, key=None)], end=1))
    assert b"k2" in {one[0] for one in kafka.contents(few)[few, by_murmur2(b"k2", 2)]}
    assert set(kafka.contents(few)) <= {(few, 0), (few, 1)}
    assert progress.revision


def test_partitions_that_are_added_while_a_mirror_runs_are_written_to(
    kafka: Kafka, make: Make, unique: Callable[[str], str]
) -> None:
    """librdkafka remembers how many there were, and refuses records to others."""
    topic, target = unique("topic"), make()
    progress = target.write(target.take_over(), portion(topic, [record(topic, 0)], end=1))
    progress = target.write(progress, portion(topic, [replace(record(topic, 1), partition=4)], end=2, partitions=5))
    kafka.widen(topic, 7)
    target.write(progress, portion(topic, [replace(record(topic, 2), partition=6)], end=3, partitions=7))
    assert {at[1]: [one[0] for one in found] for at, found in kafka.contents(topic).items()} == {
        0: [b"k0"], 4: [b"k1"], 6: [b"k2"]
    }  # fmt: skip


@pytest.mark.parametrize("partitions", [1, 3, 5])
@pytest.mark.parametrize("was_there", [False, True])
def test_a_topic_that_another_program_makes_at_the_same_time_is_written_to(
    kafka: Kafka, make: Make, monkeypatch: pytest.MonkeyPatch, partitions: int, was_there: bool
) -> None:
    topic, target = kafka.topic(partitions), make()
    progress = target.take_over()
    looked = {topic: 1} if was_there else {}  # before the other program
    monkeypatch.setattr(target, "_count", lambda: looked)
    target.write(progress, portion(topic, [record(topic, 2)], end=1))
    assert [*kafka.contents(topic)] == [(topic, 2)]


def test_a_mirror_that_is_replaced_while_it_takes_over_again_is_fenced(
    kafka: Kafka, make: Make, monkeypatch: pytest.MonkeyPatch, unique: Callable[[str], str]
) -> None:
    topic, target, other = unique("topic"), make(), make()
    target.take_over()
    making = kafka_progress.make_mirrors_topic

    def replaced(cluster: Cluster) -> None:  # behind the first look, in front of the producer's initialization
        monkeypatch.setattr(kafka_progress, "make_mirrors_topic", making)
        other.write(other.take_over(), portion(topic, [record(topic, 0)], end=1))

    monkeypatch.setattr(kafka_progress, "make_mirrors_topic", replaced)
    with refuses(errors.MirrorFenced):
        target.take_over()
    assert other._look().run == other._written().run  # type: ignore[union-attr]


def test_a_topic_of_progress_that_brokers_do_not_know_is_no_progress_that_is_empty(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_progress, "MIRRORS_TOPIC", "no-such-topic")
    monkeypatch.setattr(kafka_progress, "make_mirrors_topic", lambda _: None)
    with refuses(errors.KafkaUnavailable):
        make().take_over()


def test_a_topic_that_was_deleted_under_a_mirror_is_refused(kafka: Kafka, make: Make, unique: Callable[[str], str]) -> None:
    topic, target = unique("topic"), make()
    target.write(target.take_over(), portion(topic, [record(topic, 0)], end=1))
    kafka.delete(topic)
    progress = target.take_over()
    with refuses(errors.UnknownTopicOrPartition, topic=topic):
        target.write(progress, portion(topic, [record(topic, 3)], end=2))


def test_mirrors_are_listed_and_a_reset_fences_one(broker: Broker, make: Make, unique: Callable[[str], str]) -> None:
    topic, target = unique("topic"), make()
    progress = target.write(target.take_over(), portion(topic, [record(topic, 0), record(topic, 1)], end=1))
    target.note(Lag(5, 6))
    found = KafkaMirrors(broker.url).describe(target._name)
    assert (found.source, found.source_address, found.records) == ("source", "postgresql://source/db", 2)
    assert (found.lag_records, found.lag_ms, len(found.places)) == (5, 6, 3)
    KafkaMirrors(broker.url).reset(target._name)
    with refuses(errors.MirrorFenced):
        target.write(progress, portion(topic, [record(topic, 3)], end=2))
    with refuses(errors.MirrorNotFound, name=target._name):
        KafkaMirrors(broker.url).reset(target._name)
    assert make().take_over().places == {}


def test_why_a_mirror_has_ended_is_listed_until_it_runs_again(
    broker: Broker, kafka: Kafka, make: Make, unique: Callable[[str], str]
) -> None:
    topic, target = unique("topic"), make()
    before = target.write(target.take_over(), portion(topic, [record(topic, 0)], end=1))
    kafka.delete(topic)
    with refuses(errors.UnknownTopicOrPartition, topic=topic) as refused:
        target.write(target.take_over(), portion(topic, [record(topic, 3)], end=2))
    target.give_up(refused.value)
    assert KafkaMirrors(broker.url).describe(target._name).error == str(refused.value)
    again = make()
    again.give_up(errors.LogTruncated("lost"))  # also before it has taken over
    assert KafkaMirrors(broker.url).describe(target._name).error == "lost"
    assert again.take_over().places == before.places
    assert KafkaMirrors(broker.url).describe(target._name).error is None
    target.give_up(errors.MirrorFenced("fenced"))  # it would fence the other one
    again.note(Lag(0, 0))


def test_a_topic_of_progress_that_forgets_is_refused(broker: Broker, kafka: Kafka, make: Make) -> None:
    make().take_over()
    try:
        kafka.alter("__msgtx_mirrors", cleanup_policy="delete")
        with refuses(errors.ConfigError):
            make().take_over()
    finally:
        kafka.alter("__msgtx_mirrors", cleanup_policy="compact")


def test_who_leads_is_asked_anew_after_a_broker_was_restarted(broker: Broker, kafka: Kafka) -> None:
    """A client of Kafka keeps the leader's epoch that it knows, however often the broker says that there is a newer one."""
    cluster, place = Cluster(parse_kafka(broker.url)), TopicPartition(kafka.topic(1), 0)

    def end() -> int | None:
        with contextlib.suppress(errors.KafkaUnavailable), cluster.asking("looking"):
            return kafka_progress.ends_of(cluster, [place])[place]
        return None

    assert end() == 0
    broker.kill()
    broker.start()
    assert wait_until(lambda: end() == 0, "the broker answers")
