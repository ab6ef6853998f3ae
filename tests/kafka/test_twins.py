"""Twins: the same steps with confluent-kafka on a real Kafka and with the facade on msgtx. Both see the same."""

import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

import confluent_kafka
import confluent_kafka.admin
import pytest

import msgtx
import msgtx.compat.confluent_kafka
import msgtx.compat.confluent_kafka.admin
from msgtx.database.opening import VARIABLE
from tests.kafka.broker import Broker
from tests.kafka.conftest import Kafka

WAIT: Final = 60.0
QUIET: Final = 0.2  # of a poll that finds nothing
T0: Final = 1_700_000_000_000
Seen = list[Any]


class Side:
    """One of the twins: the module of its clients, and a topic of two partitions."""

    def __init__(self, module: ModuleType, admin: ModuleType, servers: str) -> None:
        self.kafka: Any = module
        self._servers = servers
        self._opened: list[Any] = []
        self.admin = admin.AdminClient({"bootstrap.servers": servers})
        self.names: Any = admin
        self.topic = f"twin-{uuid.uuid4().hex[:8]}"
        self.make(self.topic, 2)

    def make(self, name: str, partitions: int) -> None:
        """Create a topic and wait until clients see it."""
        self.admin.create_topics([self.names.NewTopic(name, partitions)])[name].result(WAIT)
        deadline = time.monotonic() + WAIT
        while (found := self.admin.list_topics(timeout=WAIT).topics.get(name)) is None or len(
            found.partitions
        ) != partitions:
            assert time.monotonic() < deadline

    def producer(self, **config: Any) -> Any:
        """Make a producer."""
        self._opened.append(self.kafka.Producer({"bootstrap.servers": self._servers, "log_level": 0, **dotted(config)}))
        return self._opened[-1]

    def consumer(self, **config: Any) -> Any:
        """Make a consumer that reads from the beginning."""
        given = {"bootstrap.servers": self._servers, "log_level": 0, "auto.offset.reset": "earliest"}
        group = {"group.id": f"group-{uuid.uuid4().hex[:8]}"}
        self._opened.append(self.kafka.Consumer({**given, **group, **dotted(config)}))
        return self._opened[-1]

    def place(self, partition: int = 0, *rest: Any) -> Any:
        """Return a partition of the topic."""
        return self.kafka.TopicPartition(self.topic, partition, *rest)

    def fill(self, *values: str, partition: int = 0) -> None:
        """Store values."""
        producer = self.producer()
        for number, value in enumerate(values):
            producer.produce(self.topic, value, partition=partition, timestamp=T0 + number)
        assert producer.flush(WAIT) == 0

    def next(self, consumer: Any) -> Any:
        """Return the next message, and what is told of it."""
        message = consumer.poll(WAIT)
        assert message is not None
        return message

    def told(self, message: Any) -> tuple[Any, ...]:
        """Return what a message says, without what no two clusters have in common."""
        if message is None:
            return ("nothing",)
        error = message.error()
        place = message.topic() == self.topic, message.partition(), message.offset()
        if error is not None:
            return ("error", error.name(), *place)
        return (*place, message.key(), message.value(), message.headers(), message.timestamp())

    def refused(self, call: Callable[[], Any]) -> str:
        """Return the code of an error, or its type, or that there is none."""
        try:
            call()
        except self.kafka.KafkaException as error:
            return str(error.args[0].name())
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
            return type(error).__name__
        return "no error"

    def committed(self, consumer: Any, stored: bool = True) -> list[Any]:
        """Commit what is stored; return the outcome, and the offset that is committed then."""
        try:
            outcome = [(each.partition, each.offset) for each in consumer.commit(asynchronous=False)] if stored else None
        except self.kafka.KafkaException as error:
            outcome = error.args[0].name()
        return [outcome, *(each.offset for each in consumer.committed([self.place()], timeout=WAIT))]

    def until(self, done: Callable[[], Any], consumer: Any) -> None:
        """Poll until something has happened."""
        deadline = time.monotonic() + WAIT
        while not done():
            assert time.monotonic() < deadline
            consumer.poll(QUIET)

    def close(self) -> None:
        """Close what was made."""
        for each in self._opened:
            with contextlib.suppress(SystemError):  # of the original, for a fenced producer
                each.close()


def dotted(config: dict[str, Any]) -> dict[str, Any]:
    """Return settings with Kafka's names; those of callbacks keep theirs."""
    return {
        name if name.endswith("_cb") or name.startswith("on_") else name.replace("_", "."): value
        for name, value in config.items()
    }


