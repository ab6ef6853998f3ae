"""Members of groups that come and go: some commit in the background, begin at the end, or leave decisions to others."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import sqlalchemy
from sqlalchemy.orm import Session

from msgtx import Consumer, Outcome, Producer, Record, TopicPartition, errors
from tests.histories.recorded import ConsumerTape, ProducerTape, text_of

if TYPE_CHECKING:
    from tests.histories.workers import World

INPUT: Final = "input"
EXTRA: Final = "extra"
EXTRA_PARTITIONS: Final = 2
TALLY, SEALED = "tally", "sealed"
# Longer than any process or the server is stopped: a member that closes has been one all the time.
SESSION_MS: Final = {"session_timeout_ms": 15_000, "heartbeat_interval_ms": 200}
NOT_TAKEN: Final = (errors.RetriableError, errors.AbortableError)  # another member owns it by now: the next poll shows that


class OnPurposeError(Exception):
    """Raised to abort a transaction on purpose."""


def user_engine(world: "World") -> sqlalchemy.Engine:
    """Return a user's own engine on the same database."""
    return sqlalchemy.create_engine(sqlalchemy.make_url(world.life.url).set(drivername="postgresql+psycopg"))


def tally(world: "World") -> None:
    """At least once: a member that commits in all ways, and joins and closes at random moments."""
    while not world.finish.now:
        automatic = world.random.random() < 0.3
        consumer, tape = world.consumer(
            group=TALLY, auto_offset_reset="earliest", enable_auto_commit=automatic,
            auto_commit_interval_ms=world.random.choice((20, 200, 60_000)), **SESSION_MS,
        )  # fmt: skip
        try:
            tape.subscribe([INPUT])
            for _ in range(world.random.randint(1, 20)):
                if world.finish.now:
                    break
                records = consumer.poll(0.1, world.random.choice((1, 10, 50)))
                if records and not automatic:
                    with contextlib.suppress(*NOT_TAKEN):
                        _commit(world, consumer, tape, records)
                if world.random.random() < 0.1:
                    world.pause()
        finally:
            consumer.close()


def _commit(world: "World", consumer: Consumer, tape: ConsumerTape, records: list[Record]) -> None:
    if world.random.random() < 0.5:
        for record in records:  # one by one: they are passed on faster than they are written
            consumer.commit({TopicPartition(record.topic, record.partition): record.offset + 1}, wait=False)
    draw = world.random.random()
    if draw < 0.5:
        consumer.commit(wait=draw < 0.2)
    if draw < 0.2:
        world.finish.wait(0.02)  # the calls under way arrive
        tape.committed()


# ── copies into one topic, each input once for its group ──


def late(world: "World") -> None:
    """A group that begins at the end: it processes what it got once, even if its first transaction is aborted."""
    producer, recorded = world.producer(transactional_id=world.life.name, transaction_timeout_ms=2_000)
    producer.init_transactions()
    for number in itertools.count():
        if world.finish.now:
            return
        group = f"{world.life.process}#{number}"
        consumer, tape = world.consumer(group=group, auto_offset_reset="latest", **SESSION_MS)
        with contextlib.closing(consumer):
            tape.subscribe([INPUT])
            _copy_some(world, consumer, producer, recorded)


def _copy_some(world: "World", consumer: Consumer, producer: Producer, recorded: ProducerTape) -> None:
    copied = 0
    for _ in range(30):
        if copied == 3 or world.finish.now:
            return
        if not (records := consumer.poll(0.1, world.random.choice((1, 10, 100)))):
            continue
        try:
            with producer.transaction() as transaction:
                _send_outputs(world, producer, recorded, consumer, records)
                transaction.send_offsets(consumer)
                if world.random.random() < 0.4:
                    raise OnPurposeError
            copied += 1
        except (errors.AbortableError, OnPurposeError):
            consumer.rewind()


def _send_outputs(
    world: "World", producer: Producer, recorded: ProducerTape, consumer: Consumer, records: list[Record]
) -> None:
    for record in records:
        world.copies += 1
        output = f"{text_of(record.value)}>{consumer.config.group}@{recorded.label}:{world.copies}"
        producer.send(EXTRA, output.encode(), partition=world.random.randrange(EXTRA_PARTITIONS))


def seals(world: "World") -> None:
    """A copy job whose transactions a session or an outside party decides; others may own its partitions meanwhile."""
    timeout_ms = world.random.choice((1_500, 5_000))
    producer, recorded = world.producer(transactional_id=world.life.name, transaction_timeout_ms=timeout_ms)
    producer.init_transactions()  # this also aborts what the previous life had prepared
    engine = user_engine(world)
    while not world.finish.now:
        consumer, tape = world.consumer(group=SEALED, auto_offset_reset="earliest", **SESSION_MS)
        with contextlib.closing(consumer):
            tape.subscribe([INPUT])
            _copy_until_closed(world, consumer, producer, recorded, engine)


def _copy_until_closed(
    world: "World", consumer: Consumer, producer: Producer, recorded: ProducerTape, engine: sqlalchemy.Engine
) -> None:
    while not world.finish.now and not consumer.closed:
        if not (records := consumer.poll(0.1, world.random.choice((1, 10, 50)))):
            continue
        seal = world.random.choice((_in_a_session, _prepared))
        try:
            with seal(world, producer, recorded, engine) as fill:
                fill(lambda: _send_outputs(world, producer, recorded, consumer, records), consumer)
                if world.random.random() < 0.4:
                    consumer.close()  # another member gets its partitions before this is decided
                world.finish.wait(world.random.choice((0.0, 0.05, 0.3, 0.8)))
            continue
        except (errors.AbortableError, errors.InvalidTransactionState, OnPurposeError, sqlalchemy.exc.SQLAlchemyError):
            pass
        if not consumer.closed:
            consumer.rewind()


Fill = Callable[[Callable[[], None], Consumer], None]


@contextlib.contextmanager
def _in_a_session(world: "World", producer: Producer, recorded: ProducerTape, engine: sqlalchemy.Engine) -> Iterator[Fill]:
    with Session(engine) as session:

        def fill(send: Callable[[], None], consumer: Consumer) -> None:
            with producer.transaction(session=session) as transaction:
                send()
                transaction.send_offsets(consumer)

        yield fill
        if world.random.random() < 0.15:
            session.rollback()
            raise OnPurposeError
        recorded.decided(session.commit)


@contextlib.contextmanager
def _prepared(world: "World", producer: Producer, recorded: ProducerTape, engine: sqlalchemy.Engine) -> Iterator[Fill]:
    del engine
    tokens = []

    def fill(send: Callable[[], None], consumer: Consumer) -> None:
        with producer.transaction() as transaction:
            send()
            transaction.send_offsets(consumer)
            tokens.append(transaction.prepare())

    yield fill
    commits = world.random.random() > 0.15
    while True:  # an outside party repeats its decision until it is answered
        with contextlib.suppress(errors.RetriableError):
            if not commits:
                assert world.client.complete(tokens[0], commit=False) is Outcome.ABORTED
                raise OnPurposeError
            recorded.decided(lambda: world.client.complete(tokens[0], commit=True))
            return
        world.pause()
