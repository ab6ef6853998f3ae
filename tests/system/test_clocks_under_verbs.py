"""Every verb of a client with the server's clock set under it: half of it before the jump, half of it behind.

A jump may end what lasts less than it, with a typed error; then the same call again succeeds, without a wait until the clock
has caught up. Nothing is lost and nothing doubled (I1, I5, I10, I17).
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import msgtx
from msgtx import Client, errors
from tests.system.scenarios import FAST

pytestmark = pytest.mark.slow

Clock = Callable[..., None]
JUMPS: Final = ("1 hour", "-1 hour", "1 day", "-1 day", "10 years")
LIMIT_SECONDS: Final = 25.0  # of the second half, with its repetitions
SESSION: Final[dict[str, Any]] = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 200}
Halves = Iterator[None]


def _again(call: Callable[[], Any]) -> Any:
    """Call until it succeeds; only typed errors may come before."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            return call()
        except errors.MsgtxError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _read(client: Client, topic: str) -> list[bytes | None]:
    return sorted((record.value for record in client.read(client.snapshot([topic]))), key=lambda value: value or b"")


def _got(poll: Callable[[], list[Any]], wanted: int) -> list[bytes | None]:
    """Poll until there are as many values; members that were taken out join again."""
    found: list[bytes | None] = []
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(found) < wanted and time.monotonic() < deadline:
        with contextlib.suppress(errors.MsgtxError):
            found += [record.value for record in poll()]
    return found


def send(client: Client, topic: str) -> Halves:
    with client.producer(**FAST) as producer:
        producer.send(topic, b"1").result(LIMIT_SECONDS)
        yield
        producer.send(topic, b"2").result(LIMIT_SECONDS)
    assert _read(client, topic) == [b"1", b"2"]


def send_with_a_key(client: Client, topic: str) -> Halves:
    with client.producer(**FAST) as producer:
        producer.send(topic, b"1", dedup_key="a").result(LIMIT_SECONDS)
        yield
        producer.send(topic, b"2", dedup_key="b").result(LIMIT_SECONDS)
        assert producer.send(topic, b"2", dedup_key="b").result(LIMIT_SECONDS).duplicate
    assert _read(client, topic) == [b"1", b"2"]


def transaction(client: Client, topic: str) -> Halves:
    with client.producer(transactional_id=topic, **FAST) as producer:
        producer.begin_transaction()
        producer.send(topic, b"1").result(LIMIT_SECONDS)
        yield
        try:
            producer.commit_transaction()
        except errors.TransactionAborted:
            producer.abort_transaction()
            with producer.transaction():
                producer.send(topic, b"1")
    assert _read(client, topic) == [b"1"]


def prepared(client: Client, topic: str) -> Halves:
    with client.producer(transactional_id=topic, **FAST) as producer:
        with producer.transaction() as transaction:
            producer.send(topic, b"1")
            token = transaction.prepare()
        yield
        assert client.complete(token, commit=True) is msgtx.Outcome.COMMITTED
    assert _read(client, topic) == [b"1"]


def member(client: Client, topic: str) -> Halves:
    with client.producer(**FAST) as producer, client.consumer(
        topic, group=topic, auto_offset_reset="earliest", enable_auto_commit=False, fetch_max_wait_ms=100, **SESSION
    ) as consumer:  # fmt: skip
        producer.send(topic, b"1").result(LIMIT_SECONDS)
        assert _got(lambda: consumer.poll(0.2), 1) == [b"1"]
        consumer.commit()
        yield
        producer.send(topic, b"2").result(LIMIT_SECONDS)
        assert _got(lambda: consumer.poll(0.2), 1) == [b"2"]
        _again(lambda: (consumer.poll(0.1), consumer.commit()))


def second_member(client: Client, topic: str) -> Halves:
    """One joins behind the jump, and gets its share."""
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, **SESSION}
    with client.consumer(topic, group=topic, **settings) as first:
        _again(lambda: first.poll(0.2))
        yield
        with client.consumer(topic, group=topic, **settings) as second:
            deadline = time.monotonic() + LIMIT_SECONDS
            while not (first.assignment() and second.assignment()):
                assert time.monotonic() < deadline, (first.assignment(), second.assignment())
                for each in (first, second):
                    with contextlib.suppress(errors.MsgtxError):
                        each.poll(0.1)


def share_member(client: Client, topic: str) -> Halves:
    """What it holds is accepted, or delivered again; what it has accepted never is."""
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"})
    with client.producer(**FAST) as producer, client.share_consumer(
        topic, group=topic, acknowledgement_mode="explicit", fetch_max_wait_ms=100, **SESSION
    ) as consumer:  # fmt: skip
        producer.send_batch(topic, [b"1", b"2"], partition=0).result(LIMIT_SECONDS)
        done, held = consumer.poll(5.0)
        consumer.acknowledge(done)
        consumer.commit()
        yield
        refused = False
        try:
            consumer.acknowledge(held)
            consumer.commit()
        except errors.MsgtxError:
            refused = True
        producer.send(topic, b"3", partition=0).result(LIMIT_SECONDS)
        found = _got(lambda: consumer.poll(0.2), 1 + refused)
    assert sorted(value or b"" for value in found) == ([b"2", b"3"] if refused else [b"3"])


def process(client: Client, topic: str) -> Halves:
    client.topics.create(f"{topic}-out")

    def work() -> None:
        client.process(
            topic, to=f"{topic}-out", group=topic, transactional_id=topic, transform=lambda record: record.value,
            idle_timeout=1.0, consumer_config=SESSION, **FAST,
        )  # fmt: skip

    with client.producer(**FAST) as producer:
        producer.send(topic, b"1").result(LIMIT_SECONDS)
        work()
        yield
        producer.send(topic, b"2").result(LIMIT_SECONDS)
        _again(work)
    assert _read(client, f"{topic}-out") == [b"1", b"2"]


VERBS: Final = (send, send_with_a_key, transaction, prepared, member, second_member, share_member, process)


@pytest.mark.parametrize("jump", JUMPS, ids=lambda jump: jump.replace(" ", "_"))
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_verb_goes_on_when_the_clock_is_set_in_its_middle(
    client: Client, clock: Clock, verb: Callable[[Client, str], Halves], jump: str, unique: Callable[[str], str]
) -> None:
    topic = unique("clock")
    client.topics.create(topic, partitions=2)
    halves = verb(client, topic)
    next(halves)
    clock(jump)
    began = time.monotonic()
    assert next(halves, "the end") == "the end"
    assert time.monotonic() - began < LIMIT_SECONDS