@pytest.fixture
def twins(
    broker: Broker, kafka: Kafka, client: msgtx.Client, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Side, Side]]:
    """The original on Kafka, and the facade."""
    monkeypatch.setenv(VARIABLE, client.secret_url)
    facade = msgtx.compat.confluent_kafka
    both = Side(confluent_kafka, confluent_kafka.admin, broker.servers), Side(facade, facade.admin, broker.servers)
    yield both
    for side in both:
        side.close()


def sends(side: Side) -> Seen:
    """Keys, headers and timestamps of every kind come back as they were given."""
    seen: Seen = []
    producer = side.producer()
    producer.produce(side.topic, "text", "key", 0, timestamp=T0)
    producer.produce(side.topic, b"bytes", key=b"", partition=0, timestamp=T0, headers={"a": "1", "b": None})
    producer.produce(side.topic, None, partition=0, timestamp=T0, headers=[("a", b"1"), ("a", "2")])
    producer.produce(side.topic, "", partition=0, timestamp=T0, headers=[])
    producer.produce(side.topic, partition=0, timestamp=T0)
    seen += [len(producer), producer.flush(WAIT), len(producer)]
    consumer = side.consumer()
    consumer.assign([side.place()])
    return [*seen, *(side.told(side.next(consumer)) for _ in range(5))]


def reports(side: Side) -> Seen:
    """Reports say where a message is, and why not."""
    seen: Seen = []

    def note(error: Any, message: Any) -> None:
        seen.append((error and error.name(), message.topic() == side.topic, message.partition(), message.offset()))
        seen.append((message.key(), message.value(), message.headers(), message.timestamp()[0], message.latency() is None))

    producer = side.producer(on_delivery=note)
    producer.produce(side.topic, "a", key="k", partition=1, headers={"h": b"1"})
    producer.flush(WAIT)
    producer.produce(side.topic, "b", partition=1, on_delivery=lambda *each: seen.append("its own"))
    producer.flush(WAIT)
    return [*seen, side.refused(lambda: producer.produce(side.topic, "c", partition=7))]


def refuses(side: Side) -> Seen:
    """Wrong arguments are refused alike."""
    producer, consumer = side.producer(), side.consumer()
    plain = side.kafka.KafkaError
    return [
        side.refused(lambda: side.kafka.Producer({"foo.bar": 1})),
        side.refused(lambda: side.kafka.Producer({"linger.ms": "much"})),
        side.refused(lambda: side.kafka.Producer("x")),
        side.refused(lambda: side.kafka.Producer({"error_cb": "x"})),
        side.refused(lambda: side.kafka.Producer({"on_delivery": 1})),
        side.refused(lambda: side.kafka.Consumer({})),
        side.refused(lambda: side.kafka.Consumer({"group.id": "x", "auto.offset.reset": "foo"})),
        side.refused(lambda: producer.produce(side.topic, 5)),
        side.refused(lambda: producer.produce(side.topic, bytearray(b"x"))),
        side.refused(lambda: producer.produce(side.topic, memoryview(b"x"))),
        side.refused(lambda: producer.produce(None, b"x")),
        side.refused(lambda: producer.produce(side.topic, b"x", headers=5)),
        side.refused(lambda: producer.produce(side.topic, b"x", headers={"a": 5})),
        side.refused(lambda: producer.produce(side.topic, b"x", headers=[("a",)])),
        side.refused(producer.init_transactions),
        side.refused(producer.begin_transaction),
        side.refused(lambda: consumer.subscribe("t")),
        side.refused(lambda: consumer.subscribe([])),
        side.refused(lambda: consumer.assign([5])),
        side.refused(lambda: consumer.commit(asynchronous=False)),
        side.refused(consumer.store_offsets),
        side.refused(lambda: consumer.store_offsets(offsets=[side.place(0, 5)])),
        side.refused(lambda: consumer.seek(side.place(0, 5))),
        side.refused(lambda: consumer.consume(-1, 0)),
        side.refused(lambda: consumer.incremental_unassign([side.place()])),
        consumer.assignment(),
        consumer.memberid() or None,
        [each.offset for each in consumer.position([side.place()])],
        side.refused(consumer.close),
        side.refused(lambda: consumer.poll(0)),
        side.refused(consumer.close),
        (plain(plain._QUEUE_FULL).str(), plain(3).name(), plain(3) == 3),
    ]


