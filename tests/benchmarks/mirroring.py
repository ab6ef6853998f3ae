"""R16: mirrors to Kafka and from it, and between two databases: how many records a second, and how late.

A database server and a broker of their own. Copying is compared with writing the same records to the source by one
transactional producer, and the delay at the target with that of a consumer of the source, of the same records. The broker
needs Kafka's programs (`make .venv/kafka`).
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Protocol

import confluent_kafka

import msgtx
from msgtx.cli.programs import perf
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step, progress
from tests.benchmarks.sweeping import own_server
from tests.databases import wait_until
from tests.kafka.broker import Broker, fetch
from tests.kafka.conftest import Kafka
from tests.kafka.workloads import mirror, size

RECORDS = 100_000
RECORD_BYTES = 100
IN_EACH = 1_000  # records of a transaction, while the source is filled
TRANSACTIONS = 1_000  # of one record each, for delays
RATE = 100  # of these in a second
COPY_SECONDS = 120.0
DIRECTIONS = (("msgtx", "Kafka"), ("Kafka", "msgtx"), ("msgtx", "another msgtx"))


class End(Protocol):
    """A database or a broker."""

    url: str

    def make(self, topic: str) -> None:
        """Make a topic of one partition."""

    def send(self, topic: str, values: list[bytes]) -> None:
        """Store the records of a transaction."""

    def count(self, topic: str) -> int:
        """Return how many records a topic has."""

    def reader(self, topic: str) -> Callable[[Pipe], None]:
        """Return a reader of `TRANSACTIONS` records for `perf.reading`."""


@dataclass
class Database:
    """An end in PostgreSQL."""

    url: str
    client: msgtx.Client
    producer: msgtx.Producer

    def make(self, topic: str) -> None:
        self.client.topics.create(topic)

    def send(self, topic: str, values: list[bytes]) -> None:
        with self.producer.transaction():
            for value in values:
                self.producer.send(topic, value)

    def count(self, topic: str) -> int:
        return sum(1 for _ in self.client.read(self.client.snapshot([topic])))

    def reader(self, topic: str) -> Callable[[Pipe], None]:
        return partial(perf.read_delays, self.url, topic, TRANSACTIONS)


class Cluster:
    """An end in Kafka."""

    def __init__(self, broker: Broker) -> None:
        self.url = broker.url
        self._kafka = Kafka(broker.servers)
        self._producer = self._kafka.producer(**{"transactional.id": "r16"})

    def make(self, topic: str) -> None:
        self._kafka.make(topic, 1)

    def send(self, topic: str, values: list[bytes]) -> None:
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(topic, value)
        self._producer.commit_transaction(COPY_SECONDS)

    def count(self, topic: str) -> int:
        return size(self._kafka.contents(topic))

    def reader(self, topic: str) -> Callable[[Pipe], None]:
        return partial(_read_kafka, self._kafka.servers, topic, TRANSACTIONS)


def mirroring(settings: Settings) -> list[dict[str, object]]:
    """Copy, and follow, in each direction."""
    fetch()
    rounds = Rounds()
    with own_server() as url, own_server() as other, _broker() as broker, _database(url) as here, _database(other) as there:
        ends: dict[str, End] = {"msgtx": here, "Kafka": Cluster(broker), "another msgtx": there}
        steps: dict[str, Step] = {
            f"{source} → {target} {name}": partial(step, here, ends[source], ends[target])
            for source, target in DIRECTIONS
            for name, step in (("copy", _copy), ("follow", _follow))
        }
        rounds.run(steps, rounds=settings.rounds)
    return rounds.judge([claim for ends in DIRECTIONS for claim in _claims(" → ".join(ends), ends[0])])


def _claims(direction: str, source: str) -> Iterator[Claim]:
    yield Claim(
        target="R16", what=f"{direction}, copied ÷ written to {source}", unit="rec/s",
        value=f"{direction} copy copied", base=f"{direction} copy written",
    )  # fmt: skip
    for part in ("p50", "p99"):
        yield Claim(
            target="R16", what=f"{direction}, {part} of send → target ÷ send → source, {RATE}/s", unit="ms",
            value=f"{direction} follow target {part}", base=f"{direction} follow source {part}",
        )  # fmt: skip


@contextlib.contextmanager
def _broker() -> Iterator[Broker]:
    with contextlib.closing(Broker()) as broker:
        broker.start()
        yield broker


@contextlib.contextmanager
def _database(url: str) -> Iterator[Database]:
    with msgtx.connect(url, create=True) as client, client.producer(transactional_id="r16") as producer:
        yield Database(url, client, producer)


def _topic(*ends: End) -> str:
    """Make a topic at both ends."""
    topic = f"r16-{time.monotonic_ns()}"
    for end in ends:
        end.make(topic)
    return topic


def _copy(here: Database, source: End, target: End) -> dict[str, float]:
    """Fill a topic, and copy it. Return records a second of both."""
    topic = _topic(source, target)
    values = [*perf.payloads(RECORDS, RECORD_BYTES)]
    began = time.perf_counter()
    for first in range(0, RECORDS, IN_EACH):
        source.send(topic, values[first : first + IN_EACH])
    written = time.perf_counter()
    ends = {"source": source.url} if target is here else {"target": target.url}
    report = here.client.mirror(topic, name=topic, until_caught_up=True, **ends)
    copied = time.perf_counter()
    assert report.records == target.count(topic) == RECORDS
    return {" written": RECORDS / (written - began), " copied": RECORDS / (copied - written)}


def _follow(here: Database, source: End, target: End) -> dict[str, float]:
    """Send small transactions while a mirror runs. Return the delays of a consumer of each end, in milliseconds."""
    topic = _topic(source, target)
    ends = ("source", source.url) if target is here else ("target", target.url)
    with mirror((here.url, topic, topic, *ends)):
        source.send(topic, [perf.stamped(0, RECORD_BYTES)])
        wait_until(lambda: target.count(topic), "the mirror copies", seconds=COPY_SECONDS)
        with perf.reading(source.reader(topic)) as at_source, perf.reading(target.reader(topic)) as at_target:
            began = time.perf_counter()
            for _ in perf.paced(RATE, TRANSACTIONS):
                source.send(topic, [perf.stamped(time.perf_counter(), RECORD_BYTES)])
            took = time.perf_counter() - began
            delays = {"source": at_source(), "target": at_target()}
    progress(f"{TRANSACTIONS} transactions in {took:.1f} s")
    return {
        f" {end} {part}": perf.percentile(found, share)
        for end, found in delays.items()
        for part, share in (("p50", 0.5), ("p99", 0.99))
    }


def _read_kafka(servers: str, topic: str, count: int, pipe: Pipe) -> None:
    """Be the reader's process, as `perf.read_delays` is: from the end of the topic."""
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": servers, "group.id": "r16", "isolation.level": "read_committed", "enable.auto.commit": False,
        "enable.partition.eof": True,
    })  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_END)])
    delays: list[float] = []
    reads = False
    while len(delays) < count and (message := consumer.poll(perf.SILENCE_SECONDS)) is not None:
        now = time.perf_counter()
        if message.error() is None:
            delays.append(perf.delay_ms(message.value(), now))
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            if not reads:
                reads = True
                pipe.send(None)
    consumer.close()
    pipe.send(delays)