def ends(side: Side) -> Seen:
    """The end of a partition is told once, and again behind further messages."""
    side.fill("a", "b")
    consumer = side.consumer(enable_partition_eof=True)
    consumer.assign([side.place()])
    seen = [side.told(side.next(consumer)) for _ in range(3)]
    seen.append(side.told(consumer.poll(QUIET)))
    side.fill("c")
    return [*seen, *(side.told(side.next(consumer)) for _ in range(2))]


def commits(side: Side) -> Seen:
    """Stored offsets are committed; what is committed is where another one goes on."""
    side.fill("a", "b", "c", "d")
    told: Seen = []
    given = {"group_id": f"kept-{uuid.uuid4().hex[:8]}", "enable_auto_commit": False}
    consumer = side.consumer(**given, on_commit=lambda error, places: told.append((error, [each.offset for each in places])))
    consumer.subscribe([side.topic])
    seen: Seen = [side.told(side.next(consumer))]
    seen.append([each.offset for each in consumer.commit(asynchronous=False)])
    second = side.next(consumer)
    seen += [[each.offset for each in consumer.position([side.place()])]]
    seen += [[each.offset for each in consumer.commit(second, asynchronous=False)]]
    seen += [[each.offset for each in consumer.committed([side.place(0), side.place(1)], timeout=WAIT)]]
    seen += [[each.offset for each in consumer.commit(offsets=[side.place(0, 3)], asynchronous=False)]]
    seen += [side.refused(lambda: consumer.commit(message=second, offsets=[]))]
    seen.append(list(told))
    consumer.pause([side.place()])
    consumer.commit(second)
    side.until(lambda: told, consumer)
    consumer.close()
    again = side.consumer(**given)
    again.subscribe([side.topic])
    return [*seen, told, side.told(side.next(again))]


def stores(side: Side) -> Seen:
    """Without automatic storing, only what was stored is committed."""
    side.fill("a", "b", "c")
    given = {"group_id": f"kept-{uuid.uuid4().hex[:8]}", "enable_auto_offset_store": False}
    consumer = side.consumer(**given)
    consumer.subscribe([side.topic])
    first, _ = side.next(consumer), side.next(consumer)
    consumer.store_offsets(message=first)
    consumer.close()
    again = side.consumer(**given)
    again.subscribe([side.topic])
    return [side.told(side.next(again))]


def moves(side: Side) -> Seen:
    """Positions move by assign, seek and pause."""
    side.fill("a", "b", "c", "d")
    side.fill("x", partition=1)
    consumer = side.consumer()
    consumer.assign([side.place(0, 2)])
    seen: Seen = [side.told(side.next(consumer))]
    consumer.seek(side.place(0, 1))
    seen.append(side.told(side.next(consumer)))
    consumer.incremental_assign([side.place(1, side.kafka.OFFSET_BEGINNING)])
    seen.append(side.refused(lambda: consumer.incremental_assign([side.place(1)])))
    consumer.pause([side.place(0)])
    seen.append(side.told(side.next(consumer)))
    consumer.resume([side.place(0)])
    seen.append(side.told(side.next(consumer)))
    consumer.incremental_unassign([side.place(0)])
    seen += [len(consumer.assignment()), side.told(consumer.poll(QUIET))]
    seen.append(consumer.get_watermark_offsets(side.place(0), timeout=WAIT))
    times = consumer.offsets_for_times([side.place(0, T0 + 2), side.place(0, T0 + 99)], timeout=WAIT)
    return [*seen, [each.offset for each in times]]


def consumes(side: Side) -> Seen:
    """`consume` returns as many as are asked for, or those that came in time."""
    side.fill("a", "b", "c")
    consumer = side.consumer()
    consumer.assign([side.place()])
    seen = [[side.told(each) for each in consumer.consume(2, WAIT)]]
    return [*seen, [side.told(each) for each in consumer.consume(5, 2 * QUIET)], consumer.consume(1, 0)]


def rebalances(side: Side) -> Seen:
    """Callbacks run in the polls of their consumer, and say what it gets and gives."""
    side.fill("a")
    seen: Seen = []

    def note(word: str) -> Callable[[Any, Any], None]:
        return lambda consumer, places: seen.append((word, sorted(each.partition for each in places), consumer is first))

    first = side.consumer(enable_partition_eof=True)
    first.subscribe([side.topic], on_assign=note("gets"), on_revoke=note("gives"))
    before = list(seen)
    side.next(first)
    first.close()
    return [before, *seen]


def fails(side: Side) -> Seen:
    """An exception of a callback leaves the call."""
    side.fill("a")

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    producer, consumer = side.producer(), side.consumer()
    producer.produce(side.topic, "b", partition=0, on_delivery=fail)
    consumer.subscribe([side.topic], on_assign=fail)
    return [side.refused(lambda: producer.flush(WAIT)), len(producer), side.refused(lambda: consumer.poll(WAIT))]


def commits_transactions(side: Side) -> Seen:
    """A transaction holds messages and offsets; an aborted one leaves nothing."""
    side.fill("a", "b")
    name = f"twin-{uuid.uuid4().hex[:8]}"
    producer = side.producer(transactional_id=name)
    seen: Seen = [side.refused(producer.begin_transaction)]
    producer.init_transactions(WAIT)
    seen.append(side.refused(lambda: producer.produce(side.topic, "early")))
    consumer = side.consumer(enable_auto_commit=False)
    consumer.subscribe([side.topic])
    side.next(consumer)

    def run(value: str) -> None:
        producer.begin_transaction()
        producer.produce(side.topic, value, partition=1)
        places = [each for each in consumer.position(consumer.assignment()) if each.offset >= 0]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), WAIT)

    run("aborted")
    producer.abort_transaction(WAIT)
    seen.append([each.offset for each in consumer.committed([side.place()], timeout=WAIT)])
    run("committed")
    producer.commit_transaction(WAIT)
    seen.append([each.offset for each in consumer.committed([side.place()], timeout=WAIT)])
    reader = side.consumer(isolation_level="read_committed")
    reader.assign([side.place(1)])
    seen.append(side.next(reader).value())
    newer = side.producer(transactional_id=name)
    newer.init_transactions(WAIT)
    producer.begin_transaction()
    producer.produce(side.topic, "fenced", partition=1)
    with pytest.raises(side.kafka.KafkaException) as fenced:
        producer.commit_transaction(WAIT)
    error = fenced.value.args[0]
    return [*seen, error.name(), error.fatal(), error.retriable(), error.txn_requires_abort()]


def lists(side: Side) -> Seen:
    """`list_topics` tells of topics and partitions."""
    consumer = side.consumer()
    found = consumer.list_topics(side.topic, timeout=WAIT).topics[side.topic]
    return [len(found.partitions), found.error, sorted(found.partitions[1].replicas) == [found.partitions[1].leader]]


def waits_for_a_topic(side: Side) -> Seen:
    """A topic that is not there is told of once."""
    consumer = side.consumer()
    consumer.subscribe([f"absent-{side.topic}"])
    return [side.told(side.next(consumer))]


def commits_by_itself(side: Side) -> Seen:
    """Offsets are committed by the time, and at the end."""
    side.fill("a", "b", "c")
    told: Seen = []
    given = {"group_id": f"kept-{uuid.uuid4().hex[:8]}", "auto_commit_interval_ms": 100}
    consumer = side.consumer(**given, on_commit=lambda error, places: told.append([error, *places]))
    consumer.subscribe([side.topic])
    side.next(consumer)
    consumer.pause([side.place()])
    side.until(lambda: told, consumer)
    consumer.close()
    again = side.consumer(**{**given, "enable_auto_commit": False})
    again.subscribe([side.topic])
    seen: Seen = [side.told(side.next(again)), [each.offset for each in again.committed([side.place()], timeout=WAIT)]]
    again.commit(offsets=[side.place(0, 1)], asynchronous=False)
    third = side.consumer(**given)
    third.assign([side.place(0, side.kafka.OFFSET_STORED)])
    return [*seen, side.told(side.next(third))]


def two_members(side: Side) -> Seen:
    """A second member gets a part; the first one is told of all that it had, and of what is left."""
    seen: Seen = []

    def note(word: str) -> Callable[[Any, Any], None]:
        return lambda consumer, places: seen.append((word, sorted(each.partition for each in places), consumer is first))

    given = {"group_id": f"kept-{uuid.uuid4().hex[:8]}", "session_timeout_ms": 6_000, "heartbeat_interval_ms": 200}
    first, second = side.consumer(**given), side.consumer(**given)
    first.subscribe([side.topic], on_assign=note("gets"), on_revoke=note("gives"))
    side.until(lambda: seen, first)
    second.subscribe([side.topic])
    deadline = time.monotonic() + WAIT
    while not (len(first.assignment()) == len(second.assignment()) == 1 and len(seen) >= 3):
        assert time.monotonic() < deadline, seen
        first.poll(QUIET)
        second.poll(QUIET)
    second.close()
    side.until(lambda: len(seen) >= 5, first)
    counts = [(word, len(places), mine) for word, places, mine in seen]
    return [counts, sorted(each.partition for each in first.assignment())]


def reads_patterns(side: Side) -> Seen:
    """A name that begins with ^ is a pattern."""
    side.fill("a")
    consumer = side.consumer()
    consumer.subscribe([f"^{side.topic[:-1]}"])
    return [side.told(side.next(consumer))]


def begins_near_the_end(side: Side) -> Seen:
    """Logical offsets."""
    side.fill("a", "b", "c")
    seen: Seen = []
    for offset in (side.kafka.OFFSET_BEGINNING, side.kafka.OFFSET_END, side.kafka.OFFSET_INVALID):
        consumer = side.consumer(enable_partition_eof=True)
        consumer.assign([side.place(0, offset)])
        seen.append(side.told(side.next(consumer)))
    return seen


def has_no_offset(side: Side) -> Seen:
    """Without a committed offset, and with auto.offset.reset=error, there is an error."""
    side.fill("a")
    consumer = side.consumer(auto_offset_reset="error")
    consumer.assign([side.place()])
    message = side.next(consumer)
    return [message.error().name(), message.value() is None]


def leaves(side: Side) -> Seen:
    """A consumer that unsubscribes reads nothing, and may subscribe again."""
    side.fill("a", "b")
    consumer = side.consumer()
    consumer.subscribe([side.topic])
    seen: Seen = [side.told(side.next(consumer))]
    consumer.commit(asynchronous=False)
    consumer.unsubscribe()
    seen += [side.told(consumer.poll(QUIET)), consumer.assignment()]
    consumer.subscribe([side.topic])
    return [*seen, side.told(side.next(consumer))]


def drops_stored_offsets(side: Side) -> Seen:
    """An assignment drops the offsets that were stored before; a commit that is automatic is made first."""
    place = side.place
    changes: list[Callable[[Any], object]] = [
        lambda consumer: consumer.assign([place()]),
        lambda consumer: consumer.assign([place(0, 1)]),
        lambda consumer: consumer.assign([place(1)]),
        lambda consumer: consumer.incremental_assign([place(1)]),
        lambda consumer: [consumer.incremental_unassign([place()]), consumer.incremental_assign([place()])],
        lambda consumer: [consumer.unassign(), consumer.assign([place(0, 0)])],
    ]
    side.fill("a", "b", "c")
    side.fill("x", "y", "z", partition=1)
    seen: Seen = []
    for auto_commit in (False, True):
        for change in changes:
            consumer = side.consumer(enable_auto_commit=auto_commit, auto_commit_interval_ms=600_000)
            consumer.incremental_assign([place()])
            seen += [side.next(consumer).offset(), side.next(consumer).offset()]
            change(consumer)
            seen += [side.committed(consumer), [each.offset for each in consumer.position([place()])]]
            seen += [side.next(consumer).offset(), side.committed(consumer)]
            consumer.close()
    return seen


def drops_offsets_of_the_program(side: Side) -> Seen:
    """Those that a program stores by itself are dropped, too; a seek leaves them."""
    side.fill("a", "b", "c", "d")
    changes: list[Callable[[Any], object]] = [
        lambda consumer: None,
        lambda consumer: consumer.assign([side.place()]),
        lambda consumer: consumer.assign([side.place(0, 1)]),
        lambda consumer: consumer.unassign(),
        lambda consumer: consumer.seek(side.place(0, 1)),
        lambda consumer: [consumer.seek(side.place(0, 1)), side.next(consumer)],
    ]
    seen: Seen = []
    for auto_commit in (False, True):
        for change in changes:
            given = {"group_id": f"kept-{uuid.uuid4().hex[:8]}", "auto_commit_interval_ms": 600_000}
            more = {"enable_auto_commit": auto_commit, "enable_auto_offset_store": False}
            consumer = side.consumer(**given, **more)
            consumer.assign([side.place()])
            side.next(consumer)
            consumer.store_offsets(offsets=[side.place(0, 3)])
            change(consumer)
            seen.append(side.refused(functools.partial(consumer.store_offsets, offsets=[side.place(1, 3)])))
            seen.append(side.committed(consumer))
            consumer.close()
            seen.append(side.committed(side.consumer(**given), stored=False))
    return seen


def commits_nothing_back(side: Side) -> Seen:
    """After a seek, offsets below the committed one are stored, and committed at the end only, if that is automatic."""
    side.fill("a", "b", "c", "d")
    seen: Seen = []
    for auto_commit in (False, True):
        for reads in (0, 3):
            given = {"group_id": f"kept-{uuid.uuid4().hex[:8]}", "auto_commit_interval_ms": 600_000}
            first = side.consumer(**given)
            first.commit(offsets=[side.place(0, 2)], asynchronous=False)
            consumer = side.consumer(**given, enable_auto_commit=auto_commit)
            consumer.subscribe([side.topic])
            side.until(consumer.assignment, consumer)
            seen += [reads and side.next(consumer).offset()]
            seen += [side.committed(consumer)] if reads else []
            consumer.seek(side.place(0, 0))
            seen += [side.next(consumer).offset(), side.committed(consumer)]
            seen += [side.next(consumer).offset(), side.committed(consumer)]
            consumer.close()
            seen.append(side.committed(first, stored=False))
    return seen


def rebalances_stored_offsets(side: Side) -> Seen:
    """A rebalance drops what was stored, also behind a seek; a commit that is automatic is made first."""
    side.fill("a", "b", "c", "d")
    side.fill("a", "b", "c", "d", partition=1)
    seen: Seen = []
    places = [side.place(0), side.place(1)]
    for auto_commit in (False, True):
        told: Seen = []
        given = {
            "group_id": f"kept-{uuid.uuid4().hex[:8]}", "session_timeout_ms": 6_000, "heartbeat_interval_ms": 200,
            "enable_auto_commit": auto_commit, "auto_commit_interval_ms": 600_000, "enable_auto_offset_store": False,
        }  # fmt: skip
        first, second = side.consumer(**given), side.consumer(**given)
        first.subscribe([side.topic], on_assign=lambda _, given, told=told: told.append(len(given)))
        for _ in range(8):
            side.next(first)
        first.store_offsets(offsets=[side.place(0, 2), side.place(1, 2)])
        for each in (0, 1):
            first.seek(side.place(each, 1))
        second.subscribe([side.topic])
        found: Seen = []
        deadline = time.monotonic() + WAIT
        while told != [2, 1] or not found:
            assert time.monotonic() < deadline, told
            if told != [2, 1]:
                first.poll(QUIET)
            found += [each for each in (second.poll(QUIET),) if each is not None]
        seen += [told, [each.offset for each in first.committed(places, timeout=WAIT)], found[0].offset()]
        seen += [side.committed(first)[0], side.next(first).offset()]
        first.close()
        second.close()
    return seen


def stays_paused(side: Side) -> Seen:
    """A pause holds until `resume`, whatever is assigned meanwhile."""
    side.fill("a", "b", "c")
    side.fill("x", partition=1)
    place = side.place
    consumer = side.consumer(enable_auto_commit=False)
    consumer.assign([place()])
    seen: Seen = [side.next(consumer).offset()]
    consumer.pause([place()])
    consumer.assign([place(0, 2), place(1, 0)])
    seen.append(side.next(consumer).partition())
    consumer.incremental_unassign([place()])
    consumer.incremental_assign([place(0, 1)])
    seen.append(side.told(consumer.poll(QUIET)))
    consumer.unassign()
    consumer.resume([place()])
    consumer.assign([place()])
    seen.append(side.next(consumer).offset())
    subscribed = side.consumer(enable_auto_commit=False)
    subscribed.subscribe([side.topic])
    seen.append(sorted(side.next(subscribed).partition() for _ in range(4)))
    subscribed.pause([place()])
    subscribed.unsubscribe()
    subscribed.poll(QUIET)
    subscribed.subscribe([side.topic])
    seen.append(side.next(subscribed).partition())
    subscribed.resume([place()])
    return [*seen, side.next(subscribed).offset()]


STEPS: Final = (
    sends, reports, refuses, ends, commits, stores, moves, consumes, rebalances, fails, commits_transactions, lists,
    waits_for_a_topic, commits_by_itself, two_members, reads_patterns, begins_near_the_end, has_no_offset, leaves,
    drops_stored_offsets, drops_offsets_of_the_program, commits_nothing_back, rebalances_stored_offsets, stays_paused,
)  # fmt: skip


@pytest.mark.parametrize("steps", STEPS, ids=lambda each: each.__name__)
def test_both_twins_see_the_same(twins: tuple[Side, Side], steps: Callable[[Side], Seen]) -> None:
    original, facade = (steps(side) for side in twins)
    assert facade == original
